# The training of research/camvid with a small SegFormer and AdamW, from
# scratch and in half the iterations: 21.8 virtual epochs.
_base_ = '../../configs/upernet/upernet_r18-w32_1xb8-2k_camvid-72x96.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='MixVisionTransformer',
        embed_dims=16,
        num_layers=[1, 1, 1, 1],
        num_heads=[1, 2, 4, 8],
        patch_sizes=[7, 3, 3, 3],
        sr_ratios=[8, 4, 2, 1]),
    decode_head=dict(
        _delete_=True,
        type='SegformerHead',
        in_channels=[16, 32, 64, 128],
        in_index=[0, 1, 2, 3],
        channels=64,
        dropout_ratio=0.1,
        num_classes=11,
        norm_cfg=dict(type='BN', requires_grad=True),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss')),
    auxiliary_head=None)
optim_wrapper = dict(
    optimizer=dict(
        _delete_=True,
        type='AdamW',
        lr=0.004,
        weight_decay=0.01,
        betas=(0.9, 0.999)))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=100, by_epoch=False),
    dict(
        type='PolyLR',
        eta_min=0,
        power=0.9,
        begin=100,
        end=1000,
        by_epoch=False)
]
train_cfg = dict(max_iters=1000, val_interval=500)
