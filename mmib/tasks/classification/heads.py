# Copyright (c) mmib contributors. All rights reserved.
"""Which heads a classifier has, and which losses these call."""
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch.nn as nn
from mmpretrain.models import classifiers, heads, retrievers

from ...batch import BatchContext
from ...compat import observe_calls
from ...losses import InfoBatchLoss, is_known
from ..wrapping import known, unwrapped, wrap

# Head: attributes that hold its losses. Those that derive from one, and only
# compute their predictions in another way, are meant too.
_LOSSES_OF_HEAD: Dict[type, Tuple[str, ...]] = {
    kind: ('loss_module', )
    for kind in (
        heads.ClsHead,
        heads.ConformerHead,
        heads.EfficientFormerClsHead,
        heads.MultiLabelClsHead,
        heads.ArcFaceClsHead,
        # These have no head of their own, but one of another library.
        classifiers.HuggingFaceClassifier,
        classifiers.TimmClassifier)
}
# Its losses belong to its parts.
_LOSSES_OF_HEAD[heads.MultiTaskHead] = ()
# Classifier: attributes that hold its heads.
_HEADS_OF_CLASSIFIER: Dict[type, Tuple[str, ...]] = {
    classifiers.ImageClassifier: ('head', ),
    retrievers.ImageToImageRetriever: ('head', ),
}
# A subclass that has another one of these computes its losses in its own way.
_METHODS_OF_HEAD = ('loss', '_get_loss')
_METHODS_OF_CLASSIFIER = ('loss', )


def register_head(head_type: type, *losses: str) -> None:
    """Tell mmib which losses a head calls.

    It must call nothing else, each with the predictions and labels of the
    whole batch. This counts for subclasses too, unless they compute their
    losses in their own way.

    Args:
        head_type (type): Class of the head, or of a classifier that calls its
            losses itself.
        *losses (str): Attributes with a loss. Without any it is
            ``loss_module``.

    Examples:
        >>> register_head(MyHead, 'loss_module', 'loss_of_superclass')
    """
    _LOSSES_OF_HEAD[head_type] = losses or ('loss_module', )


def register_classifier(classifier_type: type, *heads: str) -> None:
    """Tell mmib which heads a classifier has that overrides ``loss``.

    All of its loss must come from these: a term that it adds itself would be
    trained without weights.

    Args:
        classifier_type (type): Class of the classifier. Subclasses that don't
            override ``loss`` again are meant too.
        *heads (str): Attributes with a head. Without any it is ``head``.

    Examples:
        >>> register_classifier(MyClassifier, 'head', 'auxiliary_head')
    """
    _HEADS_OF_CLASSIFIER[classifier_type] = heads or ('head', )


def wrap_losses(model: nn.Module, batch: BatchContext) -> None:
    """Wrap the losses of a classifier in place. Losses that are wrapped stay
    so.

    Args:
        model (nn.Module): A classifier.
        batch (BatchContext): Weights and scores of the batch in training.

    Raises:
        ValueError: If mmib doesn't know the classifier, a head or a loss.
    """
    for where, head in _heads_of(model):
        _wrap_head(head, where, batch)
    for name, module in unwrapped(model):
        if is_known(module):
            raise ValueError(
                f'`model.{name}` is a loss outside of the heads that '
                f'{type(model).__name__} is known to have, and would be '
                'trained without weights: name all of its heads with '
                '`mmib.tasks.classification.register_classifier`, and the '
                'losses of these with `register_head`, or train without '
                'InfoBatchHook.')


def _heads_of(model: nn.Module) -> Iterator[Tuple[str, nn.Module]]:
    if known(model, _LOSSES_OF_HEAD, _METHODS_OF_HEAD) is not None:
        yield 'model', model
        return
    names = known(model, _HEADS_OF_CLASSIFIER, _METHODS_OF_CLASSIFIER)
    if names is None:
        raise ValueError(
            f'{type(model).__name__} computes its losses in its own way, and '
            'what it adds itself would be trained without weights: if all of '
            'its loss comes from its heads, name them with `mmib.tasks.'
            'classification.register_classifier`, or train without '
            'InfoBatchHook.')
    for name in names:
        head = getattr(model, name, None)
        if head is None:
            raise ValueError(f'`model.{name}` is None, so there is no loss: '
                             'give the model a head.')
        yield f'model.{name}', head


def _wrap_head(head: nn.Module, where: str,
               batch: BatchContext) -> List[InfoBatchLoss]:
    names = known(head, _LOSSES_OF_HEAD, _METHODS_OF_HEAD)
    if names is None:
        raise ValueError(
            'InfoBatch needs a loss per image, and mmib knows none for '
            f'{type(head).__name__}, which computes its losses in its own way:'
            f' change `{where}`, tell mmib which losses it calls with '
            '`mmib.tasks.classification.register_head`, or train without '
            'InfoBatchHook.')
    if isinstance(head, heads.MultiTaskHead):
        _wrap_parts(head, where, batch)
    wrapped = []
    for name in names:
        if not hasattr(head, name):
            raise ValueError(
                f'{type(head).__name__} has no loss `{name}`: correct its '
                '`mmib.tasks.classification.register_head`.')
        try:
            wrapped.append(wrap(getattr(head, name), batch))
        except ValueError as error:
            raise ValueError(f'`{where}.{name}` of {type(head).__name__}: '
                             f'{error}') from None
        setattr(head, name, wrapped[-1])
    return wrapped


def _wrap_parts(head: heads.MultiTaskHead, where: str,
                batch: BatchContext) -> None:
    """Wrap the losses of the head of each task. They are called on the images
    that have a label of it."""
    for task, part in head.task_heads.items():
        where_part = f'{where}.task_heads.{task}'
        if isinstance(part, heads.MultiTaskHead):
            raise ValueError(
                f'`{where_part}` is a MultiTaskHead within another one, where '
                'mmib cannot tell which images have a label: move its heads '
                f'to `{where}`, or train without InfoBatchHook.')
        losses = _wrap_head(part, where_part, batch)

        def count(feats: Any,
                  data_samples: Sequence[Any],
                  task: str = task,
                  losses: List[InfoBatchLoss] = losses,
                  **kwargs: Any) -> None:
            has_label = [int(task in sample) for sample in data_samples]
            for loss in losses:
                loss.rows_per_image = 1 if all(has_label) else has_label

        observe_calls(part, 'loss', count)
