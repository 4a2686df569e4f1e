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
        lr=dict(factor=1.9, begin=46, delta=0.85)),
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
        seeds=8, convert=dict(ratio=ratio, policy=dict(type='Neyman'))),
    neyman_gradient=dict(
        seeds=8,
        convert=dict(
            ratio=ratio, policy=dict(type='Neyman'), score='gradient',
            ema=0.8)))
