# Copyright (c) mmib contributors. All rights reserved.
"""Which heads a segmentor has, and which losses these call."""
from typing import Any, Callable, List, Sequence

import torch.nn as nn
from mmengine.hooks import Hook
from mmseg.models import decode_heads, segmentors
from mmseg.models.decode_heads.cascade_decode_head import BaseCascadeDecodeHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor

from ...batch import BatchContext
from ...losses import InfoBatchLoss
from .. import Task
from ..heads import LossTable
from ..replace import replace_method

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
TABLE = LossTable(
    'mmib.openmmlab.tasks.segmentation',
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
            if isinstance(head, _MASK_HEADS):
                _follow_matching(head, losses['loss_cls'],
                                 losses['loss_mask'] + losses['loss_dice'])
            elif isinstance(head, decode_heads.SideAdapterCLIPHead):
                of_masks = [
                    loss for loss in losses['loss_decode']
                    if 'mask' in loss.loss_name
                ]
                of_queries = [
                    loss for loss in losses['loss_decode']
                    if loss not in of_masks
                ]
                _follow_matching(head.match_masks, of_queries, of_masks)


TASK = SegmentationTask()


def _is_only_logged(head: nn.Module, name: str, loss: nn.Module) -> bool:
    """MMEngine trains the terms that have "loss" in their key."""
    return (name == 'loss_decode' and not isinstance(head, _KEYS_OF_THEIR_OWN)
            and 'loss' not in getattr(loss, 'loss_name', 'loss'))


def _follow_matching(matcher: object, of_queries: List[InfoBatchLoss],
                     of_masks: List[InfoBatchLoss]) -> None:
    """Tell the losses of a head that classifies masks which rows of a call
    belong to which image.

    Args:
        matcher (object): The head, or its part, with a ``get_targets``.
        of_queries (list[InfoBatchLoss]): Losses of all queries of all images.
        of_masks (list[InfoBatchLoss]): Losses of the matched masks of all
            images.
    """

    def count(get_targets: Callable, cls_scores: Sequence[Tensor],
              mask_preds: Any, batch_gt_instances: Sequence[Any], *args: Any,
              **kwargs: Any) -> Any:
        for loss in of_queries:
            loss.rows_per_image = len(cls_scores[0])
        # As many masks of the labels are matched as there are queries.
        num_masks = [
            min(len(instances.labels), len(scores))
            for instances, scores in zip(batch_gt_instances, cls_scores)
        ]
        for loss in of_masks:
            loss.rows_per_image = num_masks
        return get_targets(cls_scores, mask_preds, batch_gt_instances, *args,
                           **kwargs)

    replace_method(matcher, 'get_targets', count)
