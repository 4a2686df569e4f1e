# A small MAE on 4,000 images of CIFAR-10: 10 passes, with the images and the
# schedule of the small Swin.
_base_ = './swin-w48_1xb64-625_cifar10.py'
model = dict(
    type='MAE',
    backbone=dict(
        _delete_=True,
        type='MAEViT',
        arch=dict(
            embed_dims=64, num_layers=4, num_heads=4,
            feedforward_channels=256),
        img_size=32,
        patch_size=4,
        mask_ratio=0.75),
    neck=dict(
        _delete_=True,
        type='MAEPretrainDecoder',
        num_patches=64,
        patch_size=4,
        embed_dim=64,
        decoder_embed_dim=48,
        decoder_depth=1,
        decoder_num_heads=4),
    head=dict(
        _delete_=True,
        type='MAEPretrainHead',
        norm_pix=True,
        patch_size=4,
        loss=dict(type='PixelReconstructionLoss', criterion='L2')),
    init_cfg=[
        dict(type='Xavier', layer='Linear', distribution='uniform'),
        dict(type='Constant', layer='LayerNorm', val=1., bias=0.)
    ])
optim_wrapper = dict(
    optimizer=dict(lr=0.002, betas=(0.9, 0.95)),
    paramwise_cfg=dict(
        _delete_=True,
        norm_decay_mult=0.,
        bias_decay_mult=0.,
        custom_keys=dict(
            pos_embed=dict(decay_mult=0.),
            mask_token=dict(decay_mult=0.),
            cls_token=dict(decay_mult=0.))))
evaluation = dict(metric='loss')
