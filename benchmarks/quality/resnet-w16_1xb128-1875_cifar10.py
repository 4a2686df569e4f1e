# A small ResNet on 10,000 images of CIFAR-10: 24 passes.
custom_imports = dict(
    imports=['benchmarks.quality.classification'], allow_failed_imports=False)
model = dict(
    type='Classifier',
    channels=64,
    num_classes=10,
    bfloat16=False,
    data_preprocessor=dict(
        type='CropAndFlip',
        padding=4,
        mean=[125.307, 122.961, 113.8575],
        std=[51.5865, 50.847, 51.255]),
    backbone=dict(
        type='ResNetOfSmallImages',
        depth=18,
        num_stages=3,
        stem_channels=16,
        base_channels=16,
        strides=(1, 2, 2),
        dilations=(1, 1, 1),
        out_indices=(2, )))
train_dataloader = dict(
    batch_size=128,
    num_workers=0,
    dataset=dict(type='PackedImages', data_root='', split='train'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    collate_fn=dict(type='default_collate'))
val_dataloader = dict(
    batch_size=2000,
    num_workers=0,
    dataset=dict(type='PackedImages', data_root='', split='test'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='default_collate'))
val_evaluator = dict(type='Accuracy')
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(
        type='SGD', lr=0.4, momentum=0.9, weight_decay=0.0005, nesterov=True))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=150, by_epoch=False),
    dict(
        type='CosineAnnealingLR',
        T_max=1725,
        begin=150,
        end=1875,
        by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=1875)
val_cfg = dict(type='ValLoop')
