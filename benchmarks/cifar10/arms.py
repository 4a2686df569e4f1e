# Copyright (c) mmib contributors. All rights reserved.
"""The arms of the comparison on CIFAR-10, and the order of their cells.

Each arm is the config of the full training, changed by the arguments of
``compare.arms.change``. ``rate`` names the arm whose learning rate it
has: the best of :data:`RATES` for it on held-out images. All that prune share
the rate of ``random``, which knows nothing of the images.
"""
RATES = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
TUNED = ('full', 'short', 'random')
TUNING_SEEDS = (100, 101)
# Passes over the images of the full training. More are nearer to saturation.
PASSES, MORE_PASSES = 24, 72

RATIO = 0.6
RANDOM = dict(type='RandomPruning')
NEYMAN = dict(type='Neyman')


def _plain(ratio: float, rate: str = 'short') -> dict:
    return dict(rate=rate, shorten=dict(ratio=ratio))


def _pruned(policy: dict, ratio: float = RATIO, **hook) -> dict:
    return dict(
        rate='random', convert=dict(ratio=ratio, policy=policy, **hook))


def _mean(iters: float = 0.8, delta: float = 0.85, **policy) -> dict:
    policy = dict(type='MeanThreshold', **policy)
    return _pruned(policy, iters, delta=delta)


ARMS = dict(
    # The training to compare with, and one that is as short as the others.
    full=dict(rate='full'),
    short=_plain(RATIO),
    # With the steps of a training that prunes: its rate, times the mean weight
    # from the second pass until annealing.
    short_lr=dict(
        _plain(RATIO, rate='random'), lr=dict(factor=1.9, delta=0.85)),
    random=_pruned(RANDOM),
    tiers=_pruned(dict(type='QuantileTiers')),
    # The weights of the tiers, dealt to images at random.
    tiers_shuffled=_pruned(dict(type='ShuffledTiers')),
    budget=_pruned(dict(type='Budget')),
    neyman=_pruned(NEYMAN),
    # At the rate of the full training, as a conversion has it.
    random_full_rate=dict(_pruned(RANDOM), rate='full'),
    neyman_full_rate=dict(_pruned(NEYMAN), rate='full'),
    # The paper's first policy at its 80 %, and its control.
    mean=_mean(),
    short_80=_plain(0.8),
    # The same with the official package: see research/cifar10/official.py.
    official=_mean(),
    # Hard selection without weights and annealing, as Raju et al. (2021).
    epsilon_greedy=_pruned(
        dict(type='EpsilonGreedy', keep=RATIO, period=2), delta=1, ema=0.8),
    ucb=_pruned(
        dict(type='UpperConfidenceBound', keep=RATIO, period=2), delta=1),
    # No other images than those of the largest errors after a tenth of the
    # full training, in the mean over five seeds, as Paul et al. (2021).
    el2n=dict(_plain(RATIO), subset=dict(keep=RATIO, part=0.1, seeds=5)),
    # The paper's ablations.
    mean_no_rescale=_mean(rescale=False),
    mean_no_annealing=_mean(delta=1),
    mean_neither=_mean(rescale=False, delta=1),
    above_mean=_pruned(dict(type='AboveMean'), ratio=0.8),
    # Other shares below the mean, which save in proportion.
    mean_25=_mean(0.9, ratio=0.25),
    short_90=_plain(0.9),
    mean_75=_mean(0.7, ratio=0.75),
    short_70=_plain(0.7))

MAIN = ('full', 'short', 'random', 'tiers', 'neyman', 'short_lr')
OTHERS = ('tiers_shuffled', 'budget', 'mean', 'short_80', 'el2n',
          'epsilon_greedy', 'ucb', 'random_full_rate', 'neyman_full_rate')
ABLATIONS = ('mean_no_rescale', 'mean_no_annealing', 'mean_neither',
             'above_mean', 'mean_25', 'short_90', 'mean_75', 'short_70')
# Passes, arms and seeds: what matters most comes first.
ORDER = (
    (PASSES, MAIN, range(5)),
    (PASSES, OTHERS, range(3)),
    (MORE_PASSES, MAIN, range(5)),
    (PASSES, OTHERS, range(3, 5)),
    (PASSES, ABLATIONS, range(3)),
    (PASSES, MAIN, range(5, 8)),
    (PASSES, ABLATIONS, range(3, 5)),
    (MORE_PASSES, MAIN, range(5, 8)),
)

# Those of networks other than the ResNet, whose optimizer is AdamW: with the
# weights of the policies, and with these divided by their mean.
OTHER_ARMS = dict(
    ARMS,
    random=_pruned(RANDOM, normalize=False),
    neyman=_pruned(NEYMAN, normalize=False),
    random_mean1=_pruned(RANDOM, normalize=True))
# If no others are chosen.
OTHER_NETWORKS, OTHER_SEEDS = ('full', 'short', 'random', 'neyman'), 3
