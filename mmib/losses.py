# Copyright (c) mmib contributors. All rights reserved.
"""From pixel losses to one raw score and one weight per image."""
from typing import List, Optional, Union

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from mmseg.models.decode_heads.cascade_decode_head import BaseCascadeDecodeHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.losses import CrossEntropyLoss
from mmseg.registry import MODELS as MMSEG_MODELS
from torch import Tensor


@MODELS.register_module()
class InfoBatchLoss(nn.Module):
    """Multiply the loss of each image by its weight, and keep its raw value.

    :class:`InfoBatchHook` wraps the losses of every head and sets
    :attr:`weights` before each iteration. While they are None, as outside of
    training and in annealing, the call goes straight to the wrapped loss.
    (Not with class weights: there the divisor of stock fails at ignored
    pixels in MMSegmentation 1.2.2, and with ``avg_non_ignore`` in OneDL's
    1.4.2 too, so mmib always divides itself.)

    With weights the wrapped loss is called once, without reduction. What it
    returns is summed over each image's pixels, which gives the score, then
    weighted and divided by what the wrapped loss divides by. So the result is
    the stock loss up to the weights.

    Args:
        loss (dict or nn.Module): The loss to wrap: MMSegmentation's
            ``CrossEntropyLoss``, softmax or sigmoid.

    Raises:
        ValueError: If the loss has no value per image, see
            :func:`check_loss`.
    """

    def __init__(self, loss: Union[dict, nn.Module]) -> None:
        super().__init__()
        if isinstance(loss, dict):
            loss = MMSEG_MODELS.build(loss)
        check_loss(loss)
        self.loss = loss
        self.weights: Optional[Tensor] = None
        """Weight of each image of the batch, float32 of shape (B,)."""
        self.scores: Optional[Tensor] = None
        """Raw loss of each image, float32 of shape (B,), summed over the
        calls in this iteration. None before the first one."""
        self._class_weight: Optional[Tensor] = None

    @property
    def loss_name(self) -> str:
        """str: Name of the wrapped loss. Log keys follow from it."""
        return self.loss.loss_name

    def forward(self, pred: Tensor, target: Tensor, **kwargs) -> Tensor:
        """Compute the loss.

        Args:
            pred (Tensor): Logits of shape (B, C, H, W).
            target (Tensor): Labels of shape (B, H, W).
            **kwargs: What the wrapped loss takes besides. A ``weight`` of
                each pixel, of shape (B, H, W), counts in score and loss. With
                ``reduction_override='none'``, as pixel samplers call it,
                nothing is scored or weighted.

        Returns:
            Tensor: The loss, scalar unless the reduction is 'none'.
        """
        reduction = kwargs.get('reduction_override') or self.loss.reduction
        own_divisor = (
            self.loss.class_weight is not None and not self.loss.use_sigmoid)
        if reduction == 'none' or (self.weights is None and not own_divisor):
            return self.loss(pred, target, **kwargs)

        avg_factor = kwargs.pop('avg_factor', None)
        kwargs['reduction_override'] = 'none'
        pixel_loss = self.loss(pred, target, **kwargs)
        image_loss = pixel_loss.flatten(1).sum(1, dtype=torch.float32)
        if self.weights is not None:
            raw = image_loss.detach() * (len(image_loss) / pixel_loss.numel())
            self.scores = raw if self.scores is None else self.scores + raw
            image_loss = image_loss * self.weights

        total = image_loss.sum()
        if reduction == 'sum':
            return total
        if avg_factor is None:
            # -100 is the default of CrossEntropyLoss.
            avg_factor = self._avg_factor(pred, target, pixel_loss,
                                          kwargs.get('ignore_index', -100))
        # Stock adds the same: a batch of ignored pixels gives 0, not NaN.
        return total / (avg_factor + torch.finfo(torch.float32).eps)

    def _avg_factor(self, pred: Tensor, target: Tensor, pixel_loss: Tensor,
                    ignore_index: int) -> Union[int, Tensor]:
        """What ``CrossEntropyLoss`` divides the sum over the batch by.

        It follows ``cross_entropy`` and ``binary_cross_entropy`` in
        ``mmseg/models/losses/cross_entropy_loss.py``, without their
        ``.item()``, which would wait for the GPU.
        """
        valid = target != ignore_index
        if self.loss.use_sigmoid:
            if not self.loss.avg_non_ignore:
                return pixel_loss.numel()
            valid &= target >= 0
            return valid.sum() * (pixel_loss.numel() // target.numel())
        if self.loss.class_weight is not None:
            class_weight = self._class_weight_like(pred)
            pixel_weight = class_weight[target.masked_fill(~valid, 0)]
            return (pixel_weight * valid).sum()
        return valid.sum() if self.loss.avg_non_ignore else target.numel()

    def _class_weight_like(self, pred: Tensor) -> Tensor:
        """Class weights in the type of the logits, as stock has them."""
        cached = self._class_weight
        if (cached is None or cached.dtype != pred.dtype
                or cached.device != pred.device):
            self._class_weight = pred.new_tensor(self.loss.class_weight)
        return self._class_weight


def check_loss(loss: nn.Module) -> None:
    """Check that a loss has a value per image that mmib knows.

    Args:
        loss (nn.Module): Loss of a head.

    Raises:
        ValueError: If it doesn't.
    """
    # A subclass may compute anything, so only the class itself is known.
    if type(loss) is not CrossEntropyLoss or loss.use_mask:
        name = type(loss).__name__ + (' with `use_mask=True`' if getattr(
            loss, 'use_mask', 0) else '')
        raise ValueError(
            f'InfoBatch needs a loss per image, and mmib knows none for '
            f'{name}: use CrossEntropyLoss (softmax or `use_sigmoid=True`) '
            'as `loss_decode` of every head, or train without InfoBatchHook.')
    if loss.reduction not in ('mean', 'sum'):
        raise ValueError(
            "InfoBatch needs `reduction='mean'` or 'sum' in `loss_decode`, "
            f'but got {loss.reduction!r}.')


def wrap_losses(model: nn.Module) -> List[InfoBatchLoss]:
    """Wrap the losses of every head of a segmentor in place.

    Args:
        model (nn.Module): A segmentor with a ``decode_head`` and optionally
            an ``auxiliary_head``, each a head or a list of heads.

    Returns:
        list[InfoBatchLoss]: The wrapped losses of all heads. Losses that the
        config wrapped already are among them.

    Raises:
        ValueError: If a head or a loss has no loss per image.
    """
    heads = []
    for part in ('decode_head', 'auxiliary_head'):
        head = getattr(model, part, None)
        group = head if isinstance(head, nn.ModuleList) else [head]
        heads += [(part, head) for head in group if head is not None]
    if not heads:
        raise ValueError(
            'InfoBatch scores the losses of `decode_head`, and '
            f'{type(model).__name__} has none: use a segmentor such as '
            'EncoderDecoder, or train without InfoBatchHook.')
    wrapped = []
    for part, head in heads:
        # A head with a loss computation of its own may add terms that have
        # no weight, or no value, per image.
        if (not isinstance(head, BaseDecodeHead)
                or type(head).loss_by_feat is not BaseDecodeHead.loss_by_feat
                or type(head).loss
                not in (BaseDecodeHead.loss, BaseCascadeDecodeHead.loss)):
            raise ValueError(
                f'InfoBatch needs a loss per image, and mmib knows none for '
                f'{type(head).__name__}, which computes its losses in its '
                f'own way: change `model.{part}`, or train without '
                'InfoBatchHook.')
        try:
            if isinstance(head.loss_decode, nn.ModuleList):
                head.loss_decode = nn.ModuleList(map(_wrap, head.loss_decode))
                wrapped += head.loss_decode
            else:
                head.loss_decode = _wrap(head.loss_decode)
                wrapped.append(head.loss_decode)
        except ValueError as error:
            raise ValueError(f'`model.{part}.loss_decode` of '
                             f'{type(head).__name__}: {error}') from None
    return wrapped


def _wrap(loss: nn.Module) -> InfoBatchLoss:
    return loss if isinstance(loss, InfoBatchLoss) else InfoBatchLoss(loss)
