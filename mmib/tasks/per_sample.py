# Copyright (c) mmib contributors. All rights reserved.
"""Any model of MMEngine that returns its losses sample by sample."""
import functools
from typing import Any, Dict, List, Sequence, Tuple, Union

import torch.nn as nn
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from torch import Tensor

from ..batch import BatchContext, sum_images

Losses = Dict[str, Union[Tensor, List[Tensor]]]


class PerSampleTask:
    """Models whose ``forward(mode='loss')`` returns tensors of shape (B, ...).

    ``BaseModel.parse_losses`` takes the mean of each of them. Here the loss of
    each sample is weighted before that.
    """

    ema = 0.
    scores = ('loss', 'gradient')

    def matches(self, model: nn.Module) -> bool:
        # Models of these return means, and their tasks know more.
        library = type(model).__module__.partition('.')[0]
        return (isinstance(model, BaseModel)
                and library not in ('mmseg', 'mmpretrain', 'mmdet'))

    def attach(self,
               model: nn.Module,
               batch: BatchContext,
               hooks: Sequence[Hook] = ()) -> None:
        assert isinstance(model, BaseModel)
        if getattr(model.parse_losses, 'is_weighted', False):
            return
        parse_losses = model.parse_losses

        @functools.wraps(parse_losses)
        def parse_weighted(losses: Losses) -> Tuple[Tensor, Dict[str, Any]]:
            if batch.weights is not None:
                losses = weighted(losses, batch)
            return parse_losses(losses)

        parse_weighted.is_weighted = True  # type: ignore[attr-defined]
        model.parse_losses = parse_weighted


def weighted(losses: Losses, batch: BatchContext) -> Losses:
    """Weight the losses of each sample, and add them to its score.

    Args:
        losses (dict): What a model returns. Terms without "loss" in their name
            are only logged, and stay.
        batch (BatchContext): Weights of the samples.

    Returns:
        dict: The same with tensors of shape (B,) in place of the losses, whose
        means are the trained ones.

    Raises:
        ValueError: If a loss isn't of shape (B, ...).
    """
    weights = batch.weights
    assert weights is not None
    num_samples = len(weights)

    def of_samples(name: str, loss: Tensor) -> Tensor:
        if loss.dim() == 0 or len(loss) != num_samples:
            raise ValueError(
                f'`{name}` has the shape {tuple(loss.shape)} in a batch of '
                f'{num_samples} samples, and InfoBatch needs the loss of each '
                "sample: let `forward(mode='loss')` of `model` return tensors "
                f'of shape ({num_samples}, ...), as with '
                "`reduction='none'`, or train without InfoBatchHook.")
        _, means = sum_images(loss, 1, num_samples)
        batch.add_scores(means, means.mean())
        return means * weights

    result: Losses = {}
    for name, loss in losses.items():
        if 'loss' not in name:
            result[name] = loss
        elif isinstance(loss, Tensor):
            result[name] = of_samples(name, loss)
        else:
            result[name] = [of_samples(name, each) for each in loss]
    return result


TASK = PerSampleTask()

__all__ = ['TASK', 'PerSampleTask', 'weighted']
