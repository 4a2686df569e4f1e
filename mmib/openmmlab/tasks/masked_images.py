# Copyright (c) mmib contributors. All rights reserved.
"""MMPretrain without labels: models that restore masked images, and others
whose loss is a sum over images."""
from typing import List, Optional, Sequence, Tuple, Union

import torch.nn as nn
from mmengine.hooks import Hook
from mmpretrain.models import heads, selfsup
from mmpretrain.models.losses import (CosineSimilarityLoss,
                                      PixelReconstructionLoss)
from torch import Tensor

from ...errors import Refusal
from ..batch import BatchContext
from ..losses import register_unreduced
from . import Task, classification  # noqa: F401 (registers the loss of BEiT
from .heads import HeadTable
from .replace import follow_rows

# Models whose loss comes only from ``head``.
_MODELS = (selfsup.BEiT, selfsup.BYOL, selfsup.EVA, selfsup.MAE,
           selfsup.MaskFeat, selfsup.MFF, selfsup.MILAN, selfsup.MixMIM,
           selfsup.SimMIM, selfsup.SimSiam, selfsup.SparK, selfsup.iTPN)
# Heads with one loss.
_HEADS = (heads.BEiTV1Head, heads.BEiTV2Head, heads.LatentPredictHead,
          heads.MAEPretrainHead, heads.MIMHead, heads.MixMIMPretrainHead,
          heads.SimMIMHead, heads.iTPNClipHead)
TABLE = HeadTable(
    __name__,
    methods=('loss', 'forward'),
    models=dict.fromkeys(_MODELS, ('head', )),
    heads={
        **dict.fromkeys(_HEADS, ('loss_module', )),
        heads.SparKPretrainHead: ('loss', ),
    },
    register_model='register_model')
register_head = TABLE.register_head
register_model = TABLE.register_model
# Heads that call their loss on the masked tokens of all images, image by
# image. The mask is their last argument.
_OF_MASKED_TOKENS = (heads.BEiTV1Head, heads.BEiTV2Head, heads.iTPNClipHead)
# Models in which the loss of an image depends on the other images.
_COMPARE_IMAGES = (selfsup.BarlowTwins, selfsup.DenseCL, selfsup.MoCo,
                   selfsup.MoCoV3, selfsup.SimCLR, selfsup.SwAV)

Elements = Union[Tensor, Tuple[Tensor, ...]]


@register_unreduced(PixelReconstructionLoss, reduces=False)
def pixel_reconstruction(loss: PixelReconstructionLoss,
                         pred: Tensor,
                         target: Tensor,
                         mask: Optional[Tensor] = None) -> Elements:
    """Return the distance of each pixel, or the mean of each patch."""
    elements = loss.penalty(pred, target)
    if elements.dim() == 3:
        elements = elements.mean(-1)
    if mask is not None:
        elements = elements / loss.channel
    return _where_masked(elements, mask)


@register_unreduced(CosineSimilarityLoss, reduces=False)
def cosine_similarity(loss: CosineSimilarityLoss,
                      pred: Tensor,
                      target: Tensor,
                      mask: Optional[Tensor] = None) -> Elements:
    """Return the distance of each feature vector."""
    similarity = nn.functional.normalize(
        pred, dim=-1) * nn.functional.normalize(
            target, dim=-1)
    elements = loss.shift_factor - loss.scale_factor * similarity.sum(-1)
    return _where_masked(elements, mask)


def _where_masked(elements: Tensor, mask: Optional[Tensor]) -> Elements:
    """Return the elements, and with a mask their divisor, and how many
    elements of each image count."""
    if mask is None:
        return elements
    counts = mask.flatten(1).sum(1)
    return elements * mask, counts.sum(), counts.clamp(min=1)


class MaskedImagesTask(Task):
    """Self-supervised models of MMPretrain."""

    # Each visit draws a new mask, on which the score depends.
    ema = 0.8

    def matches(self, model: nn.Module) -> bool:
        return isinstance(model, selfsup.BaseSelfSupervisor)

    def attach(self, model: nn.Module, batch: BatchContext,
               hooks: Sequence[Hook]) -> None:
        if isinstance(model, _COMPARE_IMAGES):
            raise Refusal(
                f'{type(model).__name__} compares images with each other, so '
                'the loss of an image depends on the others, and pruning '
                'would change the loss: use a model that compares an image '
                'with itself, such as MAE, SimMIM or BYOL, or train without '
                'InfoBatchHook.')
        for head, losses in TABLE.wrap(model, batch):
            if isinstance(head, _OF_MASKED_TOKENS):
                follow_rows(head, 'loss',
                            (sum(losses.values(), []), _num_masked))


def _num_masked(*args: Tensor) -> List[int]:
    """Return how many masked tokens each image has."""
    return args[-1].flatten(1).bool().sum(1).tolist()


TASK = MaskedImagesTask()
