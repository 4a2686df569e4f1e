# The arms that run.py compares. Each one is the config of the full training,
# as it is or changed by mmib.shorten or mmib.convert. All cost 60 % of its
# iterations, but for the mean threshold, its opposite and their control, which
# run 80 % as in the paper.
ratio = 0.6
tiers = dict(type='QuantileTiers')
arms = dict(
    # The training to compare with.
    full=dict(seeds=8),
    # The decisive control: as short as the pruned ones, without pruning.
    short=dict(seeds=8, shorten=dict(ratio=ratio)),
    short_80=dict(seeds=3, shorten=dict(ratio=0.8)),
    # InfoBatch.
    tiers=dict(seeds=8, convert=dict(ratio=ratio, policy=tiers)),
    budget=dict(
        seeds=8, convert=dict(ratio=ratio, policy=dict(type='Budget'))),
    mean=dict(
        seeds=3, convert=dict(ratio=0.8, policy=dict(type='MeanThreshold'))),
    # What each part of it buys.
    random=dict(
        seeds=8, convert=dict(ratio=ratio, policy=dict(type='RandomPruning'))),
    no_rescale=dict(
        seeds=3,
        convert=dict(ratio=ratio, policy=dict(rescale=False, **tiers))),
    no_annealing=dict(
        seeds=3, convert=dict(ratio=ratio, delta=1, policy=tiers)),
    above_mean=dict(
        seeds=3, convert=dict(ratio=0.8, policy=dict(type='AboveMean'))),
    ema=dict(seeds=3, convert=dict(ratio=ratio, policy=tiers, ema=0.8)),
    # Hard selection of the highest scores, without weights and annealing, as
    # Raju et al. (2021) have it.
    epsilon_greedy=dict(
        seeds=3,
        convert=dict(
            ratio=ratio,
            delta=1,
            policy=dict(type='EpsilonGreedy', keep=ratio, period=2),
            ema=0.8)),
    ucb=dict(
        seeds=3,
        convert=dict(
            ratio=ratio,
            delta=1,
            policy=dict(type='UpperConfidenceBound', keep=ratio, period=2))))
