# The scenes that tools/make_demo_data.py draws, in the layout of ADE20K.
_base_ = './ade20k_layout.py'
data_root = 'data/demo'
crop_size = (64, 64)
metainfo = dict(
    classes=('sky', 'ground', 'disc', 'square', 'triangle'),
    palette=[[120, 190, 230], [70, 110, 60], [220, 50, 50], [60, 60, 200],
             [230, 210, 40]])
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(
        type='RandomResize',
        scale=(96, 96),
        ratio_range=(0.75, 1.5),
        keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs')
]
train_dataloader = dict(
    dataset=dict(
        data_root=data_root, metainfo=metainfo, pipeline=train_pipeline))
val_dataloader = dict(
    dataset=dict(
        data_root=data_root, metainfo=metainfo, pipeline=test_pipeline))
test_dataloader = val_dataloader
