# Copyright (c) mmib contributors. All rights reserved.
"""Which heads a classifier has, and which losses these call."""
from typing import Any, Callable, List, Sequence

import torch.nn as nn
from mmengine.hooks import Hook
from mmpretrain.engine.hooks import SwitchRecipeHook
from mmpretrain.models import (BaseClassifier, BaseRetriever, classifiers,
                               heads, retrievers)

from ....errors import Refusal
from ...batch import BatchContext
from ...losses import InfoBatchLoss
from .. import Task
from ..heads import LossTable, wrap
from ..replace import replace_method
from .augments import connect_augments

TABLE = LossTable(
    'mmib.openmmlab.tasks.classification',
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
            # The head of these is one of another library.
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
                            'cannot tell which images have a label: move its '
                            f'heads to `model.{name}`, or train without '
                            'InfoBatchHook.')
                    _follow_labels(task, head,
                                   sum(losses_of_head[head].values(), []))
        connect_augments(
            getattr(model.data_preprocessor, 'batch_augments', None), batch)
        for hook in hooks:
            if isinstance(hook, SwitchRecipeHook):
                _attach_recipes(hook, batch)


TASK = ClassificationTask()


def _follow_labels(task: str, head: nn.Module,
                   losses: List[InfoBatchLoss]) -> None:
    """Tell the losses of the head of a task on which images the losses are
    called: those with a label of the task."""

    def count(head_loss: Callable, feats: Any, data_samples: Sequence[Any],
              **kwargs: Any) -> Any:
        has_label = [int(task in sample) for sample in data_samples]
        for loss in losses:
            loss.rows_per_image = 1 if all(has_label) else has_label
        return head_loss(feats, data_samples, **kwargs)

    replace_method(head, 'loss', count)


def _attach_recipes(hook: SwitchRecipeHook, batch: BatchContext) -> None:
    """Attach the losses and augmentations that the hook will put into the
    model, so that unknown ones stop the training before its first step."""
    for epoch, recipe in hook.schedule.items():
        try:
            if 'loss' in recipe:
                recipe['loss'] = wrap(recipe['loss'], batch)
            connect_augments(recipe.get('batch_augments'), batch)
        except Refusal as error:
            raise Refusal('SwitchRecipeHook in `custom_hooks`, at '
                          f'`action_epoch={epoch}`: {error}') from None
