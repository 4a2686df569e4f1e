# InfoBatch: 60 % of the iterations of the 80k schedule, as
# `mmib convert` makes it with `--ratio 0.6`.
_base_ = __import__('mmseg').__path__[
    0] + '/.mim/configs/upernet/upernet_r50_4xb4-80k_ade20k-512x512.py'
custom_imports = dict(imports=['mmib'], allow_failed_imports=False)
train_dataloader = dict(sampler=dict(type='InfoBatchSampler'))
custom_hooks = [
    dict(
        type='InfoBatchHook',
        policy=dict(type='Neyman', ratio=0.6),
        delta=0.85)
]
train_cfg = dict(max_iters=48000, val_interval=4800)
param_scheduler = [
    dict(
        type='PolyLR',
        eta_min=1e-4,
        power=0.9,
        begin=0,
        end=48000,
        by_epoch=False)
]
default_hooks = dict(checkpoint=dict(interval=4800))
