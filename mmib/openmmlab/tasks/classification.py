# Copyright (c) mmib contributors. All rights reserved.
"""MMPretrain: which heads a classifier has, which losses these heads call, and
how the losses are split into images, see ``docs/supported.md``."""
from functools import partial
from typing import Any, List, Sequence, Tuple, Union

import torch.nn as nn
from mmengine.hooks import Hook
from mmpretrain.engine.hooks import SwitchRecipeHook
from mmpretrain.models import BaseClassifier, BaseRetriever, classifiers, heads
from mmpretrain.models import losses as mmpretrain_losses
from mmpretrain.models import retrievers
from torch import Tensor

from ...errors import Refusal
from ..batch import BatchContext, Factor
from ..losses import register_unreduced
from . import Task
from .augments import (PairedCutMix, PairedMixup, PairedResizeMix,
                       connect_augments)
from .heads import HeadTable, wrap
from .replace import follow_rows

__all__ = [
    'TASK', 'PairedCutMix', 'PairedMixup', 'PairedResizeMix',
    'register_classifier', 'register_head'
]

TABLE = HeadTable(
    __name__,
    methods=('loss', '_get_loss'),
    models={
        classifiers.ImageClassifier: ('head', ),
        retrievers.ImageToImageRetriever: ('head', ),
        heads.MultiTaskHead: ('task_heads', ),
    },
    heads=dict.fromkeys(
        (
            heads.ClsHead,
            heads.ConformerHead,
            heads.EfficientFormerClsHead,
            heads.MultiLabelClsHead,
            heads.ArcFaceClsHead,
            # These wrap models of other libraries, and call their loss.
            classifiers.HuggingFaceClassifier,
            classifiers.TimmClassifier),
        ('loss_module', )),
    register_model='register_classifier')
register_head = TABLE.register_head
register_classifier = TABLE.register_model


class ClassificationTask(Task):
    """Classifiers and retrievers of MMPretrain."""

    def matches(self, model: nn.Module) -> bool:
        return isinstance(model, (BaseClassifier, BaseRetriever))

    def attach(self, model: nn.Module, batch: BatchContext,
               hooks: Sequence[Hook]) -> None:
        losses_of_head = dict(TABLE.wrap(model, batch))
        for name, module in model.named_modules():
            if isinstance(module, heads.MultiTaskHead):
                for task, head in module.task_heads.items():
                    if head not in losses_of_head:
                        raise Refusal(
                            f'`model.{name}.task_heads.{task}` is a '
                            'MultiTaskHead within another one, where mmib '
                            'does not see which images have a label: move its '
                            f'heads to `model.{name}`, or train without '
                            'InfoBatchHook.')
                    follow_rows(head, 'loss',
                                (sum(losses_of_head[head].values(),
                                     []), partial(_has_label, task)))
        connect_augments(
            getattr(model.data_preprocessor, 'batch_augments', None), batch)
        for hook in hooks:
            if isinstance(hook, SwitchRecipeHook):
                _attach_recipes(hook, batch)


TASK = ClassificationTask()


def _has_label(task: str, feats: Any, data_samples: Sequence[Any],
               **kwargs: Any) -> Union[int, List[int]]:
    """Return which images have a label of a task of a MultiTaskHead. The loss
    of the task is called only on these images."""
    has_label = [int(task in sample) for sample in data_samples]
    return 1 if all(has_label) else has_label


def _attach_recipes(hook: SwitchRecipeHook, batch: BatchContext) -> None:
    """Attach the losses and augmentations that the hook will put into the
    model, so that unknown ones stop the run before its first step."""
    for epoch, recipe in hook.schedule.items():
        try:
            if 'loss' in recipe:
                recipe['loss'] = wrap(recipe['loss'], batch)
            connect_augments(recipe.get('batch_augments'), batch)
        except Refusal as error:
            raise Refusal('SwitchRecipeHook in `custom_hooks`, at '
                          f'`action_epoch={epoch}`: {error}') from None


_LOSSES = [
    mmpretrain_losses.AsymmetricLoss, mmpretrain_losses.CrossEntropyLoss,
    mmpretrain_losses.FocalLoss, mmpretrain_losses.LabelSmoothLoss,
    mmpretrain_losses.SeesawLoss
]
if hasattr(mmpretrain_losses, 'RegressionLoss'):  # Only OneDL's stack.
    _LOSSES.append(mmpretrain_losses.RegressionLoss)


@register_unreduced(*_LOSSES)
def by_image(loss: nn.Module, pred: Tensor, target: Tensor,
             **kwargs: Any) -> Tuple[Tensor, Factor]:
    """Return the loss of each image. Heads divide the sum of all elements by
    the number of images, so the loss of an image is the sum over the classes.
    """
    elements = loss(pred, target, reduction_override='none', **kwargs)
    number = elements.numel()
    if elements.dim() > 1 and loss.reduction != 'none':
        elements = elements.flatten(1).sum(1)
    return elements, number
