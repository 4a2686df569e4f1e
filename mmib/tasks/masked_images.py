# Copyright (c) mmib contributors. All rights reserved.
"""Training without labels with MMPretrain: models that restore what is masked
in images, and others whose loss is a sum over images."""
from typing import Dict, Optional, Sequence, Tuple, Union

import torch.nn as nn
from mmengine.hooks import Hook
from mmpretrain.models import heads, selfsup
from mmpretrain.models.losses import (CosineSimilarityLoss,
                                      PixelReconstructionLoss)
from torch import Tensor

from ..batch import BatchContext
from ..compat import observe_calls
from ..losses import InfoBatchLoss, register_unreduced
from .classification import losses  # noqa: F401 (that of BEiT)
from .wrapping import known, wrap

# Head: the attribute that holds its loss.
_LOSS_OF_HEAD: Dict[type, str] = {
    heads.BEiTV1Head: 'loss_module',
    heads.BEiTV2Head: 'loss_module',
    heads.LatentPredictHead: 'loss_module',
    heads.MAEPretrainHead: 'loss_module',
    heads.MIMHead: 'loss_module',
    heads.MixMIMPretrainHead: 'loss_module',
    heads.SimMIMHead: 'loss_module',
    heads.SparKPretrainHead: 'loss',
    heads.iTPNClipHead: 'loss_module',
}
# These call their loss on the masked tokens of all images, one image after the
# other, and get the mask last.
_OF_MASKED_TOKENS = (heads.BEiTV1Head, heads.BEiTV2Head, heads.iTPNClipHead)
# Models that take all of their loss from ``head``.
_MODELS: Dict[type, bool] = dict.fromkeys(
    (selfsup.BEiT, selfsup.BYOL, selfsup.EVA, selfsup.MAE, selfsup.MaskFeat,
     selfsup.MFF, selfsup.MILAN, selfsup.MixMIM, selfsup.SimMIM,
     selfsup.SimSiam, selfsup.SparK, selfsup.iTPN), True)
# Those whose loss of an image depends on which others there are.
_COMPARE_IMAGES = (selfsup.BarlowTwins, selfsup.DenseCL, selfsup.MoCo,
                   selfsup.MoCoV3, selfsup.SimCLR, selfsup.SwAV)
# A subclass that has another one of these computes its loss in its own way.
_METHODS_OF_HEAD = ('loss', 'forward')
_METHODS_OF_MODEL = ('loss', )

Elements = Tuple[Union[Tensor, int], ...]


def register_head(head_type: type, loss: str = 'loss_module') -> None:
    """Tell mmib which loss a head calls.

    It must call nothing else, each time with predictions and targets of the
    whole batch, image by image, and where it masks with the mask as third
    argument. This counts for subclasses too, unless they compute their loss
    in their own way.

    Args:
        head_type (type): Class of the head.
        loss (str): Attribute with the loss. Defaults to ``'loss_module'``.
    """
    _LOSS_OF_HEAD[head_type] = loss


def register_model(model_type: type) -> None:
    """Tell mmib of a model that takes all of its loss from its ``head``.

    Args:
        model_type (type): Class of the model. Subclasses that don't override
            ``loss`` again are meant too.
    """
    _MODELS[model_type] = True


class MaskedLoss(InfoBatchLoss):
    """:class:`InfoBatchLoss` of a loss whose third argument is a mask."""

    def forward(self,
                pred: Tensor,
                target: Tensor,
                mask: Optional[Tensor] = None) -> Tensor:
        """Compute the loss.

        Args:
            pred (Tensor): Predictions, such as those of each patch, of shape
                (B, L, C), or of each pixel, (B, C, H, W).
            target (Tensor): What they should be, of the same shape.
            mask (Tensor, optional): 1 where the loss counts, of shape (B, L)
                or (B, 1, H, W). None counts everything. Defaults to None.

        Returns:
            Tensor: The loss, scalar.
        """
        masked = {} if mask is None else dict(mask=mask)
        return super().forward(pred, target, **masked)


@register_unreduced(PixelReconstructionLoss, reduces=False)
def pixel_reconstruction(loss: PixelReconstructionLoss,
                         pred: Tensor,
                         target: Tensor,
                         mask: Optional[Tensor] = None) -> Elements:
    """Distances, of patches the mean over their pixels."""
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
    """Of each feature vector."""
    similarity = nn.functional.normalize(
        pred, dim=-1) * nn.functional.normalize(
            target, dim=-1)
    elements = loss.shift_factor - loss.scale_factor * similarity.sum(-1)
    return _where_masked(elements, mask)


def _where_masked(elements: Tensor, mask: Optional[Tensor]) -> Elements:
    """Elements, divisor, and how many count of each image."""
    if mask is None:
        return elements, elements.numel()
    counts = mask.flatten(1).sum(1)
    return elements * mask, counts.sum(), counts.clamp(min=1)


class MaskedImagesTask:
    """Self-supervised models of MMPretrain."""

    # What is masked is drawn anew at each visit, and with it the score.
    ema = 0.8
    scores = ('loss', 'gradient')

    def matches(self, model: nn.Module) -> bool:
        return isinstance(model, selfsup.BaseSelfSupervisor)

    def attach(self,
               model: nn.Module,
               batch: BatchContext,
               hooks: Sequence[Hook] = ()) -> None:
        _check_model(model)
        head = model.get_submodule('head')
        name = known(head, _LOSS_OF_HEAD, _METHODS_OF_HEAD)
        if name is None:
            raise ValueError(
                'InfoBatch needs a loss per image, and mmib knows none for '
                f'{type(head).__name__}: change `model.head`, tell mmib which '
                'loss it calls with `mmib.tasks.masked_images.register_head`, '
                'or train without InfoBatchHook.')
        loss = getattr(head, name)
        if not isinstance(loss, MaskedLoss):
            loss = MaskedLoss(loss)
        try:
            setattr(head, name, wrap(loss, batch))
        except ValueError as error:
            raise ValueError(f'`model.head.{name}` of {type(head).__name__}: '
                             f'{error}') from None
        if isinstance(head, _OF_MASKED_TOKENS):

            def count_tokens(*args: Tensor) -> None:
                masked = args[-1].flatten(1).bool()
                loss.rows_per_image = masked.sum(1).tolist()

            observe_calls(head, 'loss', count_tokens)


def _check_model(model: nn.Module) -> None:
    name = type(model).__name__
    if isinstance(model, _COMPARE_IMAGES):
        raise ValueError(
            f'{name} compares images with each other, so the loss of one '
            'depends on which others there are, and pruning would change it: '
            'use a model that compares an image with itself, such as MAE, '
            'SimMIM or BYOL, or train without InfoBatchHook.')
    if known(model, _MODELS, _METHODS_OF_MODEL) is None:
        raise ValueError(
            f'InfoBatch knows no loss per image of {name}, and what it adds '
            'itself would be trained without weights: if all of its loss '
            'comes from its `head`, say so with `mmib.tasks.masked_images.'
            'register_model`, or train without InfoBatchHook.')


TASK = MaskedImagesTask()
