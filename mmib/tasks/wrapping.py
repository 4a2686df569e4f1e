# Copyright (c) mmib contributors. All rights reserved.
"""What the tasks share: which class of a table a module is, and its losses in
:class:`~mmib.InfoBatchLoss`."""
from typing import Dict, Iterator, Optional, Tuple, Type, TypeVar

import torch.nn as nn

from ..batch import BatchContext
from ..losses import InfoBatchLoss, check_loss

T = TypeVar('T')


def known(module: nn.Module, table: Dict[Type, T],
          methods: Tuple[str, ...]) -> Optional[T]:
    """What a table has of the nearest class of a module.

    Args:
        module (nn.Module): A model or head.
        table (dict[type, Any]): What is known of each class.
        methods (tuple[str]): A subclass that has another one of these computes
            its losses in its own way.

    Returns:
        Any, optional: None of a class that isn't in the table, and of a
        subclass that computes its losses in its own way.
    """
    for kind in type(module).__mro__:
        if kind in table:
            overrides = any(
                getattr(type(module), method, None) is not getattr(
                    kind, method, None) for method in methods)
            return None if overrides else table[kind]
    return None


def wrap(loss: nn.Module, batch: BatchContext) -> InfoBatchLoss:
    """Wrap a loss, or take the one that was wrapped before.

    Args:
        loss (nn.Module): A loss.
        batch (BatchContext): Weights and scores of the batch in training.

    Returns:
        InfoBatchLoss: The wrapped loss.

    Raises:
        ValueError: If mmib doesn't know how the loss falls into images.
    """
    if not isinstance(loss, InfoBatchLoss):
        loss = InfoBatchLoss(loss)
    check_loss(loss.loss)
    loss.batch = batch
    return loss


def unwrapped(model: nn.Module) -> Iterator[Tuple[str, nn.Module]]:
    """Name of each module in a model that isn't in a wrapped loss, and the
    module.

    Args:
        model (nn.Module): A model of which the losses were wrapped.
    """
    inside = tuple(f'{name}.' for name, module in model.named_modules()
                   if isinstance(module, InfoBatchLoss))
    for name, module in model.named_modules():
        if not (isinstance(module, InfoBatchLoss) or name.startswith(inside)):
            yield name, module
