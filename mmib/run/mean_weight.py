# Copyright (c) mmib contributors. All rights reserved.
"""The mean weight of a plan, which depends on the optimizer.

The weights of the method have a mean of 1 / kept share. If the steps of an
optimizer are proportional to the gradient, they get longer by this factor. An
adaptive optimizer makes steps too long when pruning begins and too short when
annealing begins, until it has forgotten past gradients (``docs/method.md``).
With such an optimizer, the weights of a plan are divided by their mean.
"""
from typing import Iterable, NamedTuple, Tuple

# Optimizers whose steps are proportional to the gradient, also with momentum.
_PROPORTIONAL = ('ASGD', 'SGD')


class MeanWeight(NamedTuple):
    """A decision on the mean weight of plans.

    Args:
        is_one (bool): Whether the mean is 1. If not, it is 1 / kept share, as
            in the method.
        why (str): The reason.
    """

    is_one: bool
    why: str


def mean_weight_for(optimizers: Iterable[Tuple[str, bool]]) -> MeanWeight:
    """Decide which mean the weights of a plan have. One optimizer that needs a
    mean of 1 is enough.

    Args:
        optimizers (Iterable[tuple[str, bool]]): The class of each optimizer,
            and whether its gradients are clipped by their norm.
    """
    kinds = set()
    for kind, clips in optimizers:
        if kind not in _PROPORTIONAL:
            return MeanWeight(
                True, f'the steps of {kind} are not known to be in proportion '
                'to the gradient')
        if clips:
            return MeanWeight(True, '`clip_grad` limits the norm of gradients')
        kinds.add(kind)
    names = ' and '.join(sorted(kinds)) or 'the optimizer'
    return MeanWeight(
        False, f'the steps of {names} are in proportion to the gradient')
