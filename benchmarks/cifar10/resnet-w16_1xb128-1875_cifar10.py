# A small ResNet on 10,000 images of CIFAR-10: 24 passes.
default_scope = 'mmpretrain'
custom_imports = dict(
    imports=['mmpretrain.models', 'benchmarks.cifar10.data'],
    allow_failed_imports=False)
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='CropAndFlip',
        padding=4,
        num_classes=10,
        mean=[125.307, 122.961, 113.8575],
        std=[51.5865, 50.847, 51.255]),
    backbone=dict(
        type='ResNet_CIFAR',
        depth=18,
        num_stages=3,
        stem_channels=16,
        base_channels=16,
        strides=(1, 2, 2),
        dilations=(1, 1, 1),
        out_indices=(2, )),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=64,
        loss=dict(type='CrossEntropyLoss')))
train_dataloader = dict(
    batch_size=128,
    num_workers=0,
    dataset=dict(
        type='PackedImages',
        data_root='data/cifar10/cifar10.npz',
        split='train'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    collate_fn=dict(type='as_it_is'))
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(
        type='SGD', lr=0.2, momentum=0.9, weight_decay=0.0005, nesterov=True))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=150, by_epoch=False),
    dict(
        type='CosineAnnealingLR',
        eta_min=0,
        T_max=1725,
        begin=150,
        end=1875,
        by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=1875)
# The cells are evaluated by a hook of theirs, and nothing else is kept.
default_hooks = dict(
    runtime_info=None,
    timer=None,
    sampler_seed=None,
    logger=None,
    checkpoint=None)
env_cfg = dict(cudnn_benchmark=False)
log_level = 'WARNING'
