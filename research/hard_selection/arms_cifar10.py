# Copyright (c) mmib contributors. All rights reserved.
"""Hard selection on CIFAR-10, in 60 % of the iterations. Each arm has a
learning rate of its own."""
from . import tempered  # noqa: F401

RATES = (0.2, 0.4, 0.8, 1.6)
TUNING_SEEDS = (100, )
RATIO = 0.6


def _tempered(**policy) -> dict:
    # Steps are as long as those of the plain training.
    return dict(
        convert=dict(
            ratio=RATIO,
            policy=dict(type='Tempered', **policy),
            normalize=True))


ARMS = dict(
    full=dict(),
    short=dict(shorten=dict(ratio=RATIO)),
    epsilon_greedy=dict(
        convert=dict(
            ratio=RATIO,
            policy=dict(type='EpsilonGreedy', keep=RATIO, period=2),
            delta=1,
            ema=0.8)),
    tempered=_tempered(),
    tempered_half=_tempered(power=0.5))
for _name, _arm in ARMS.items():
    _arm['rate'] = _name
TUNED = tuple(ARMS)
ORDER = ((24, tuple(ARMS)[1:], range(5)), (24, ('full', ), range(3)))
