# A training of your own data as it is without mmib. `mmib train` shortens it
# and adds InfoBatch; nothing here knows of it.
_base_ = [
    'mmib::_base_/models/upernet_r18.py', 'mmseg::_base_/default_runtime.py'
]
# Your data: images and masks of the same name, labels from 0, 255 is ignored.
# The drawn masks have 0 for what is ignored, so their labels begin with 1.
data_root = 'data/'
classes = ('sky', 'ground', 'disc', 'square', 'triangle')
palette = [[120, 190, 230], [70, 110, 60], [220, 50, 50], [60, 60, 200],
           [230, 210, 40]]
reduce_zero_label = True
crop_size = (64, 64)

load = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=reduce_zero_label)
]
dataset = dict(
    type='BaseSegDataset',
    data_root=data_root,
    img_suffix='.jpg',
    seg_map_suffix='.png',
    reduce_zero_label=reduce_zero_label,
    metainfo=dict(classes=classes, palette=palette))
train_dataloader = dict(
    batch_size=8,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        **dataset,
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'),
        pipeline=[
            *load,
            dict(
                type='RandomResize',
                scale=(96, 96),
                ratio_range=(0.75, 1.5),
                keep_ratio=True),
            dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PackSegInputs')
        ]))
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **dataset,
        data_prefix=dict(
            img_path='images/validation',
            seg_map_path='annotations/validation'),
        pipeline=[*load, dict(type='PackSegInputs')]))
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

model = dict(
    data_preprocessor=dict(size=crop_size),
    decode_head=dict(num_classes=len(classes)),
    auxiliary_head=dict(num_classes=len(classes)))

max_iters = 500
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=0.0005))
param_scheduler = [
    dict(
        type='PolyLR', eta_min=1e-4, power=0.9, end=max_iters, by_epoch=False)
]
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=max_iters, val_interval=100)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=25, log_metric_by_epoch=False),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=max_iters))
randomness = dict(seed=0)
