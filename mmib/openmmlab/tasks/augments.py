# Copyright (c) mmib contributors. All rights reserved.
"""Batch augmentations of MMPretrain that show which images they mix, see
``docs/supported.md``."""
from typing import Any, Optional, Tuple, Union

import numpy as np
import torch.nn.functional as F
from mmpretrain.models.utils import CutMix, Mixup, ResizeMix
from mmpretrain.registry import BATCH_AUGMENTS
from torch import Tensor

from ...errors import Refusal
from ..batch import BatchContext

Share = Union[float, Tensor]


@BATCH_AUGMENTS.register_module()
class PairedMixup(Mixup):
    """``Mixup`` that mixes image i of the batch with image B - 1 - i.

    So each image is in two mixtures that InfoBatch knows, as in the paper
    (A.3). ``Mixup`` itself draws a permutation, and keeps neither the
    permutation nor the share. Without InfoBatchHook ``PairedMixup`` is a plain
    batch augmentation, for the baseline to compare with.

    To mix in another way, derive from this class and override
    :meth:`mix_inputs`.

    Args:
        alpha (float): Both parameters of the Beta distribution of the share.

    Examples:
        >>> custom_imports = dict(
        ...     imports=['mmib.openmmlab.tasks.classification'])
        >>> model = dict(
        ...     train_cfg=dict(augments=dict(type='PairedMixup', alpha=0.8)))
    """

    batch: Optional[BatchContext] = None
    """BatchContext, optional: The batch in training."""

    def mix_inputs(self, inputs: Tensor) -> Tuple[Tensor, Share]:
        """Mix image i with image B - 1 - i, ``inputs.flip(0)``.

        Args:
            inputs (Tensor): Images, of shape (B, C, H, W), which may be
                changed in place.

        Returns:
            tuple[Tensor, float or Tensor]: The mixtures, and the share of
            image i in the label of mixture i: one number, or a tensor of shape
            (B,).
        """
        share = np.random.beta(self.alpha, self.alpha)
        return _blend(inputs, share), share

    def mix(self, batch_inputs: Tensor,
            batch_scores: Tensor) -> Tuple[Tensor, Tensor]:
        """Mix images of shape (B, C, H, W) and one-hot labels of shape (B,
        num_classes)."""
        mixed, share = self.mix_inputs(batch_inputs)
        if self.batch is not None:
            self.batch.mix(share)
        return mixed, _blend(batch_scores, share)


@BATCH_AUGMENTS.register_module()
class PairedCutMix(PairedMixup, CutMix):
    """``CutMix``, with its arguments, that mixes image i of the batch with
    image B - 1 - i."""

    def mix_inputs(self, inputs: Tensor) -> Tuple[Tensor, Share]:
        share = np.random.beta(self.alpha, self.alpha)
        (y1, y2, x1,
         x2), share = self.cutmix_bbox_and_lam(inputs.shape[-2:], share)
        inputs[..., y1:y2, x1:x2] = inputs[..., y1:y2, x1:x2].flip(0)
        return inputs, share


@BATCH_AUGMENTS.register_module()
class PairedResizeMix(PairedMixup, ResizeMix):
    """``ResizeMix``, with its arguments, that mixes image i of the batch with
    image B - 1 - i."""

    def mix_inputs(self, inputs: Tensor) -> Tuple[Tensor, Share]:
        share = np.random.beta(self.alpha, self.alpha)
        share = share * (self.lam_max - self.lam_min) + self.lam_min
        (y1, y2, x1,
         x2), share = self.cutmix_bbox_and_lam(inputs.shape[-2:], share)
        inputs[..., y1:y2, x1:x2] = F.interpolate(
            inputs.flip(0),
            size=(int(y2 - y1), int(x2 - x1)),
            mode=self.interpolation,
            align_corners=False)
        return inputs, share


def _blend(rows: Tensor, share: Share) -> Tensor:
    if isinstance(share, Tensor):
        share = share.view(-1, *[1] * (rows.dim() - 1))
    return share * rows + (1 - share) * rows.flip(0)


def connect_augments(batch_augments: Any, batch: BatchContext) -> None:
    """Let batch augmentations declare what they mix.

    Args:
        batch_augments (Callable, optional): The ``RandomBatchAugment`` of a
            preprocessor, or a single augmentation.
        batch (BatchContext): The batch in training.

    Raises:
        Refusal: If an augmentation doesn't show what it mixes.
    """
    for augment in getattr(batch_augments, 'augments', [batch_augments]):
        if isinstance(augment, PairedMixup):
            augment.batch = batch
        elif augment is not None:
            raise _unpaired(augment)


def _unpaired(augment: Any) -> Refusal:
    name = getattr(augment, '__name__', type(augment).__name__)
    if type(augment) in (Mixup, CutMix, ResizeMix):
        change = (
            f"set `type='Paired{name}'` there instead of '{name}' and import "
            "it with `custom_imports = dict(imports=['mmib.openmmlab.tasks."
            "classification'])`")
    else:
        change = ('derive it from '
                  '`mmib.openmmlab.tasks.classification.PairedMixup`, '
                  'or remove it')
    return Refusal(
        f'{name} in `augments` of `model.train_cfg`, of '
        '`data_preprocessor.batch_augments` or of SwitchRecipeHook does not '
        'show which images it mixes, so InfoBatch cannot weight these images: '
        f'{change}.')
