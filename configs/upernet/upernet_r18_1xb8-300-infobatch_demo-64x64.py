# What `make demo` trains: InfoBatch on synthetic images.
_base_ = [
    '../_base_/models/upernet_r18.py', '../_base_/datasets/demo_64x64.py',
    __import__('mmseg').__path__[0] +
    '/.mim/configs/_base_/default_runtime.py',
    __import__('mmseg').__path__[0] +
    '/.mim/configs/_base_/schedules/schedule_20k.py'
]
custom_imports = dict(imports=['mmib'], allow_failed_imports=False)
model = dict(
    data_preprocessor=dict(size=(64, 64)),
    decode_head=dict(num_classes=5),
    auxiliary_head=dict(num_classes=5))
train_dataloader = dict(sampler=dict(type='InfoBatchSampler'))
custom_hooks = [
    dict(
        type='InfoBatchHook',
        policy=dict(type='Neyman', ratio=0.6),
        delta=0.85)
]
optim_wrapper = dict(optimizer=dict(lr=0.02))
param_scheduler = [
    dict(
        type='PolyLR',
        eta_min=1e-4,
        power=0.9,
        begin=0,
        end=300,
        by_epoch=False)
]
train_cfg = dict(max_iters=300, val_interval=100)
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=300))
randomness = dict(seed=0)
