# The baseline on CamVid: what the InfoBatch config beside it shortens. Give
# the place of the data with `--cfg-options`, see configs/README.md.
_base_ = [
    '../_base_/models/upernet_r18.py', '../_base_/datasets/camvid_144x192.py',
    __import__('mmseg').__path__[0] +
    '/.mim/configs/_base_/default_runtime.py',
    __import__('mmseg').__path__[0] +
    '/.mim/configs/_base_/schedules/schedule_20k.py'
]
model = dict(
    data_preprocessor=dict(size=(144, 192)),
    decode_head=dict(num_classes=11),
    auxiliary_head=dict(num_classes=11))
optim_wrapper = dict(optimizer=dict(lr=0.02))
param_scheduler = [
    dict(
        type='PolyLR',
        eta_min=1e-4,
        power=0.9,
        begin=0,
        end=1000,
        by_epoch=False)
]
train_cfg = dict(max_iters=1000, val_interval=500)
default_hooks = dict(checkpoint=dict(interval=500))
