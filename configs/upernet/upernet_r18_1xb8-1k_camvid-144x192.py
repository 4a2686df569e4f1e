# Stock training on CamVid: what the InfoBatch config beside it shortens. Give
# the place of the data with `--cfg-options`, see README.md.
_base_ = [
    '../_base_/models/upernet_r18.py', '../_base_/datasets/camvid_144x192.py',
    __import__('mmseg').__path__[0] +
    '/.mim/configs/_base_/default_runtime.py'
]
model = dict(
    data_preprocessor=dict(size=(144, 192)),
    decode_head=dict(num_classes=11),
    auxiliary_head=dict(num_classes=11))
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=0.0005))
param_scheduler = [
    dict(
        type='PolyLR',
        eta_min=1e-4,
        power=0.9,
        begin=0,
        end=1000,
        by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=1000, val_interval=500)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=500),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'))
