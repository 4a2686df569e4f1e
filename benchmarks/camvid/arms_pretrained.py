# The arms for a full training of 1000 iterations.
ratio = 0.6
arms = dict(
    full=dict(seeds=5),
    short_lr=dict(
        seeds=5,
        shorten=dict(ratio=ratio),
        lr_factors=[
            dict(factor=1.9, begin=46, end=510),
            dict(factor=1, begin=0, end=47),
            dict(factor=1, begin=510, end=1000)
        ]),
    short=dict(seeds=5, shorten=dict(ratio=ratio)),
    random=dict(
        seeds=5, convert=dict(ratio=ratio, policy=dict(type='RandomPruning'))),
    tiers=dict(
        seeds=5, convert=dict(ratio=ratio, policy=dict(type='QuantileTiers'))),
    neyman=dict(
        seeds=5,
        convert=dict(ratio=ratio, policy=dict(type='Neyman',
                                              full_iters=1000))))
