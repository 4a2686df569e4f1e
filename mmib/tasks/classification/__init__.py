# Copyright (c) mmib contributors. All rights reserved.
"""Classification with MMPretrain: its heads and its losses."""
import mmpretrain  # noqa: F401
import torch.nn as nn
from mmpretrain.models import BaseClassifier, BaseRetriever

from ...batch import BatchContext
from . import losses  # noqa: F401
from .heads import register_classifier, register_head, wrap_losses


class ClassificationTask:
    """Classifiers and retrievers of MMPretrain."""

    ema = 0.

    def matches(self, model: nn.Module) -> bool:
        return isinstance(model, (BaseClassifier, BaseRetriever))

    def attach(self, model: nn.Module, batch: BatchContext) -> None:
        wrap_losses(model, batch)


TASK = ClassificationTask()

__all__ = [
    'TASK', 'ClassificationTask', 'register_classifier', 'register_head'
]
