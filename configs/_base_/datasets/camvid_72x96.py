# CamVid as benchmarks/quality/camvid.py copies it: 160 x 120, all PNG. It
# fits a comparison of many trainings on a CPU.
_base_ = './camvid_144x192.py'
data_root = 'data/camvid-160x120'
crop_size = (72, 96)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(
        type='RandomResize',
        scale=(160, 120),
        ratio_range=(0.8, 1.5),
        keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs')
]
train_dataloader = dict(
    dataset=dict(
        data_root=data_root, img_suffix='.png', pipeline=train_pipeline))
val_dataloader = dict(
    dataset=dict(
        data_root=data_root, img_suffix='.png', pipeline=test_pipeline))
test_dataloader = val_dataloader
