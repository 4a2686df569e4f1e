# Copyright (c) mmib contributors. All rights reserved.
"""MMSegmentation: its heads and its losses."""
from typing import Sequence

import torch.nn as nn
from mmengine.hooks import Hook

from ...batch import BatchContext
from . import losses  # noqa: F401
from .heads import register_head, register_segmentor, wrap_losses


class SegmentationTask:
    """Segmentors with a ``decode_head``, mostly with others besides."""

    ema = 0.
    scores = ('loss', 'gradient')

    def matches(self, model: nn.Module) -> bool:
        return getattr(model, 'decode_head', None) is not None

    def attach(self,
               model: nn.Module,
               batch: BatchContext,
               hooks: Sequence[Hook] = ()) -> None:
        wrap_losses(model, batch)


TASK = SegmentationTask()

__all__ = ['TASK', 'SegmentationTask', 'register_head', 'register_segmentor']
