# Arms for `benchmarks.quality.run --arms-file`.
arms = dict(
    orderdp=dict(convert=dict(policy=dict(type='OrderDP'), delta=1.)),
    orderdp_annealed=dict(convert=dict(policy=dict(type='OrderDP'))),
    oscillating=dict(convert=dict(policy=dict(type='Oscillating'))),
    oscillating_random=dict(
        convert=dict(policy=dict(type='Oscillating', num_strata=1))),
    bls=dict(convert=dict(policy=dict(type='BatchNeyman'), ema=0.7)),
)
