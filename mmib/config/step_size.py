# Copyright (c) mmib contributors. All rights reserved.
"""Whether weights make steps longer: what decides the mean weight of a plan.

The method's weights have a mean of 1 / kept share. An optimizer whose step is
in proportion to the gradient makes steps longer by this mean. An optimizer
that divides by the size of past gradients makes steps as long as before in the
long run. Its steps are too long where pruning begins and too short where
annealing begins, until past gradients are forgotten (``docs/method.md``). With
such an optimizer the weights of a plan are divided by their mean.
"""
from typing import Any, Iterator, List, NamedTuple, Optional

from torch.nn.utils import clip_grad_norm_

from .parts import type_name

# Optimizers whose steps are in proportion to the gradient, also with momentum.
_PROPORTIONAL = ('ASGD', 'SGD')
# Optimizers whose steps stay the same where all gradients are longer.
_DIVIDING = ('Adadelta', 'Adafactor', 'Adagrad', 'Adam', 'AdamW', 'Adamax',
             'LAMB', 'LARS', 'Lamb', 'Lion', 'Muon', 'NAdam', 'RAdam',
             'RMSprop', 'Rprop', 'SparseAdam')


class Optimizer(NamedTuple):
    """What decides the length of the steps of an optimizer.

    Args:
        kind (str): Its class.
        clips (bool): Whether gradients are clipped by their norm.
    """

    kind: str
    clips: bool


class MeanWeight(NamedTuple):
    """Which mean the weights of a plan have.

    Args:
        is_one (bool): Whether the mean is 1. If not, it is 1 / kept share, as
            in the method.
        why (str): The reason.
    """

    is_one: bool
    why: str


def decide(normalize: Optional[bool],
           optimizers: List[Optimizer]) -> MeanWeight:
    """Decide which mean the weights of a plan have.

    Args:
        normalize (bool, optional): The argument of InfoBatchHook. None decides
            by the optimizers.
        optimizers (list[Optimizer]): The optimizers of the training. Of
            several, one that needs a mean of 1 decides.
    """
    if normalize is not None:
        return MeanWeight(normalize, f'`normalize={normalize}`')
    for kind, clips in optimizers:
        if kind not in _PROPORTIONAL:
            return MeanWeight(
                True, f'{kind} divides by the size of gradients'
                if kind in _DIVIDING else
                f'it is not known how the steps of {kind} follow the gradient')
        if clips:
            return MeanWeight(True, '`clip_grad` limits the norm of gradients')
    kinds = ' and '.join(sorted({kind for kind, _ in optimizers}))
    return MeanWeight(
        False, f'the steps of {kinds or "the optimizer"} are in proportion to '
        'the gradient')


def optimizers_of(optim_wrapper: Any) -> List[Optimizer]:
    """The optimizers of an OptimWrapper, an OptimWrapperDict, or the config of
    one."""
    return list(
        _of_config(optim_wrapper)
        if isinstance(optim_wrapper, dict) else _of_built(optim_wrapper))


def _of_built(wrapper: Any) -> Iterator[Optimizer]:
    if hasattr(wrapper, 'optim_wrappers'):
        for each in wrapper.optim_wrappers.values():
            yield from _of_built(each)
    else:
        yield Optimizer(
            type(wrapper.optimizer).__name__,
            getattr(wrapper, 'clip_func', None) is clip_grad_norm_)


def _of_config(cfg: dict) -> Iterator[Optimizer]:
    """The optimizers of a config, also where a constructor makes several."""
    optimizer = cfg.get('optimizer')
    if isinstance(optimizer, dict):
        clip_grad = cfg.get('clip_grad') or dict(type='none')
        yield Optimizer(
            type_name(optimizer),
            clip_grad.get('type', 'norm') == 'norm')
    for key, value in cfg.items():
        if isinstance(value, dict) and key != 'optimizer':
            yield from _of_config(value)
