# Copyright (c) mmib contributors. All rights reserved.
"""Which losses the heads of a segmentor have, and where they keep them."""
import functools
from typing import Dict, List, Tuple

import torch.nn as nn
from mmseg.models import decode_heads
from mmseg.models.decode_heads.cascade_decode_head import BaseCascadeDecodeHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead

from .losses import InfoBatchLoss

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


def wrap_losses(model: nn.Module) -> List[InfoBatchLoss]:
    """Wrap the losses of every head of a segmentor in place.

    Args:
        model (nn.Module): A segmentor with a ``decode_head`` and optionally
            an ``auxiliary_head``, each a head or a list of heads.

    Returns:
        list[InfoBatchLoss]: The wrapped losses of all heads. Losses that the
        config wrapped already are among them.

    Raises:
        ValueError: If mmib doesn't know a head or a loss.
    """
    wrapped = []
    for part in ('decode_head', 'auxiliary_head'):
        heads = getattr(model, part, None)
        for head in heads if isinstance(heads, nn.ModuleList) else [heads]:
            if head is not None:
                wrapped += _wrap_head(head, f'model.{part}')
    if not wrapped:
        raise ValueError(
            'InfoBatch scores the losses of `decode_head`, and '
            f'{type(model).__name__} has none: use a segmentor such as '
            'EncoderDecoder, or train without InfoBatchHook.')
    return wrapped


def _wrap_head(head: nn.Module, where: str) -> List[InfoBatchLoss]:
    if isinstance(head, decode_heads.IterativeDecodeHead):
        _check_head(head, where)
        return _wrap_head(head.kernel_generate_head,
                          f'{where}.kernel_generate_head')
    wrapped = []
    for name in _check_head(head, where):
        loss = getattr(head, name)
        try:
            if isinstance(loss, nn.ModuleList):
                setattr(head, name, nn.ModuleList(map(_wrap, loss)))
                wrapped += getattr(head, name)
            else:
                setattr(head, name, _wrap(loss))
                wrapped.append(getattr(head, name))
        except ValueError as error:
            raise ValueError(f'`{where}.{name}` of {type(head).__name__}: '
                             f'{error}') from None
    if isinstance(head,
                  (decode_heads.MaskFormerHead, decode_heads.Mask2FormerHead)):
        _count_masks(head, [head.loss_mask, head.loss_dice])
    elif isinstance(head, decode_heads.SideAdapterCLIPHead):
        _count_masks(head.match_masks,
                     [loss for loss in wrapped if 'mask' in loss.loss_name])
    return wrapped


def _wrap(loss: nn.Module) -> InfoBatchLoss:
    return loss if isinstance(loss, InfoBatchLoss) else InfoBatchLoss(loss)


def _check_head(head: nn.Module, where: str) -> Tuple[str, ...]:
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
        '`mmib.heads.register_head`, or train without InfoBatchHook.')


def _check_names(head: nn.Module, names: Tuple[str, ...]) -> None:
    """Check that these are the losses of the head: others would train with
    weight 1."""
    for name in names:
        if not hasattr(head, name):
            raise ValueError(f'{type(head).__name__} has no loss `{name}`: '
                             'correct its `mmib.heads.register_head`.')
    for name, child in head.named_children():
        losses = child if isinstance(child, nn.ModuleList) else [child]
        if name not in names and any(hasattr(x, 'loss_name') for x in losses):
            raise ValueError(
                f'{type(head).__name__} has the loss `{name}`, of which mmib '
                'was not told: give it all losses of the head with '
                f'`mmib.heads.register_head({type(head).__name__}, '
                f'{", ".join(map(repr, (*names, name)))})`.')


def _count_masks(matcher: object, losses: List[InfoBatchLoss]) -> None:
    """Tell the losses of masks how many masks each image has.

    Heads that classify masks call these losses on the matched masks of all
    images in one row. How many an image has is known where they are matched.

    Args:
        matcher (object): Head or part of it with a ``get_targets``.
        losses (list[InfoBatchLoss]): The losses of its masks.
    """
    get_targets = matcher.get_targets

    @functools.wraps(get_targets)
    def counting(cls_scores, mask_preds, batch_gt_instances, *args, **kwargs):
        targets = get_targets(cls_scores, mask_preds, batch_gt_instances,
                              *args, **kwargs)
        # Each mask of the labels is matched while there are queries.
        masks = [
            min(len(instances.labels), len(scores))
            for instances, scores in zip(batch_gt_instances, cls_scores)
        ]
        for loss in losses:
            loss.masks_per_image = masks
        return targets

    matcher.get_targets = counting
