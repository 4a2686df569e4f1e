# Copyright (c) mmib contributors. All rights reserved.
"""Which losses the heads of a segmentor have, and where they keep them."""
from typing import Dict, Iterator, List, Tuple

import torch.nn as nn
from mmseg.models import decode_heads
from mmseg.models.decode_heads.cascade_decode_head import BaseCascadeDecodeHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead

from ...compat import observe_get_targets
from ...losses import BatchContext, InfoBatchLoss, check_loss

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
# A subclass that has another one of these computes its losses in its own way.
_LOSS_METHODS = ('loss', 'loss_by_feat', '_loss_by_feat_single')


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


def wrap_losses(model: nn.Module, batch: BatchContext) -> List[InfoBatchLoss]:
    """Wrap the losses of every head of a segmentor in place.

    Args:
        model (nn.Module): A segmentor with a ``decode_head`` and optionally
            an ``auxiliary_head``, each a head or a list of heads.
        batch (BatchContext): Weights and scores of the batch in training.

    Returns:
        list[InfoBatchLoss]: The wrapped losses of all heads. Losses that the
        config wrapped already are among them.

    Raises:
        ValueError: If mmib doesn't know a head or a loss.
    """
    wrapped = []
    for where, head in _heads(model):
        wrapped += _wrap_head(head, where, batch)
    return wrapped


def _heads(model: nn.Module) -> Iterator[Tuple[str, nn.Module]]:
    for part in ('decode_head', 'auxiliary_head'):
        heads = getattr(model, part, None)
        for head in heads if isinstance(heads, nn.ModuleList) else [heads]:
            if head is not None:
                yield f'model.{part}', head


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
                wrapped[name] = [_wrap(each, batch) for each in loss]
                setattr(head, name, nn.ModuleList(wrapped[name]))
            else:
                wrapped[name] = [_wrap(loss, batch)]
                setattr(head, name, wrapped[name][0])
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


def _wrap(loss: nn.Module, batch: BatchContext) -> InfoBatchLoss:
    if not isinstance(loss, InfoBatchLoss):
        loss = InfoBatchLoss(loss)
    check_loss(loss.loss)
    loss.batch = batch
    return loss


def _losses_of(head: nn.Module, where: str) -> Tuple[str, ...]:
    """The attributes with the losses of a head that mmib knows."""
    for known in type(head).__mro__:
        if known in _LOSSES_OF_HEAD:
            if all(
                    getattr(type(head), method, None) is getattr(
                        known, method, None) for method in _LOSS_METHODS):
                _check_names(head, _LOSSES_OF_HEAD[known])
                return _LOSSES_OF_HEAD[known]
            break
    raise ValueError(
        'InfoBatch needs a loss per image, and mmib knows none for '
        f'{type(head).__name__}, which computes its losses in its own way: '
        f'change `{where}`, tell mmib which losses it calls with '
        '`mmib.tasks.segmentation.register_head`, or train without '
        'InfoBatchHook.')


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

    def count(cls_scores, mask_preds, batch_gt_instances, *args, **kwargs):
        for loss in of_queries:
            loss.rows_per_image = len(cls_scores[0])
        # Each mask of the labels is matched while there are queries.
        num_masks = [
            min(len(instances.labels), len(scores))
            for instances, scores in zip(batch_gt_instances, cls_scores)
        ]
        for loss in of_masks:
            loss.rows_per_image = num_masks

    observe_get_targets(matcher, count)
