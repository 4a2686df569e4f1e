# Copyright (c) mmib contributors. All rights reserved.
"""From the loss of a batch to one raw score and one weight per image.

How a loss falls into images is known for each class of losses, its *form*:
see :func:`register_form`. ``docs/losses.md`` has the table of them.
"""
import functools
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from mmseg.models import losses as mmseg_losses
from mmseg.registry import MODELS as MMSEG_MODELS
from torch import Tensor

Divisor = Union[int, Tensor]
Elements = Tuple[Tensor, Divisor]


class Form(NamedTuple):
    """How a loss falls into images.

    Args:
        elements (Callable): ``elements(loss, pred, target, **kwargs)`` gives
            the loss without reduction and what its mean divides the sum by.
        reduces (bool): Whether the loss follows its ``reduction``. Others
            always take the mean.
    """

    elements: Callable[..., Elements]
    reduces: bool


_FORMS: Dict[type, Form] = {}


def register_form(*loss_types: type, reduces: bool = True) -> Callable:
    """Tell mmib how a loss falls into images.

    The decorated function ``elements(loss, pred, target, **kwargs)`` returns
    the loss without reduction, a tensor whose first dimension runs over the
    images, or over their queries or masks, image by image; and the number
    that the mean of the loss divides the sum of these elements by. Elements
    may depend on the whole batch, as a selection of hard pixels does.

    Args:
        *loss_types (type): Classes of losses. Subclasses aren't meant: they
            may compute anything.
        reduces (bool): Whether the loss follows its ``reduction``. Defaults
            to True.

    Examples:
        >>> @register_form(MyLoss)
        >>> def my_elements(loss, pred, target, **kwargs):
        >>>     pixels = loss(pred, target, reduction_override='none')
        >>>     return pixels, pixels.numel()
    """

    def register(elements: Callable[..., Elements]) -> Callable:
        for loss_type in loss_types:
            _FORMS[loss_type] = Form(elements, reduces)
        return elements

    return register


@MODELS.register_module()
class InfoBatchLoss(nn.Module):
    """Multiply the loss of each image by its weight, and keep its raw value.

    :class:`InfoBatchHook` wraps the losses of every head and sets
    :attr:`weights` before each iteration. While they are None, as outside of
    training and in annealing, the call goes straight to the wrapped loss.
    (Not with class weights: there the divisor of stock fails at ignored
    pixels in MMSegmentation 1.2.2, and with ``avg_non_ignore`` in OneDL's
    1.4.2 too, so mmib always divides itself.)

    With weights the loss is computed without reduction. It is summed over
    each image's elements (pixels, mostly), weighted, and divided by what the
    wrapped loss divides by. So the result is the stock loss up to the
    weights. The mean of an image's elements is its score.

    The Lovasz loss of a whole batch is no sum over images. It keeps its
    value, and the weights multiply each image's share of the gradient; the
    score is the loss of the image alone.

    Args:
        loss (dict or nn.Module): The loss to wrap.

    Raises:
        ValueError: If mmib knows no form of the loss, see
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
        self.masks_per_image: Optional[List[int]] = None
        """Rows of a call that belong to each image, where a head calls the
        loss on the masks it matched. None where all have as many."""

    @property
    def loss_name(self) -> str:
        """str: Name of the wrapped loss. Log keys follow from it."""
        return self.loss.loss_name

    def forward(self,
                pred: Tensor,
                target: Tensor,
                weight: Optional[Tensor] = None,
                **kwargs) -> Tensor:
        """Compute the loss.

        Args:
            pred (Tensor): Logits of shape (B, C, H, W).
            target (Tensor): Labels of shape (B, H, W).
            weight (Tensor, optional): Weight of each pixel, of shape
                (B, H, W). It counts in score and loss. Defaults to None.
            **kwargs: What the wrapped loss takes besides. With
                ``reduction_override='none'``, as pixel samplers call it, or
                without gradients nothing is scored or weighted.

        Returns:
            Tensor: The loss, scalar unless it goes straight to a loss that
            isn't.

        Raises:
            RuntimeError: If predictions or elements can't be told apart by
                images.
        """
        # Some losses don't know the argument.
        if weight is not None:
            kwargs['weight'] = weight
        straight = self.weights is None and not _divides_wrong(self.loss)
        # What isn't differentiated isn't trained: a pixel sampler asks for
        # losses, or a hook.
        if (straight or not torch.is_grad_enabled()
                or kwargs.get('reduction_override') == 'none'):
            return self.loss(pred, target, **kwargs)
        if _is_batch_lovasz(self.loss):
            self._check_rows(len(pred), len(self.weights))
            self._add_scores(_lovasz_alone(self.loss, pred, target, **kwargs))
            return self.loss(
                _scale_gradient(pred, self.weights), target, **kwargs)

        form = _FORMS[type(self.loss)]
        reduction = kwargs.pop('reduction_override', None)
        if not form.reduces:
            reduction = 'mean'
        elif reduction is None:
            reduction = self.loss.reduction
        avg_factor = kwargs.pop('avg_factor', None)
        elements, divisor = form.elements(self.loss, pred, target, **kwargs)
        if elements.dim() == 0:
            raise RuntimeError(
                f'`{form.elements.__name__}`, which was registered for '
                f'{type(self.loss).__name__}, gives a scalar: it must return '
                'the loss without reduction, as '
                '`mmib.losses.register_form` says.')
        if self.weights is None:
            total = elements.sum(dtype=torch.float32)
        else:
            num_images = len(self.weights)
            if self.masks_per_image is not None:
                self._check_rows(
                    len(elements), max(sum(self.masks_per_image), 1), True)
            else:
                # Queries are rows of logits, and pixels a batch of images.
                self._check_rows(
                    len(elements), num_images, several=pred.dim() < 3)
            total = (self._image_sums(elements) * self.weights).sum()
        if reduction == 'sum':
            return total
        if reduction == 'none':
            # The segmentor takes the mean of what isn't a scalar.
            return total / elements.numel()
        if avg_factor is not None:
            divisor = avg_factor
        # Stock adds the same: a batch of ignored pixels gives 0, not NaN.
        return total / (divisor + torch.finfo(torch.float32).eps)

    def _check_rows(self,
                    num_rows: int,
                    expected: int,
                    several: bool = False) -> None:
        """Check that the rows of a call can be given to the images."""
        if num_rows % expected or num_rows < expected or not (
                several or num_rows == expected):
            raise RuntimeError(
                f'{type(self.loss).__name__} was called on {num_rows} rows '
                f'for a batch of {len(self.weights)} images, so InfoBatch '
                'cannot tell which row is which image: check the `loss` '
                'method of `model` and its heads, or train without '
                'InfoBatchHook.')

    def _image_sums(self, elements: Tensor) -> Tensor:
        """Sum over the elements of each image, of shape (B,). Their means
        are added to the scores."""
        if self.masks_per_image is None:
            images = elements.reshape(len(self.weights), -1)
            sums = images.sum(1, dtype=torch.float32)
            self._add_scores(sums / images.shape[1])
        else:
            rows_per_mask = len(elements) // sum(self.masks_per_image)
            images = elements.split(
                [masks * rows_per_mask for masks in self.masks_per_image])
            sums = torch.stack(
                [image.sum(dtype=torch.float32) for image in images])
            self._add_scores(
                torch.stack([
                    total / max(image.numel(), 1)
                    for total, image in zip(sums, images)
                ]))
        return sums

    def _add_scores(self, scores: Tensor) -> None:
        scores = scores.detach()
        self.scores = scores if self.scores is None else self.scores + scores


def check_loss(loss: nn.Module) -> None:
    """Check that mmib knows how a loss falls into images.

    Args:
        loss (nn.Module): Loss of a head.

    Raises:
        ValueError: If it doesn't.
    """
    if type(loss) not in _FORMS or getattr(loss, 'use_mask', False):
        name = type(loss).__name__ + (' with `use_mask=True`' if getattr(
            loss, 'use_mask', False) else '')
        raise ValueError(
            'InfoBatch needs a loss per image, and mmib knows none for '
            f'{name}: use CrossEntropyLoss or another loss of '
            'MMSegmentation, tell mmib how it falls into images with '
            '`mmib.losses.register_form`, or train without InfoBatchHook.')
    if _FORMS[type(loss)].reduces and not hasattr(loss, 'reduction'):
        raise ValueError(
            f'{type(loss).__name__} has no `reduction`: register it with '
            '`mmib.losses.register_form(..., reduces=False)`.')
    if loss.state_dict():
        # Its names would change when it is wrapped.
        raise ValueError(
            f'InfoBatch cannot wrap {type(loss).__name__}, which has '
            f'parameters or buffers of its own ({", ".join(loss.state_dict())}'
            '): keep them in the head, register buffers with '
            '`persistent=False`, or train without InfoBatchHook.')


def _divides_wrong(loss: nn.Module) -> bool:
    return (isinstance(loss, mmseg_losses.CrossEntropyLoss)
            and loss.class_weight is not None and not loss.use_sigmoid)


def _class_weight_like(loss: nn.Module, pred: Tensor) -> Optional[Tensor]:
    """Class weights in the type of the logits, as stock has them."""
    if loss.class_weight is None:
        return None
    return _to_tensor(tuple(loss.class_weight), pred.dtype, pred.device)


@functools.lru_cache(maxsize=None)
def _to_tensor(values: Tuple[float, ...], dtype: torch.dtype,
               device: torch.device) -> Tensor:
    # Kept, as a copy to the GPU would wait for it in each iteration.
    return torch.tensor(values, dtype=dtype, device=device)


@register_form(mmseg_losses.CrossEntropyLoss)
def _cross_entropy(loss: nn.Module,
                   pred: Tensor,
                   target: Tensor,
                   ignore_index: int = -100,
                   **kwargs) -> Elements:
    """The divisor follows ``cross_entropy`` and ``binary_cross_entropy`` in
    ``mmseg/models/losses/cross_entropy_loss.py``, without their ``.item()``,
    which would wait for the GPU."""
    elements = loss(
        pred,
        target,
        ignore_index=ignore_index,
        reduction_override='none',
        **kwargs)
    valid = target != ignore_index
    if loss.use_sigmoid:
        if not loss.avg_non_ignore:
            return elements, elements.numel()
        valid &= target >= 0
        return elements, valid.sum() * (elements.numel() // target.numel())
    if loss.class_weight is not None:
        class_weight = _class_weight_like(loss, pred)
        pixel_weight = class_weight[target.masked_fill(~valid, 0)]
        return elements, (pixel_weight * valid).sum()
    return elements, valid.sum() if loss.avg_non_ignore else target.numel()


def _unreduced(loss: nn.Module, pred: Tensor, target: Tensor,
               **kwargs) -> Elements:
    elements = loss(pred, target, reduction_override='none', **kwargs)
    return elements, elements.numel()


register_form(mmseg_losses.DiceLoss, mmseg_losses.FocalLoss,
              mmseg_losses.LovaszLoss, mmseg_losses.SiLogLoss)(
                  _unreduced)
try:
    # Heads that classify masks take their losses from here.
    from mmdet.models import losses as mmdet_losses
    register_form(mmdet_losses.CrossEntropyLoss, mmdet_losses.DiceLoss,
                  mmdet_losses.FocalLoss)(
                      _unreduced)
except ImportError:
    pass


@register_form(
    mmseg_losses.TverskyLoss,
    mmseg_losses.HuasdorffDisstanceLoss,
    reduces=False)
def _image_by_image(loss: nn.Module, pred: Tensor, target: Tensor,
                    **kwargs) -> Elements:
    """For losses that are the mean of the losses of the images alone."""
    images = [
        loss(pred[i:i + 1], target[i:i + 1], **kwargs)
        for i in range(len(pred))
    ]
    return torch.stack(images), len(images)


@register_form(mmseg_losses.OhemCrossEntropy, reduces=False)
def _ohem_cross_entropy(loss: nn.Module, pred: Tensor,
                        target: Tensor) -> Elements:
    """The mean over the hard pixels, which are chosen in the whole batch."""
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


@register_form(mmseg_losses.BoundaryLoss, reduces=False)
def _boundary(loss: nn.Module, pred: Tensor, target: Tensor) -> Elements:
    """Boundary and other pixels are balanced in the whole batch."""
    pred = pred.flatten(1)
    target = target.flatten(1).float()
    positive, negative = target == 1, target == 0
    num_positive, num_negative = positive.sum(), negative.sum()
    total = num_positive + num_negative
    balance = positive * num_negative + negative * num_positive
    # Without either nothing counts, as in stock.
    balance = balance / total.clamp(min=1)
    elements = loss.loss_weight * F.binary_cross_entropy_with_logits(
        pred, target, balance.to(pred), reduction='none')
    return elements, elements.numel()


def _is_batch_lovasz(loss: nn.Module) -> bool:
    return isinstance(loss, mmseg_losses.LovaszLoss) and not loss.per_image


def _lovasz_alone(loss: nn.Module, pred: Tensor, target: Tensor,
                  **kwargs) -> Tensor:
    """The loss of each image alone, of shape (B,)."""
    with torch.no_grad():
        # Of an image that is all ignored it is empty.
        return torch.stack([
            loss(pred[i:i + 1], target[i:i + 1], **kwargs).sum().float()
            for i in range(len(pred))
        ])


def _scale_gradient(pred: Tensor, weights: Tensor) -> Tensor:
    """The same values; what flows back to each image is multiplied by its
    weight."""
    pred = pred.view_as(pred)
    if pred.requires_grad:
        scale = weights.view(-1, *[1] * (pred.dim() - 1))
        pred.register_hook(lambda gradient: gradient * scale.to(gradient))
    return pred
