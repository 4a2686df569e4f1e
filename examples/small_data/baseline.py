# A training of your own data as it is without mmib. `mmib train` shortens it
# and adds InfoBatch; nothing here knows of it.
_base_ = [
    'mmib::_base_/models/upernet_r18.py',
    # Pipelines, and folders in the layout of ADE20K.
    'mmib::_base_/datasets/demo_64x64.py',
    'mmseg::_base_/default_runtime.py',
    'mmseg::_base_/schedules/schedule_20k.py'
]
# Your data: its folder, and its classes in the order of their labels. The
# masks have 0 for what is ignored, so labels begin with 1.
data = dict(
    data_root='data/',
    metainfo=dict(
        classes=('sky', 'ground', 'disc', 'square', 'triangle'),
        palette=[[120, 190, 230], [70, 110, 60], [220, 50, 50], [60, 60, 200],
                 [230, 210, 40]]))
train_dataloader = dict(dataset=data)
val_dataloader = dict(dataset=data)
test_dataloader = val_dataloader
model = dict(
    data_preprocessor=dict(size=(64, 64)),
    decode_head=dict(num_classes=5),
    auxiliary_head=dict(num_classes=5))

max_iters = 500
optim_wrapper = dict(optimizer=dict(lr=0.02))
param_scheduler = [
    dict(
        type='PolyLR', eta_min=1e-4, power=0.9, end=max_iters, by_epoch=False)
]
train_cfg = dict(max_iters=max_iters, val_interval=100)
default_hooks = dict(
    logger=dict(interval=25), checkpoint=dict(interval=max_iters))
randomness = dict(seed=0)
