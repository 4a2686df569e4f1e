# InfoBatch: 60 % of the iterations of the 1k schedule.
_base_ = './upernet_r18_1xb8-1k_camvid-144x192.py'
custom_imports = dict(imports=['mmib'], allow_failed_imports=False)
train_dataloader = dict(sampler=dict(type='InfoBatchSampler'))
custom_hooks = [
    dict(
        type='InfoBatchHook',
        policy=dict(type='Neyman', ratio=0.6),
        delta=0.85)
]
param_scheduler = [
    dict(
        type='PolyLR',
        eta_min=1e-4,
        power=0.9,
        begin=0,
        end=600,
        by_epoch=False)
]
train_cfg = dict(max_iters=600, val_interval=300)
default_hooks = dict(checkpoint=dict(interval=300))
