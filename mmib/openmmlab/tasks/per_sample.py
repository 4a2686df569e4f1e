# Copyright (c) mmib contributors. All rights reserved.
"""Any model of MMEngine that returns the loss of each sample."""
import functools
from typing import Any, Dict, List, Sequence, Union
from weakref import WeakKeyDictionary

import torch
import torch.nn as nn
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.utils import is_list_of
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ...errors import Refusal
from ...scores.weigh import weigh_losses
from ..batch import BatchContext, mean_images
from . import Task

Losses = Dict[str, Union[Tensor, List[Tensor]]]

SCORE = 'infobatch_score'
"""str: Key of the score of each sample, of shape (B,), among the losses that a
model returns. Without the key, the score is the sum of the losses."""

# Of each model, the hooks that watch its predictions.
_HANDLES: WeakKeyDictionary = WeakKeyDictionary()


class PerSampleTask(Task):
    """Models whose ``forward(mode='loss')`` returns tensors of shape (B, ...).

    The loss of each sample is weighed before ``BaseModel.parse_losses`` takes
    the means.

    A model may have an attribute ``infobatch_predictions``: the name, or a
    sequence of names, of the modules whose outputs are the predictions. Norms
    of gradients are taken there.
    """

    def matches(self, model: nn.Module) -> bool:
        # Models of these libraries return means, and have tasks of their own.
        library = type(model).__module__.partition('.')[0]
        return (isinstance(model, BaseModel)
                and library not in ('mmseg', 'mmpretrain', 'mmdet'))

    def attach(self, model: nn.Module, batch: BatchContext,
               hooks: Sequence[Hook]) -> None:
        # Another hook may have trained the model.
        for handle in _HANDLES.pop(model, ()):
            handle.remove()
        _HANDLES[model] = _watch_predictions(model, batch)

    def weigh(self, losses: Losses, batch: BatchContext) -> Losses:
        """Weigh the losses of each sample, and add them to the scores.

        Args:
            losses (dict): What a model returns: losses, and terms without
                "loss" in their name, which are only logged. A term may be the
                :data:`SCORE`.
            batch (BatchContext): Weights of the samples.

        Returns:
            dict: The same with weighed losses of shape (B,).

        Raises:
            Refusal: If a loss is neither a tensor nor a list of tensors, or
                isn't of shape (B, ...), or a score of (B,).
        """
        result, means = dict(losses), []
        for name, loss in losses.items():
            if 'loss' not in name:
                continue
            parts = [loss] if isinstance(loss, Tensor) else loss
            if not is_list_of(parts, Tensor):
                raise Refusal(
                    f'`{name}` is a {type(loss).__name__}, but a loss must be '
                    "a tensor or a list of tensors: let `forward(mode='loss')`"
                    ' of `model` return each tensor under a name of its own.')
            of_samples = [_by_sample(name, x, batch.size) for x in parts]
            means += of_samples
            if not batch.only_scores:
                weighed = [
                    weigh_losses(x, batch.relative_weights, batch.row_weights)
                    for x in of_samples
                ]
                result[name] = weighed if parts is loss else weighed[0]
        if means:
            with torch.no_grad():
                batch.add_scores(_score(losses, sum(means[1:], means[0])))
        return result


def _watch_predictions(model: nn.Module,
                       batch: BatchContext) -> List[RemovableHandle]:
    names = getattr(model, 'infobatch_predictions', ())
    names = [names] if isinstance(names, str) else names
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise Refusal(
                f'`infobatch_predictions` of {type(model).__name__} names '
                f'{name!r}, which is none of its modules: name one of its '
                '`named_modules()`, such as its last layer.')
    return [
        modules[name].register_forward_hook(
            functools.partial(_watch_output, name, batch)) for name in names
    ]


@torch.compiler.disable
def _watch_output(name: str, batch: BatchContext, module: nn.Module, args: Any,
                  output: Any) -> None:
    if batch.weights is None:
        return
    is_tensor = isinstance(output, Tensor)
    if not is_tensor or output.shape[:1] != batch.weights.shape:
        what = (f'the shape {tuple(output.shape)}'
                if is_tensor else f'a {type(output).__name__}')
        raise Refusal(
            f'`infobatch_predictions` names {name!r}, which returns {what} in '
            f'a batch of {batch.size} samples: name a module that returns a '
            'tensor with a row for each sample, or remove the name.')
    batch.watch(output)


def _by_sample(name: str, loss: Tensor, size: int) -> Tensor:
    """Return the mean loss of each sample, float32 of shape (B,)."""
    if loss.shape[:1] != (size, ):
        raise Refusal(
            f'`{name}` has the shape {tuple(loss.shape)} in a batch of '
            f'{size} samples, and InfoBatch needs the loss of '
            "each sample: let `forward(mode='loss')` of `model` return "
            f'tensors of shape ({size}, ...), as with '
            "`reduction='none'`, or train without InfoBatchHook.")
    return mean_images(loss, 1, size)[0]


def _score(losses: Losses, total: Tensor) -> Tensor:
    score = losses.get(SCORE, total)
    if not isinstance(score, Tensor) or score.shape != total.shape:
        raise Refusal(
            f'`{SCORE}` must have the shape ({len(total)},), one number for '
            f'each sample, but got {getattr(score, "shape", score)}: change '
            "what `forward(mode='loss')` of `model` returns.")
    return score.float()


TASK = PerSampleTask()
