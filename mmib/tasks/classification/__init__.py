# Copyright (c) mmib contributors. All rights reserved.
"""Classification with MMPretrain: its heads, losses and batch
augmentations."""
from typing import Sequence

import torch.nn as nn
from mmengine.hooks import Hook
from mmpretrain.engine.hooks import SwitchRecipeHook
from mmpretrain.models import BaseClassifier, BaseRetriever

from ...batch import BatchContext
from ..wrapping import wrap
from . import losses  # noqa: F401
from .augments import (PairedCutMix, PairedMixup, PairedResizeMix,
                       connect_augments)
from .heads import register_classifier, register_head, wrap_losses


class ClassificationTask:
    """Classifiers and retrievers of MMPretrain."""

    ema = 0.
    scores = ('loss', 'gradient')

    def matches(self, model: nn.Module) -> bool:
        return isinstance(model, (BaseClassifier, BaseRetriever))

    def attach(self,
               model: nn.Module,
               batch: BatchContext,
               hooks: Sequence[Hook] = ()) -> None:
        wrap_losses(model, batch)
        connect_augments(
            getattr(model.data_preprocessor, 'batch_augments', None), batch)
        for hook in hooks:
            if isinstance(hook, SwitchRecipeHook):
                _attach_recipes(hook, batch)


def _attach_recipes(hook: SwitchRecipeHook, batch: BatchContext) -> None:
    """Attach what will be put into the model in the middle of the training, so
    that what can't be stops it before its first step."""
    for epoch, recipe in hook.schedule.items():
        try:
            if 'loss' in recipe:
                recipe['loss'] = wrap(recipe['loss'], batch)
            connect_augments(recipe.get('batch_augments'), batch)
        except ValueError as error:
            raise ValueError('SwitchRecipeHook in `custom_hooks`, at '
                             f'`action_epoch={epoch}`: {error}') from None


TASK = ClassificationTask()

__all__ = [
    'TASK', 'ClassificationTask', 'PairedCutMix', 'PairedMixup',
    'PairedResizeMix', 'register_classifier', 'register_head'
]
