# The first policy of the paper in place of the default one.
_base_ = './upernet_r50_4xb4-64k-infobatch_ade20k-512x512.py'
custom_hooks = [
    dict(
        type='InfoBatchHook',
        policy=dict(type='MeanThreshold', ratio=0.5),
        delta=0.85)
]
