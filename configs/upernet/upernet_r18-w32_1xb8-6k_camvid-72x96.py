# The follow-up of research/camvid: three times the iterations of its setting,
# 131 virtual epochs.
_base_ = './upernet_r18-w32_1xb8-2k_camvid-72x96.py'
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=100, by_epoch=False),
    dict(
        type='PolyLR',
        eta_min=0,
        power=0.9,
        begin=100,
        end=6000,
        by_epoch=False)
]
train_cfg = dict(max_iters=6000, val_interval=1200)
