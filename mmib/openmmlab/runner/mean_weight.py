# Copyright (c) mmib contributors. All rights reserved.
"""The mean weight of a plan, which depends on the optimizer.

The weights of the method have a mean of 1 / kept share. If the steps of an
optimizer are proportional to the gradient, they get longer by this factor. An
adaptive optimizer makes steps too long when pruning begins and too short when
annealing begins, until it has forgotten past gradients (``docs/method.md``).
With such an optimizer, the weights of a plan are divided by their mean.
"""
from typing import Any, Iterator, NamedTuple, Optional, Tuple

from torch.nn.utils import clip_grad_norm_

from ..config.parts import type_name

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


def decide_mean_weight(normalize: Optional[bool],
                       optim_wrapper: Any) -> MeanWeight:
    """Decide which mean the weights of a plan have.

    Args:
        normalize (bool, optional): The argument of InfoBatchHook. None decides
            by the optimizers, of which one that needs a mean of 1 is enough.
        optim_wrapper (OptimWrapper, OptimWrapperDict or dict): The optimizer
            wrapper of the run, or its config.
    """
    if normalize is not None:
        return MeanWeight(normalize, f'`normalize={normalize}`')
    is_config = isinstance(optim_wrapper, dict)
    of_wrapper = _of_config if is_config else _of_built
    optimizers = list(of_wrapper(optim_wrapper))
    for kind, clips in optimizers:
        if kind not in _PROPORTIONAL:
            return MeanWeight(
                True, f'the steps of {kind} are not known to be in proportion '
                'to the gradient')
        if clips:
            return MeanWeight(True, '`clip_grad` limits the norm of gradients')
    kinds = ' and '.join(sorted({kind for kind, _ in optimizers}))
    return MeanWeight(
        False, f'the steps of {kinds or "the optimizer"} are in proportion to '
        'the gradient')


def _of_built(wrapper: Any) -> Iterator[Tuple[str, bool]]:
    """Yield the class of each optimizer, and whether its gradients are clipped
    by their norm."""
    if hasattr(wrapper, 'optim_wrappers'):
        for each in wrapper.optim_wrappers.values():
            yield from _of_built(each)
    else:
        yield (type(wrapper.optimizer).__name__,
               getattr(wrapper, 'clip_func', None) is clip_grad_norm_)


def _of_config(cfg: dict) -> Iterator[Tuple[str, bool]]:
    """Yield the same for a config, also where a constructor makes several
    optimizers."""
    optimizer = cfg.get('optimizer')
    if isinstance(optimizer, dict):
        clip_grad = cfg.get('clip_grad') or dict(type='none')
        yield type_name(optimizer), clip_grad.get('type', 'norm') == 'norm'
    for key, value in cfg.items():
        if isinstance(value, dict) and key != 'optimizer':
            yield from _of_config(value)
