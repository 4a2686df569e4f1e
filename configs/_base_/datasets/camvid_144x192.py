# CamVid with 11 classes in the folder layout of ADE20K: images/ and
# annotations/ with training/, validation/ and test/; mask 0 is ignored.
# `validation` is one short clip, so the evaluation is on `test`.
_base_ = './ade20k_layout.py'
data_root = 'data/camvid'
crop_size = (144, 192)
metainfo = dict(
    classes=('sky', 'building', 'pole', 'road', 'pavement', 'tree',
             'sign_symbol', 'fence', 'car', 'pedestrian', 'bicyclist'),
    palette=[[128, 128, 128], [128, 0, 0], [192, 192, 128], [128, 64, 128],
             [60, 40, 222], [128, 128, 0], [192, 128, 128], [64, 64, 128],
             [64, 0, 128], [64, 64, 0], [0, 128, 192]])
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(
        type='RandomResize',
        scale=(240, 180),
        ratio_range=(0.8, 1.5),
        keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(240, 180), keep_ratio=True),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs')
]
train_dataloader = dict(
    dataset=dict(
        data_root=data_root, metainfo=metainfo, pipeline=train_pipeline))
val_dataloader = dict(
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        data_prefix=dict(
            img_path='images/test', seg_map_path='annotations/test'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader
