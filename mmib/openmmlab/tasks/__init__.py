# Copyright (c) mmib contributors. All rights reserved.
"""Tasks, which connect mmib to the losses of a library.

The core knows images, weights and scores. A task connects these to the losses
of one library, and is imported if the library is in use.
"""
import importlib
import sys
from typing import Any, Callable, Dict, List, Sequence, Tuple, Union

import torch
import torch.nn as nn
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from ...errors import Refusal
from ..batch import BatchContext
from .replace import replace_method


class Task:
    """The connection to a library. Derive a task from this class.

    In each batch with weights, a task weighs all losses by
    :func:`~mmib.scores.weigh.weigh_losses`,
    :func:`~mmib.scores.weigh.weigh_gradients` or :class:`InfoBatchLoss`, and
    gives each image a score by :meth:`BatchContext.add_scores` or
    InfoBatchLoss. The score is NaN if only
    gradients are known. For V, a task watches predictions by
    :meth:`BatchContext.watch`.
    """

    ema = 0.
    """float: The default ``ema`` of InfoBatchHook, the share of the old score
    in a new score."""

    score = 'loss'
    """str: The score of a visit, ``'loss'``, or ``'gradient'``, the norm of
    the gradient of the image's loss at the predictions."""

    def matches(self, model: nn.Module) -> bool:
        """Return whether the model is one of this library."""
        raise NotImplementedError

    def attach(self, model: nn.Module, batch: BatchContext,
               hooks: Sequence[Hook]) -> None:
        """Connect each loss of the model to the weights and the scores of the
        batch. See :func:`attach` for the arguments."""

    def weigh(self, losses: Dict[str, Any],
              batch: BatchContext) -> Dict[str, Any]:
        """Weigh losses of single images that ``forward(mode='loss')`` returns,
        and add them to the scores of the batch. Losses that were weighed
        within the model are returned as they are."""
        return losses


# A library, and its task or the name of the module that has it as `TASK`.
_TASKS: List[Tuple[str, Union[str, Task]]] = [
    ('mmseg', f'{__name__}.segmentation'),
    ('mmpretrain', f'{__name__}.classification'),
    ('mmpretrain', f'{__name__}.masked_images'),
    # mmdet.models needs compiled operations, which mmdet itself doesn't.
    ('mmdet.models', f'{__name__}.detection'),
    # Any other model.
    ('mmengine', f'{__name__}.per_sample'),
]


def register_task(task: Union[str, Task], library: str = 'mmengine') -> None:
    """Register a task for the models of another library, or another task for
    known models. The task that was registered last is asked first.

    Args:
        task (Task or str): The task, or the name of a module that has the task
            as ``TASK`` and is imported if the library is in use.
        library (str): A module that is always imported where such models are
            used. Defaults to ``'mmengine'``.

    Examples:
        >>> register_task(MyTask())
    """
    _TASKS.insert(0, (library, task))


def attach(model: nn.Module, batch: BatchContext,
           hooks: Sequence[Hook] = ()) -> Task:
    """Connect the losses of a model by the first task that matches the model.

    Losses stay connected. Call the function again after the losses of the
    model have changed.

    Args:
        model (nn.Module): The model that will be trained, changed in place. It
            may be wrapped, as in distributed training.
        batch (BatchContext): Weights and scores of the batch in training.
        hooks (Sequence[Hook]): Hooks of the run, which may change the model in
            the middle of the run. Defaults to none.

    Returns:
        Task: The task.

    Raises:
        Refusal: If no task knows the model, or one of its losses.
    """
    if is_model_wrapper(model):
        model = getattr(model, 'module')
    for library, task in _TASKS:
        if library not in sys.modules:
            continue
        if isinstance(task, str):
            task = importlib.import_module(task).TASK
        if task.matches(model):
            task.attach(model, batch, hooks)
            _follow_total(model, batch, task)
            return task
    raise Refusal(
        f'InfoBatch knows no losses of {type(model).__name__}: use a segmentor'
        ' of MMSegmentation with a `decode_head`, such as EncoderDecoder, a '
        'classifier of MMPretrain, such as ImageClassifier, or one of its '
        'models that restore masked images, such as MAE, a detector of '
        'MMDetection, such as RetinaNet, a BaseModel of yours that returns '
        'the loss of each sample, register a task for the model with '
        '`mmib.register_task`, or train without InfoBatchHook.')


def no_scores() -> Refusal:
    """Return the refusal of a training step without scores."""
    return Refusal(
        'No loss of an image was seen in this iteration, so InfoBatch has no '
        'scores. The heads of `model` must call their loss modules, or '
        "`forward(mode='loss')` must return losses with \"loss\" in their "
        'names, and `train_step` must call `parse_losses`: check these '
        'methods, or train without InfoBatchHook.')


def _follow_total(model: nn.Module, batch: BatchContext, task: Task) -> None:
    """Weigh the losses that a model returns, and watch the total loss.
    ``parse_losses`` is the only place between forward and backward pass."""

    # A batch has Python values, for which each step would be compiled again.
    @torch.compiler.disable
    def parse(parse_losses: Callable, losses: Dict[str, Any]) -> Any:
        if batch.weights is None or not torch.is_grad_enabled():
            return parse_losses(losses)
        total, logged = parse_losses(task.weigh(losses, batch))
        if not batch.has_scores:
            raise no_scores()
        batch.watch_total(total)
        return total, logged

    if hasattr(model, 'parse_losses'):
        replace_method(model, 'parse_losses', parse)
