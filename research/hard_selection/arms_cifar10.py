# Copyright (c) mmib contributors. All rights reserved.
"""Hard selection on CIFAR-10, in 60 % of the iterations. Each arm has a
learning rate of its own."""
from . import tempered  # noqa: F401

RATES = (0.2, 0.4, 0.8)
TUNING_SEEDS = (100, )
RATIO = 0.6

ARMS = dict(
    short=dict(shorten=dict(ratio=RATIO)),
    epsilon_greedy=dict(
        convert=dict(
            ratio=RATIO,
            policy=dict(type='EpsilonGreedy', keep=RATIO, period=2),
            delta=1,
            ema=0.8)),
    # Steps are as long as those of the plain training.
    tempered=dict(
        convert=dict(
            ratio=RATIO, policy=dict(type='Tempered'), normalize=True)))
for _name, _arm in ARMS.items():
    _arm['rate'] = _name
TUNED = tuple(ARMS)
ORDER = ((24, TUNED, range(5)), )
