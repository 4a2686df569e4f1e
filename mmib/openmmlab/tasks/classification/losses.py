# Copyright (c) mmib contributors. All rights reserved.
"""How the losses of MMPretrain fall into images, see
``docs/supported.md``."""
from typing import Any, Tuple

import torch.nn as nn
from mmpretrain.models import losses as mmpretrain_losses
from torch import Tensor

from ...batch import Factor
from ...losses import register_unreduced

_LOSSES = [
    mmpretrain_losses.AsymmetricLoss, mmpretrain_losses.CrossEntropyLoss,
    mmpretrain_losses.FocalLoss, mmpretrain_losses.LabelSmoothLoss,
    mmpretrain_losses.SeesawLoss
]
if hasattr(mmpretrain_losses, 'RegressionLoss'):  # OneDL's stack alone.
    _LOSSES.append(mmpretrain_losses.RegressionLoss)


@register_unreduced(*_LOSSES)
def by_image(loss: nn.Module, pred: Tensor, target: Tensor,
             **kwargs: Any) -> Tuple[Tensor, Factor]:
    """Elements of shape (B,) or (B, classes). Heads divide their sum by the
    number of images, so the loss of an image is the sum over the classes."""
    elements = loss(pred, target, reduction_override='none', **kwargs)
    number = elements.numel()
    if elements.dim() > 1 and loss.reduction != 'none':
        elements = elements.flatten(1).sum(1)
    return elements, number
