# What the choice of images is worth: the policies, and what explains them. All
# arms cost 60 % of the full training.
ratio = 0.6
arms = dict(
    full=dict(seeds=8),
    short=dict(seeds=8, shorten=dict(ratio=ratio)),
    # The short baseline with the steps of a pruned training: times the mean
    # weight, but in the first pass and in annealing.
    short_lr=dict(
        seeds=8,
        shorten=dict(ratio=ratio),
        lr_factors=[
            dict(factor=1.9, begin=46, end=1020),
            dict(factor=1, begin=0, end=47),
            dict(factor=1, begin=1020, end=2000)
        ]),
    random=dict(
        seeds=8, convert=dict(ratio=ratio, policy=dict(type='RandomPruning'))),
    # The weights of the tiers, dealt to images at random.
    tiers_shuffled=dict(
        seeds=8, convert=dict(ratio=ratio, policy=dict(type='ShuffledTiers'))),
    tiers=dict(
        seeds=8, convert=dict(ratio=ratio, policy=dict(type='QuantileTiers'))),
    budget=dict(
        seeds=8, convert=dict(ratio=ratio, policy=dict(type='Budget'))),
    neyman=dict(
        seeds=8,
        convert=dict(ratio=ratio, policy=dict(type='Neyman',
                                              full_iters=2000))),
    neyman_gradient=dict(
        seeds=8,
        convert=dict(
            ratio=ratio,
            policy=dict(type='Neyman', full_iters=2000),
            score='gradient',
            ema=0.8)))
