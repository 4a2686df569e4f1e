# CamVid with a pretrained backbone in shares of the iterations: plain, pruned
# by Neyman, and at random. Pruned arms have the learning rate of the config.
# Those of 60 % are in research/camvid. The rate of the plain arms lies between
# the best one of the full training and the best one of its half.
full_rate, half_rate = 0.1, 0.05
steps = dict(factor=1.9, begin=46, delta=0.85)
arms = dict(
    full=dict(seeds=3, rate=full_rate),
    # As long steps as those of pruned trainings, at the same rate: longer by
    # the mean weight, but in the first pass and in annealing.
    long_steps=dict(seeds=5, rate=0.05, shorten=dict(ratio=0.6), lr=steps),
    # And with weights that decay as fast as there: they have no weight.
    long_steps_keep_decay=dict(
        seeds=5,
        rate=0.05,
        shorten=dict(ratio=0.6),
        lr=dict(steps, keep_decay=True)),
    # Pruning at random without longer steps.
    random_normalized=dict(
        seeds=5,
        convert=dict(
            ratio=0.6, policy=dict(type='RandomPruning'), normalize=True)))
for percent in (90, 80, 70, 60, 50, 40):
    ratio = percent / 100
    rate = half_rate + max(ratio - 0.5, 0) / 0.5 * (full_rate - half_rate)
    arms[f'short_{percent}'] = dict(
        # The one of 60 % is compared with hard selection, too.
        seeds=5 if percent == 60 else 3,
        rate=round(rate, 3),
        shorten=dict(ratio=ratio))
    if percent != 60:
        arms[f'neyman_{percent}'] = dict(
            seeds=3, convert=dict(ratio=ratio, policy=dict(type='Neyman')))
        arms[f'random_{percent}'] = dict(
            seeds=3,
            convert=dict(
                ratio=ratio, policy=dict(type='Neyman', num_strata=1)))
del full_rate, half_rate, steps, percent, ratio, rate
