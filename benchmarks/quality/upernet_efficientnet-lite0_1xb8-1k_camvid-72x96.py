# A small UperNet on CamVid at 160 x 120 with a backbone that knows ImageNet:
# 21.8 passes.
_base_ = '../../configs/upernet/upernet_r18-w32_1xb8-2k_camvid-72x96.py'
custom_imports = dict(imports='benchmarks.quality.camvid')
model = dict(
    data_preprocessor=dict(mean=[127.] * 3, std=[128.] * 3),
    backbone=dict(_delete_=True, type='EfficientNetLite0'),
    decode_head=dict(in_channels=[24, 40, 112, 320]),
    auxiliary_head=dict(in_channels=112))
optim_wrapper = dict(optimizer=dict(lr=0.05))
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
train_cfg = dict(max_iters=1000, val_interval=200)
