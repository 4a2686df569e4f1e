_base_ = (
    __import__('mmseg').__path__[0] +
    '/.mim/configs/upernet/upernet_r18_4xb4-80k_ade20k-512x512.py')

# The model: the number of classes and the size of the crops. A small number
# of channels makes it fast enough for a CPU.
model = dict(
    pretrained=None,  # Remove this line to begin with ImageNet's weights.
    data_preprocessor=dict(size=(64, 64)),
    decode_head=dict(num_classes=3, channels=64),
    auxiliary_head=dict(num_classes=3, channels=64))

# The data. Masks have the name of their image and one channel: 0 =
# unlabelled, 1 = wall, 2 = window, 3 = door. With `reduce_zero_label=True` 0
# is ignored, and 1 is the first class. If 0 is your first class, set False.
# 255 is always ignored.
data = dict(
    type='BaseSegDataset',
    data_root='data/facades',
    metainfo=dict(
        classes=('wall', 'window', 'door'),
        palette=[[120, 120, 120], [60, 60, 200], [200, 60, 60]]),
    img_suffix='.jpg',
    seg_map_suffix='.png',
    reduce_zero_label=True)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomCrop', crop_size=(64, 64), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]
# `_delete_=True` drops what the base config has in this place.
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    dataset=dict(
        _delete_=True,
        **data,
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'),
        pipeline=train_pipeline))
val_dataloader = dict(
    num_workers=2,
    dataset=dict(
        _delete_=True,
        **data,
        data_prefix=dict(
            img_path='images/validation',
            seg_map_path='annotations/validation'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader

# The schedule of the baseline. `--infobatch` shortens it.
train_cfg = dict(max_iters=2000, val_interval=500)
param_scheduler = [
    dict(
        type='PolyLR',
        eta_min=1e-4,
        power=0.9,
        begin=0,
        end=2000,
        by_epoch=False)
]
default_hooks = dict(checkpoint=dict(interval=500))
