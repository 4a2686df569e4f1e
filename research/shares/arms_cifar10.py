# Copyright (c) mmib contributors. All rights reserved.
"""CIFAR-10 in shares of the iterations: plain, pruned by Neyman, and at
random.

The learning rates are the best ones of ``benchmarks.cifar10``: of the full
training, which pruned trainings keep, and of the plain one in 60 %. The plain
trainings in 60 to 90 %, and the pruned ones in 60 %, are those of
research/cifar10.
"""
FULL_RATE, SHORT_RATE = 0.4, 0.8
TUNED = ()


def _pruned(policy: str, percent: int) -> dict:
    return dict(
        rate=FULL_RATE,
        convert=dict(ratio=percent / 100, policy=dict(type=policy)))


ARMS = {
    f'short_{percent}': dict(
        rate=SHORT_RATE, shorten=dict(ratio=percent / 100))
    for percent in (50, 40)
}
for _percent in (90, 80, 70, 50, 40):
    ARMS[f'neyman_{_percent}'] = _pruned('Neyman', _percent)
    ARMS[f'random_{_percent}'] = dict(
        rate=FULL_RATE,
        convert=dict(
            ratio=_percent / 100, policy=dict(type='Neyman', num_strata=1)))
PRUNED = tuple(arm for arm in ARMS if not arm.startswith('short'))
ORDER = ((24, tuple(ARMS), range(3)), (24, ('short_50', 'short_40'),
                                       range(3, 5)))
