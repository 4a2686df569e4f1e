# The final policy of the paper in place of the default one.
_base_ = './upernet_r50_4xb4-48k-infobatch_ade20k-512x512.py'
custom_hooks = [
    dict(
        type='InfoBatchHook',
        policy=dict(
            type='QuantileTiers', quantiles=(0.2, 0.85), ratios=(0.75, 0.5)),
        delta=0.85)
]
