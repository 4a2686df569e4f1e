# A small Swin on 4,000 images of CIFAR-10: 10 passes.
_base_ = './resnet-w16_1xb128-1875_cifar10.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='SwinTransformer',
        arch=dict(embed_dims=48, depths=[2, 2], num_heads=[3, 6]),
        img_size=32,
        patch_size=4,
        window_size=4,
        out_indices=(1, )),
    head=dict(
        in_channels=96,
        init_cfg=None,
        loss=dict(
            _delete_=True,
            type='LabelSmoothLoss',
            label_smooth_val=0.1,
            mode='original')),
    init_cfg=[
        dict(type='TruncNormal', layer='Linear', std=0.02, bias=0.),
        dict(type='Constant', layer='LayerNorm', val=1., bias=0.)
    ])
train_dataloader = dict(
    batch_size=64,
    dataset=dict(indices=[i for i in range(10000) if i % 5 in (0, 2)]))
optim_wrapper = dict(
    optimizer=dict(
        _delete_=True,
        type='AdamW',
        lr=0.001,
        weight_decay=0.05,
        betas=(0.9, 0.999)),
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        bias_decay_mult=0.,
        flat_decay_mult=0.,
        custom_keys={
            '.relative_position_bias_table': dict(decay_mult=0.),
        }))
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
evaluation = dict(metric='accuracy', step=5)
