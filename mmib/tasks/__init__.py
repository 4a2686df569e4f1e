# Copyright (c) mmib contributors. All rights reserved.
"""What mmib knows of a library: which losses its models call.

The core knows images, weights and scores. A task connects them to the losses
of one library, and is imported where that library is in use.
"""
import importlib
import sys
from typing import Iterator, Protocol, Sequence

import torch.nn as nn
from mmengine.hooks import Hook

from ..batch import BatchContext
from ..errors import ValueRefusal

# An imported library, and the module of its task.
_TASKS = (
    ('mmseg', 'segmentation'),
    ('mmpretrain', 'classification'),
    ('mmpretrain', 'masked_images'),
    # mmdet.models needs compiled operations, which mmdet itself doesn't.
    ('mmdet.models', 'detection'),
    # Any other model.
    ('mmengine', 'per_sample'),
)


class Task(Protocol):
    """The seam to a library. Each module of this package has one, ``TASK``."""

    ema: float
    """The default ``ema`` of InfoBatchHook: share of the old score in a new
    score."""

    score: str
    """The score of a visit: ``'loss'``, or ``'gradient'``, the norm of the
    gradient of the image's loss at the predictions."""

    def matches(self, model: nn.Module) -> bool:
        """Whether the model is one of this library."""

    def attach(self, model: nn.Module, batch: BatchContext,
               hooks: Sequence[Hook]) -> None:
        """Let each loss of the model take the weights of the batch, and add
        to the scores of the batch, see :func:`attach`."""


def tasks_in_use() -> Iterator[Task]:
    """The tasks of the libraries that the process has imported."""
    for library, name in _TASKS:
        if library in sys.modules:
            yield importlib.import_module(f'{__name__}.{name}').TASK


def attach(model: nn.Module, batch: BatchContext,
           hooks: Sequence[Hook] = ()) -> Task:
    """Let the task of a model connect the losses of the model with the hook.

    Connected losses stay connected: call the function again where something
    changes the losses of the model.

    Args:
        model (nn.Module): The model that will be trained, changed in place.
        batch (BatchContext): Weights and scores of the batch in training.
        hooks (Sequence[Hook]): Hooks of the training, which may change the
            model in the middle of the training. Defaults to none.

    Returns:
        Task: The task.

    Raises:
        ValueError: If no task knows the model, or one of its losses.
    """
    for task in tasks_in_use():
        if task.matches(model):
            task.attach(model, batch, hooks)
            return task
    raise ValueRefusal(
        f'InfoBatch knows no losses of {type(model).__name__}: use a segmentor'
        ' of MMSegmentation with a `decode_head`, such as EncoderDecoder, a '
        'classifier of MMPretrain, such as ImageClassifier, or one of its '
        'models that restore masked images, such as MAE, a detector of '
        'MMDetection, such as RetinaNet, a BaseModel of yours that returns '
        'the loss of each sample, or train without InfoBatchHook.')
