# Copyright (c) mmib contributors. All rights reserved.
"""MMSegmentation: its heads, its losses, and its configs."""
import torch.nn as nn

from ...losses import BatchContext
from . import losses  # noqa: F401
from .heads import register_head, wrap_losses


class SegmentationTask:
    """Segmentors with a ``decode_head`` and optionally an
    ``auxiliary_head``, each a head or a list of heads."""

    def matches(self, model: nn.Module) -> bool:
        return getattr(model, 'decode_head', None) is not None

    def attach(self, model: nn.Module, batch: BatchContext) -> None:
        wrap_losses(model, batch)


TASK = SegmentationTask()

__all__ = ['TASK', 'SegmentationTask', 'register_head']
