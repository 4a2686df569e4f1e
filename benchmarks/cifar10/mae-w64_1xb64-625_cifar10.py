# A small MAE on 4,000 images of CIFAR-10: 10 passes.
_base_ = './resnet-w16_1xb128-1875_cifar10.py'
model = dict(
    _delete_=True,
    type='MAE',
    data_preprocessor=dict(
        type='CropAndFlip',
        padding=4,
        num_classes=10,
        mean=[125.307, 122.961, 113.8575],
        std=[51.5865, 50.847, 51.255]),
    backbone=dict(
        type='MAEViT',
        arch=dict(
            embed_dims=64, num_layers=4, num_heads=4,
            feedforward_channels=256),
        img_size=32,
        patch_size=4,
        mask_ratio=0.75),
    neck=dict(
        type='MAEPretrainDecoder',
        num_patches=64,
        patch_size=4,
        embed_dim=64,
        decoder_embed_dim=48,
        decoder_depth=1,
        decoder_num_heads=4),
    head=dict(
        type='MAEPretrainHead',
        norm_pix=True,
        patch_size=4,
        loss=dict(type='PixelReconstructionLoss', criterion='L2')),
    init_cfg=[
        dict(type='Xavier', layer='Linear', distribution='uniform'),
        dict(type='Constant', layer='LayerNorm', val=1., bias=0.)
    ])
train_dataloader = dict(
    batch_size=64,
    dataset=dict(indices=[i for i in range(10000) if i % 5 in (0, 2)]))
optim_wrapper = dict(
    optimizer=dict(
        _delete_=True,
        type='AdamW',
        lr=0.002,
        weight_decay=0.05,
        betas=(0.9, 0.95)),
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        bias_decay_mult=0.,
        custom_keys=dict(
            pos_embed=dict(decay_mult=0.),
            mask_token=dict(decay_mult=0.),
            cls_token=dict(decay_mult=0.))))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, begin=0, end=60, by_epoch=False),
    dict(
        type='CosineAnnealingLR',
        eta_min=0,
        T_max=565,
        begin=60,
        end=625,
        by_epoch=False)
]
train_cfg = dict(max_iters=625)
# Every fifth test image.
evaluation = dict(metric='loss', step=5)
