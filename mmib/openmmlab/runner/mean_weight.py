# Copyright (c) mmib contributors. All rights reserved.
"""The mean weight of a plan, from the optimizer of a Runner or a config."""
from typing import Any, Iterator, Optional, Tuple

from torch.nn.utils import clip_grad_norm_

from ...run.mean_weight import MeanWeight, mean_weight_for
from ..registry import type_name


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
    return mean_weight_for(of_wrapper(optim_wrapper))


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
