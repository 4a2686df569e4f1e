# Copyright (c) mmib contributors. All rights reserved.
"""Which heads a segmentor has, which losses these call, and where they keep
them."""
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch.nn as nn
from mmseg.models import decode_heads, segmentors
from mmseg.models.decode_heads.cascade_decode_head import BaseCascadeDecodeHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor

from ...batch import BatchContext
from ...compat import observe_calls
from ...losses import InfoBatchLoss
from ..wrapping import known, unwrapped, wrap

# Head: attributes that hold its losses.
_LOSSES_OF_HEAD: Dict[type, Tuple[str, ...]] = {
    BaseDecodeHead: ('loss_decode', ),
    BaseCascadeDecodeHead: ('loss_decode', ),
    decode_heads.DAHead: ('loss_decode', ),
    decode_heads.DDRHead: ('loss_decode', ),
    decode_heads.EncHead: ('loss_decode', 'loss_se_decode'),
    # Its losses belong to the head that makes its kernels.
    decode_heads.IterativeDecodeHead: (),
    decode_heads.Mask2FormerHead: ('loss_cls', 'loss_mask', 'loss_dice'),
    decode_heads.MaskFormerHead: ('loss_cls', 'loss_mask', 'loss_dice'),
    decode_heads.PIDHead: ('loss_decode', ),
    decode_heads.PointHead: ('loss_decode', ),
    decode_heads.SideAdapterCLIPHead: ('loss_decode', ),
    decode_heads.STDCHead: ('loss_decode', ),
    decode_heads.VPDDepthHead: ('loss_decode', ),
}
# Segmentor: attributes that hold its heads.
_HEADS_OF_SEGMENTOR: Dict[type, Tuple[str, ...]] = {
    kind: ('decode_head', 'auxiliary_head')
    for kind in (segmentors.EncoderDecoder, segmentors.CascadeEncoderDecoder,
                 segmentors.DepthEstimator,
                 segmentors.MultimodalEncoderDecoder)
}
# A subclass that has another one of these computes its losses in its own way.
_METHODS_OF_HEAD = ('loss', 'loss_by_feat', '_loss_by_feat_single')
_METHODS_OF_SEGMENTOR = ('loss', '_decode_head_forward_train',
                         '_auxiliary_head_forward_train')
# The keys of their losses don't follow from the names of the losses.
_KEYS_OF_THEIR_OWN = (decode_heads.DDRHead, decode_heads.PIDHead)


def register_head(head_type: type, *losses: str) -> None:
    """Tell mmib which losses a head calls.

    It must call nothing else, each with the predictions and labels of the
    whole batch. This counts for subclasses too, unless they compute their
    losses in their own way.

    Args:
        head_type (type): Class of the head.
        *losses (str): Attributes with a loss, or a ``ModuleList`` of losses.

    Examples:
        >>> register_head(MyHead, 'loss_decode', 'loss_edge')
    """
    _LOSSES_OF_HEAD[head_type] = losses


def register_segmentor(segmentor_type: type, *heads: str) -> None:
    """Tell mmib which heads a segmentor has that overrides ``loss``.

    All of its loss must come from these: a term that it adds itself would be
    trained without weights.

    Args:
        segmentor_type (type): Class of the segmentor. Subclasses that don't
            override ``loss`` again are meant too.
        *heads (str): Attributes with a head, or a ``ModuleList`` of heads.
            Without any they are ``decode_head`` and ``auxiliary_head``.

    Examples:
        >>> register_segmentor(MySegmentor, 'decode_head', 'edge_head')
    """
    _HEADS_OF_SEGMENTOR[segmentor_type] = heads or ('decode_head',
                                                    'auxiliary_head')


def wrap_losses(model: nn.Module, batch: BatchContext) -> List[InfoBatchLoss]:
    """Wrap the losses of every head of a segmentor in place.

    Args:
        model (nn.Module): A segmentor.
        batch (BatchContext): Weights and scores of the batch in training.

    Returns:
        list[InfoBatchLoss]: The wrapped losses of all heads. Losses that the
        config wrapped already are among them.

    Raises:
        ValueError: If mmib doesn't know the segmentor, a head or a loss.
    """
    wrapped = []
    for where, head in _heads_of(model):
        wrapped += _wrap_head(head, where, batch)
    _check_all_wrapped(model)
    return wrapped


def _heads_of(model: nn.Module) -> Iterator[Tuple[str, nn.Module]]:
    names = known(model, _HEADS_OF_SEGMENTOR, _METHODS_OF_SEGMENTOR)
    if names is None:
        raise ValueError(
            f'{type(model).__name__} computes its losses in its own way, and '
            'what it adds itself would be trained without weights: if all of '
            'its loss comes from its heads, name them with `mmib.tasks.'
            'segmentation.register_segmentor`, or train without '
            'InfoBatchHook.')
    for name in names:
        heads = getattr(model, name, None)
        for head in heads if isinstance(heads, nn.ModuleList) else [heads]:
            if head is not None:
                yield f'model.{name}', head


def _check_all_wrapped(model: nn.Module) -> None:
    """Check that no loss is left that would be trained without weights."""
    for name, module in unwrapped(model):
        if 'loss' in getattr(module, 'loss_name', ''):
            raise ValueError(
                f'`model.{name}` is a loss outside of the heads that '
                f'{type(model).__name__} is known to have, and would be '
                'trained without weights: name all of its heads with '
                '`mmib.tasks.segmentation.register_segmentor`, or train '
                'without InfoBatchHook.')


def _wrap_head(head: nn.Module, where: str,
               batch: BatchContext) -> List[InfoBatchLoss]:
    names = _losses_of(head, where)
    if isinstance(head, decode_heads.IterativeDecodeHead):
        return _wrap_head(head.kernel_generate_head,
                          f'{where}.kernel_generate_head', batch)
    wrapped: Dict[str, List[InfoBatchLoss]] = {}
    for name in names:
        loss = getattr(head, name)
        try:
            if isinstance(loss, nn.ModuleList):
                losses = [_wrap(each, head, name, batch) for each in loss]
                setattr(head, name, nn.ModuleList(losses))
            else:
                losses = [_wrap(loss, head, name, batch)]
                setattr(head, name, losses[0])
            wrapped[name] = [x for x in losses if isinstance(x, InfoBatchLoss)]
        except ValueError as error:
            raise ValueError(f'`{where}.{name}` of {type(head).__name__}: '
                             f'{error}') from None
    if isinstance(head,
                  (decode_heads.MaskFormerHead, decode_heads.Mask2FormerHead)):
        _follow_matching(head, wrapped['loss_cls'],
                         wrapped['loss_mask'] + wrapped['loss_dice'])
    elif isinstance(head, decode_heads.SideAdapterCLIPHead):
        losses = wrapped['loss_decode']
        _follow_matching(head.match_masks,
                         [x for x in losses if 'mask' not in x.loss_name],
                         [x for x in losses if 'mask' in x.loss_name])
    return sum(wrapped.values(), [])


def _wrap(loss: nn.Module, head: nn.Module, name: str,
          batch: BatchContext) -> nn.Module:
    # MMEngine trains the terms that have "loss" in their key; others are only
    # logged, and are no part of the score.
    if (name == 'loss_decode' and not isinstance(head, _KEYS_OF_THEIR_OWN)
            and 'loss' not in getattr(loss, 'loss_name', 'loss')):
        return loss
    return wrap(loss, batch)


def _losses_of(head: nn.Module, where: str) -> Tuple[str, ...]:
    """The attributes with the losses of a head that mmib knows."""
    names = known(head, _LOSSES_OF_HEAD, _METHODS_OF_HEAD)
    if names is None:
        raise ValueError(
            'InfoBatch needs a loss per image, and mmib knows none for '
            f'{type(head).__name__}, which computes its losses in its own way:'
            f' change `{where}`, tell mmib which losses it calls with '
            '`mmib.tasks.segmentation.register_head`, or train without '
            'InfoBatchHook.')
    _check_names(head, names)
    return names


def _check_names(head: nn.Module, names: Tuple[str, ...]) -> None:
    """Check that these are the losses of the head: others would train with
    weight 1."""
    register = '`mmib.tasks.segmentation.register_head'
    for name in names:
        if not hasattr(head, name):
            raise ValueError(f'{type(head).__name__} has no loss `{name}`: '
                             f'correct its {register}`.')
    for name, child in head.named_children():
        losses = child if isinstance(child, nn.ModuleList) else [child]
        if name not in names and any(hasattr(x, 'loss_name') for x in losses):
            raise ValueError(
                f'{type(head).__name__} has the loss `{name}`, of which mmib '
                'was not told: give it all losses of the head with '
                f'{register}({type(head).__name__}, '
                f'{", ".join(map(repr, (*names, name)))})`.')


def _follow_matching(matcher: object, of_queries: List[InfoBatchLoss],
                     of_masks: List[InfoBatchLoss]) -> None:
    """Tell the losses of a head that classifies masks which rows of a call
    are which image: all queries of each, or the masks that were matched.

    How many masks an image has is known where they are matched.

    Args:
        matcher (object): Head or part of it with a ``get_targets``.
        of_queries (list[InfoBatchLoss]): Losses that are called on all
            queries.
        of_masks (list[InfoBatchLoss]): Losses that are called on the matched
            masks of all images, one after the other.
    """

    def count(cls_scores: Sequence[Tensor], mask_preds: Any,
              batch_gt_instances: Sequence[Any], *args: Any,
              **kwargs: Any) -> None:
        for loss in of_queries:
            loss.rows_per_image = len(cls_scores[0])
        # Each mask of the labels is matched while there are queries.
        num_masks = [
            min(len(instances.labels), len(scores))
            for instances, scores in zip(batch_gt_instances, cls_scores)
        ]
        for loss in of_masks:
            loss.rows_per_image = num_masks

    observe_calls(matcher, 'get_targets', count)
