# Copyright (c) mmib contributors. All rights reserved.
"""MMSegmentation: which heads a segmentor has, which losses these heads call,
and how the losses are split into images, see ``docs/supported.md``."""
import functools
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmseg.models import decode_heads
from mmseg.models import losses as mmseg_losses
from mmseg.models import segmentors
from mmseg.models.decode_heads.cascade_decode_head import BaseCascadeDecodeHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor

from ..batch import BatchContext, Factor
from ..losses import register_unreduced
from . import Task
from .heads import HeadTable
from .replace import follow_rows

# Segmentors with the usual heads.
_SEGMENTORS = (segmentors.EncoderDecoder, segmentors.CascadeEncoderDecoder,
               segmentors.DepthEstimator, segmentors.MultimodalEncoderDecoder)
# Heads with the usual losses.
_DECODE_HEADS = (BaseDecodeHead, BaseCascadeDecodeHead, decode_heads.DAHead,
                 decode_heads.DDRHead, decode_heads.PIDHead,
                 decode_heads.PointHead, decode_heads.SideAdapterCLIPHead,
                 decode_heads.STDCHead, decode_heads.VPDDepthHead)
# Heads that classify masks.
_MASK_HEADS = (decode_heads.Mask2FormerHead, decode_heads.MaskFormerHead)
TABLE = HeadTable(
    __name__,
    methods=('loss', 'loss_by_feat', '_loss_by_feat_single',
             '_decode_head_forward_train', '_auxiliary_head_forward_train'),
    models={
        **dict.fromkeys(_SEGMENTORS, ('decode_head', 'auxiliary_head')),
        decode_heads.IterativeDecodeHead: ('kernel_generate_head', ),
    },
    heads={
        **dict.fromkeys(_DECODE_HEADS, ('loss_decode', )),
        **dict.fromkeys(_MASK_HEADS, ('loss_cls', 'loss_mask', 'loss_dice')),
        decode_heads.EncHead: ('loss_decode', 'loss_se_decode'),
    },
    register_model='register_segmentor')
register_head = TABLE.register_head
register_segmentor = TABLE.register_model
# Heads whose keys of losses don't follow from the names of the losses.
_KEYS_OF_THEIR_OWN = (decode_heads.DDRHead, decode_heads.PIDHead)


class SegmentationTask(Task):
    """Segmentors with a ``decode_head``."""

    def matches(self, model: nn.Module) -> bool:
        return getattr(model, 'decode_head', None) is not None

    def attach(self, model: nn.Module, batch: BatchContext,
               hooks: Sequence[Hook]) -> None:
        found = TABLE.wrap(model, batch, is_only_logged=_is_only_logged)
        for head, losses in found:
            matcher = head
            if isinstance(head, decode_heads.SideAdapterCLIPHead):
                matcher, all_losses = head.match_masks, losses['loss_decode']
                of_masks = [x for x in all_losses if 'mask' in x.loss_name]
                of_queries = [x for x in all_losses if x not in of_masks]
            elif isinstance(head, _MASK_HEADS):
                of_masks = losses['loss_mask'] + losses['loss_dice']
                of_queries = losses['loss_cls']
            else:
                continue
            follow_rows(matcher, 'get_targets', (of_queries, _num_queries),
                        (of_masks, _num_masks))


TASK = SegmentationTask()


def _is_only_logged(head: nn.Module, name: str, loss: nn.Module) -> bool:
    """Return whether MMEngine logs a loss and doesn't train it, because there
    is no "loss" in its key."""
    return (name == 'loss_decode' and not isinstance(head, _KEYS_OF_THEIR_OWN)
            and 'loss' not in getattr(loss, 'loss_name', 'loss'))


def _num_queries(cls_scores: Sequence[Tensor], *args: Any,
                 **kwargs: Any) -> int:
    """Return the number of queries of each image, from the arguments of
    ``get_targets`` of a head that classifies masks."""
    return len(cls_scores[0])


def _num_masks(cls_scores: Sequence[Tensor], mask_preds: Any,
               batch_gt_instances: Sequence[Any], *args: Any,
               **kwargs: Any) -> List[int]:
    """Return the number of matched masks of each image, in the same way. Not
    more masks of the labels are matched than there are queries."""
    return [
        min(len(instances.labels), len(scores))
        for instances, scores in zip(batch_gt_instances, cls_scores)
    ]


Elements = Tuple[Tensor, Optional[Factor]]


def _fails_at_ignored_pixels(loss: nn.Module) -> bool:
    """Return whether a loss has class weights, with which the baseline's
    divisor fails at ignored pixels: in MMSegmentation 1.2.2, and with
    ``avg_non_ignore`` in OneDL's 1.4.2 too."""
    return loss.class_weight is not None and not loss.use_sigmoid


@register_unreduced(
    mmseg_losses.CrossEntropyLoss, always=_fails_at_ignored_pixels)
def cross_entropy(loss: nn.Module,
                  pred: Tensor,
                  target: Tensor,
                  ignore_index: int = -100,
                  **kwargs: Any) -> Union[Tensor, Elements]:
    """Return the loss of each pixel. The divisor is that of
    ``mmseg/models/losses/cross_entropy_loss.py``, without ``.item()``, which
    would wait for the GPU."""
    elements = loss(
        pred,
        target,
        ignore_index=ignore_index,
        reduction_override='none',
        **kwargs)
    if not loss.avg_non_ignore and (loss.use_sigmoid
                                    or loss.class_weight is None):
        return elements
    valid = target != ignore_index
    if loss.use_sigmoid:
        valid &= target >= 0
        return elements, valid.sum() * (elements.numel() // target.numel())
    class_weight = _class_weight_like(loss, pred)
    if class_weight is not None:
        pixel_weight = class_weight[target.masked_fill(~valid, 0)]
        return elements, (pixel_weight * valid).sum()
    return elements, valid.sum()


def mean_of_elements(loss: nn.Module, pred: Tensor, target: Tensor,
                     **kwargs: Any) -> Tensor:
    """Return the elements of a loss that divides by their number."""
    return loss(pred, target, reduction_override='none', **kwargs)


register_unreduced(mmseg_losses.DiceLoss, mmseg_losses.FocalLoss,
                   mmseg_losses.SiLogLoss)(
                       mean_of_elements)
try:
    # Heads that classify masks have the losses of MMDetection.
    from mmdet.models import losses as mmdet_losses
    register_unreduced(mmdet_losses.CrossEntropyLoss, mmdet_losses.DiceLoss,
                       mmdet_losses.FocalLoss)(
                           mean_of_elements)
except ImportError:
    pass


@register_unreduced(
    mmseg_losses.TverskyLoss,
    mmseg_losses.HuasdorffDisstanceLoss,
    reduces=False)
def image_by_image(loss: nn.Module, pred: Tensor, target: Tensor,
                   **kwargs: Any) -> Tensor:
    """Return the parts of a loss that is the mean over single images."""
    return _alone(loss, pred, target, **kwargs)


@register_unreduced(mmseg_losses.OhemCrossEntropy, reduces=False)
def ohem_cross_entropy(loss: mmseg_losses.OhemCrossEntropy, pred: Tensor,
                       target: Tensor) -> Elements:
    """Return the loss of each hard pixel. The hard pixels are chosen among all
    pixels of the batch."""
    valid = target != loss.ignore_label
    elements = loss.loss_weight * F.cross_entropy(
        pred,
        target,
        weight=_class_weight_like(loss, pred),
        ignore_index=loss.ignore_label,
        reduction='none')
    with torch.no_grad():
        prob = pred.softmax(1).gather(
            1,
            target.masked_fill(~valid, 0).unsqueeze(1)).squeeze(1)
        increasing = prob.masked_fill(~valid, float('inf')).flatten().sort()[0]
        last = (valid.sum() - 1).clamp(min=0, max=loss.min_kept)
        threshold = increasing.gather(0, last.view(1)).clamp(min=loss.thresh)
        hard = valid & (prob < threshold)
    return elements * hard, hard.sum()


@register_unreduced(mmseg_losses.BoundaryLoss, reduces=False)
def boundary(loss: mmseg_losses.BoundaryLoss, pred: Tensor,
             target: Tensor) -> Tensor:
    """Return the loss of each pixel. Boundary pixels and other pixels are
    balanced over the batch."""
    pred = pred.flatten(1)
    target = target.flatten(1).float()
    positive, negative = target == 1, target == 0
    num_positive, num_negative = positive.sum(), negative.sum()
    total = num_positive + num_negative
    balance = positive * num_negative + negative * num_positive
    # Where one kind is missing, nothing counts, as in the baseline.
    balance = balance / total.clamp(min=1)
    return loss.loss_weight * F.binary_cross_entropy_with_logits(
        pred, target, balance.to(pred), reduction='none')


@register_unreduced(mmseg_losses.LovaszLoss)
def lovasz(loss: nn.Module, pred: Tensor, target: Tensor,
           **kwargs: Any) -> Union[Tensor, Elements]:
    """Return the loss of each image. Without ``per_image`` the loss of a batch
    isn't a sum over images."""
    if loss.per_image:
        return mean_of_elements(loss, pred, target, **kwargs)
    with torch.no_grad():
        return _alone(loss, pred, target, **kwargs), None


def _alone(loss: nn.Module, pred: Tensor, target: Tensor,
           **kwargs: Any) -> Tensor:
    """Return the loss of each image by itself, of shape (B,)."""
    # The Lovasz loss of an image without labelled pixels is empty.
    return torch.stack([
        loss(pred[i:i + 1], target[i:i + 1], **kwargs).sum().float()
        for i in range(len(pred))
    ])


def _class_weight_like(loss: Any, pred: Tensor) -> Optional[Tensor]:
    """Return the class weights in the type of the logits, as in the baseline.
    """
    if loss.class_weight is None:
        return None
    return _to_tensor(tuple(loss.class_weight), pred.dtype, pred.device)


@functools.lru_cache(maxsize=None)
def _to_tensor(values: Tuple[float, ...], dtype: torch.dtype,
               device: torch.device) -> Tensor:
    # Cached: a copy to the GPU in each iteration would wait for the GPU.
    return torch.tensor(values, dtype=dtype, device=device)
