_base_ = (
    __import__('mmpretrain').__path__[0] +
    '/.mim/configs/resnet/resnet18_8xb32_in1k.py')

# The model: the number of classes. A small number of channels makes it fast
# enough for a CPU; the whole ResNet-18 has 64 of them, and 512 in the head.
model = dict(
    backbone=dict(base_channels=16), head=dict(in_channels=128, num_classes=4))
data_preprocessor = dict(num_classes=4)

# The data. These images have 32 x 32 pixels. Photos are usually cropped to 224
# (`scale=224`, `crop_size=224`) after `ResizeEdge` to 256.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=32),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=32, edge='short'),
    dict(type='CenterCrop', crop_size=32),
    dict(type='PackInputs')
]
# `_delete_=True` drops what the base config has in this place.
train_dataloader = dict(
    num_workers=2,
    dataset=dict(
        _delete_=True,
        type='CustomDataset',
        data_root='data/pictures',
        data_prefix='train',
        pipeline=train_pipeline))
val_dataloader = dict(
    num_workers=2,
    dataset=dict(
        _delete_=True,
        type='CustomDataset',
        data_root='data/pictures',
        data_prefix='test',
        pipeline=test_pipeline))
test_dataloader = val_dataloader
# Fewer than five classes have no "top 5".
val_evaluator = dict(topk=(1, ))
test_evaluator = val_evaluator

# The schedule of the baseline. The base config has a learning rate for 256
# images in an iteration, eight times as many.
train_cfg = dict(max_epochs=30)
param_scheduler = dict(milestones=[15, 25])
optim_wrapper = dict(optimizer=dict(lr=0.0125))
default_hooks = dict(checkpoint=dict(interval=10, max_keep_ckpts=1))
