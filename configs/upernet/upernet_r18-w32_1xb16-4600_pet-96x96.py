# The small UperNet of research/camvid on Oxford-IIIT Pet at 128 x 128, all
# PNG, 20 passes over 3,680 images. The data lie as in the public repository
# Mohammed14324/Pet-image-segmentation: train/ and test/ with images/ and
# masks/, whose numbers are those of the classes, from 0.
_base_ = './upernet_r18-w32_1xb8-2k_camvid-72x96.py'
model = dict(
    data_preprocessor=dict(size=(96, 96)),
    decode_head=dict(num_classes=3),
    auxiliary_head=dict(num_classes=3))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(
        type='RandomResize',
        scale=(128, 128),
        ratio_range=(0.8, 1.5),
        keep_ratio=True),
    dict(type='RandomCrop', crop_size=(96, 96), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs')
]
pet = dict(
    data_root='data/pet',
    metainfo=dict(
        classes=('pet', 'background', 'border'),
        palette=[[220, 20, 60], [40, 40, 40], [250, 170, 30]]),
    reduce_zero_label=False)
train_dataloader = dict(
    batch_size=16,
    dataset=dict(
        data_prefix=dict(img_path='train/images', seg_map_path='train/masks'),
        pipeline=train_pipeline,
        **pet))
val_dataloader = dict(
    dataset=dict(
        data_prefix=dict(img_path='test/images', seg_map_path='test/masks'),
        pipeline=[train_pipeline[0], train_pipeline[1], train_pipeline[-1]],
        **pet))
test_dataloader = val_dataloader
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=100, by_epoch=False),
    dict(
        type='PolyLR',
        eta_min=0,
        power=0.9,
        begin=100,
        end=4600,
        by_epoch=False)
]
train_cfg = dict(max_iters=4600, val_interval=920)
default_hooks = dict(checkpoint=dict(interval=920, save_last=True))
