# Copyright (c) mmib contributors. All rights reserved.
"""The losses of a model, with a score and a weight for each image.

:func:`register_unreduced` registers how a class of losses is split into
images. The task of a library registers the losses of the library.
"""
import copy
import inspect
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from ..errors import Refusal
from ..scores.weigh import weigh_gradients
from .batch import BatchContext, Factor, RowsPerImage, mean_images


class Unreduced(NamedTuple):
    """See :func:`register_unreduced`."""

    function: Callable[..., Union[Tensor, Tuple]]
    reduces: bool
    always: Callable[[nn.Module], bool]


_UNREDUCED: Dict[type, Unreduced] = {}


def register_unreduced(
        *loss_types: type,
        reduces: bool = True,
        always: Callable[[nn.Module], bool] = lambda loss: False) -> Callable:
    """Register how a loss is split into images.

    The decorated function ``unreduced(loss, pred, target, **kwargs)`` returns
    the loss without reduction: a tensor whose first dimension runs over the
    images, or over their queries or masks, image by image. An element may
    depend on the whole batch, as in losses that select hard pixels.

    If the mean isn't the sum of these elements divided by their number, the
    function returns a tuple of the tensor and

    - the ``avg_factor`` that the mean divides the sum of the elements by,
    - optionally, the number of elements of each image that count, of shape
      (B,), such as the elements within a mask. The other elements are 0.

    If the loss isn't a sum over images, the function returns ``(losses,
    None)``, where ``losses`` of shape (B,) has the loss of each image alone.
    Then the loss of the batch keeps its value, and the weights multiply the
    gradients at the predictions.

    Args:
        *loss_types (type): Classes of losses. Their subclasses are not
            registered, because they may compute anything.
        reduces (bool): Whether the loss follows its ``reduction``. If not, the
            loss always takes the mean, and the function gets an
            ``avg_factor``. Defaults to True.
        always (Callable): ``always(loss)`` returns whether to replace the loss
            even without weights, because its own computation fails. Defaults
            to never.

    Examples:
        >>> @register_unreduced(MyLoss)
        >>> def my_loss(loss, pred, target, **kwargs):
        >>>     return loss(pred, target, reduction_override='none', **kwargs)
    """

    def register(function: Callable) -> Callable:
        for loss_type in loss_types:
            _UNREDUCED[loss_type] = Unreduced(function, reduces, always)
        return function

    return register


@MODELS.register_module()
class InfoBatchLoss(nn.Module):
    """Weigh the loss of each image, and keep its raw value as a score.

    A task wraps the losses of a model in this module. Without weights, the
    wrapped loss is called as it is. With weights, the loss of each image is
    weighed as in :func:`mmib.scores.weigh.weigh_losses`, and the sum is
    divided by the divisor of the wrapped loss. The score of an image is the
    mean over its elements, which usually are pixels. Other attributes, such as
    ``loss_weight``, are read from the wrapped loss and set on it.

    Args:
        loss (dict or nn.Module): The loss to wrap.
        rows_per_image (int or list[int]): Rows of each image in a call: one
            number for all images, such as the number of queries, or a list
            with a number for each image, such as its matched masks. A call may
            have a multiple of the rows of a list. Defaults to 1.
        batch (BatchContext, optional): Weights and scores of the batch, which
            the task gives. Defaults to None.
    """

    def __init__(self,
                 loss: Union[dict, nn.Module],
                 rows_per_image: RowsPerImage = 1,
                 batch: Optional[BatchContext] = None) -> None:
        super().__init__()
        self.rows_per_image = rows_per_image
        self.batch = batch or BatchContext()
        # After this line, other attributes are set on the loss.
        self.loss = MODELS.build(loss) if isinstance(loss, dict) else loss
        # MMPretrain's losses of masked images have a mask as third argument.
        parameters = inspect.signature(self.loss.forward).parameters
        self._third = 'mask' if 'mask' in parameters else 'weight'
        # Buffers of a loss keep their names in checkpoints.
        self._register_state_dict_hook(_without_prefix)
        self._register_load_state_dict_pre_hook(_with_prefix)

    def _wrapped(self) -> Optional[nn.Module]:
        # While a module is built, copied or unpickled, there is none yet.
        return self.__dict__.get('_modules', {}).get('loss')

    def __getattr__(self, name: str) -> Any:
        wrapped = self._wrapped()
        # A head asks for `loss_name` in each step, and a module takes long to
        # say that it has no such attribute. So the wrapped loss comes first.
        if name != 'loss' and wrapped is not None:
            try:
                return getattr(wrapped, name)
            except AttributeError:
                pass
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        wrapped = self._wrapped()
        is_own = (
            name == 'loss' or name in self.__dict__
            or hasattr(nn.Module, name))
        if is_own or not hasattr(wrapped, name):
            super().__setattr__(name, value)
        else:
            setattr(wrapped, name, value)

    # The batch has Python values, for which `torch.compile` would compile
    # again in each step.
    @torch.compiler.disable
    def forward(self,
                pred: Tensor,
                target: Tensor,
                weight: Optional[Tensor] = None,
                **kwargs: Any) -> Tensor:
        """Compute the loss.

        Args:
            pred (Tensor): Predictions, image by image, such as logits of
                shape (B, C, H, W).
            target (Tensor): Labels, such as of shape (B, H, W).
            weight (Tensor, optional): Weight of each element, such as of each
                pixel, of shape (B, H, W), which applies to score and loss. For
                a loss with a parameter ``mask``, the mask. Defaults to None.
            **kwargs: Other arguments of the wrapped loss. Nothing is scored or
                weighed without gradients, or with
                ``reduction_override='none'``, as pixel samplers call losses.

        Raises:
            Refusal: If it isn't known which rows belong to which image.
        """
        # Some losses don't have this argument.
        if weight is not None:
            kwargs[self._third] = weight
        # Pixel samplers and hooks compute losses that aren't trained.
        is_trained = (
            torch.is_grad_enabled()
            and kwargs.get('reduction_override') != 'none')
        # A module takes long to look up its submodules.
        batch, loss = self.batch, self.loss
        if is_trained and batch.weights is not None:
            compute = self._score if batch.only_scores else self._weigh
            return compute(loss, pred, target, **kwargs)
        rule = _UNREDUCED.get(type(loss))
        if (is_trained and rule and rule.always(loss)
                and not batch.only_scores):
            elements, divisor, _ = self._unreduced(loss, pred, target,
                                                   **kwargs)
            if divisor is not None:
                return elements.sum(dtype=torch.float32) / divisor
        return loss(pred, target, **kwargs)

    def _weigh(self, loss: nn.Module, pred: Tensor, target: Tensor,
               **kwargs: Any) -> Tensor:
        """Return the loss with a weight for each image."""
        losses, factor = self._by_image(loss, pred, target, **kwargs)
        if factor is not None:
            self.batch.watch(pred, self.rows_per_image, factor)
            return self.batch.mean(losses, factor)
        self.batch.watch(pred, self.rows_per_image)
        self.batch.add_scores(losses)
        if pred.requires_grad:
            pred, = weigh_gradients(self.batch.row_weights, [pred])
        return loss(pred, target, **kwargs)

    def _score(self, loss: nn.Module, pred: Tensor, target: Tensor,
               **kwargs: Any) -> Tensor:
        """Return the loss of the baseline to the last bit. A copy of the loss
        computes the scores, because a loss may count its calls."""
        with torch.no_grad():
            losses, factor = self._by_image(
                copy.deepcopy(loss), pred, target, **kwargs)
        self.batch.watch(pred, self.rows_per_image,
                         1. if factor is None else factor)
        self.batch.add_scores(losses)
        return loss(pred, target, **kwargs)

    def _by_image(self, loss: nn.Module, pred: Tensor, target: Tensor,
                  **kwargs: Any) -> Tuple[Tensor, Optional[Factor]]:
        """Return the mean over the elements of each image, float32 of shape
        (B,), and the factor for which the mean of ``factor * means`` is the
        loss of the baseline. The factor is None for a loss that isn't a sum
        over images."""
        elements, divisor, counts = self._unreduced(loss, pred, target,
                                                    **kwargs)
        size, rows = self.batch.size, self.rows_per_image
        num_rows = len(elements)
        if divisor is None:
            # One row of predictions and one loss for each image.
            num_rows = len(pred)
            fits = num_rows == size and elements.shape == (size, )
        elif isinstance(rows, int):
            fits = num_rows == size * rows
        else:
            # A batch may have no rows, such as no matched mask.
            shares = sum(rows)
            fits = num_rows % max(shares, 1) == 0 and (bool(num_rows)
                                                       == bool(shares))
        if not fits:
            raise Refusal(
                f'{type(loss).__name__} was called on {num_rows} rows '
                f'for a batch of {size} images, so InfoBatch does not know '
                'which row is which image: check the `loss` method of `model` '
                'and its heads, set `rows_per_image` of its InfoBatchLoss, or '
                'train without InfoBatchHook.')
        if divisor is None:
            return elements, None
        means, numbers = mean_images(elements, rows, size, counts)
        return means, size * numbers / divisor

    def _unreduced(self, loss: nn.Module, pred: Tensor, target: Tensor,
                   **kwargs: Any) -> Tuple[Tensor, Any, Optional[Tensor]]:
        """Return the elements of the loss, the divisor of their sum in the
        baseline, and how many elements of each image count."""
        function, reduces, _ = _UNREDUCED[type(loss)]
        reduction = kwargs.pop('reduction_override', None)
        if not reduces:
            reduction = 'mean'
        elif reduction is None:
            reduction = loss.reduction
        # What takes the mean of images divides the loss of each by it.
        avg_factor = kwargs.pop('avg_factor', None) if reduces else None
        result = function(loss, pred, target, **kwargs)
        if isinstance(result, Tensor):
            result = result, result.numel()
        elements, divisor, *counts = result
        if elements.dim() == 0:
            raise Refusal(
                f'`{function.__name__}`, which was registered for '
                f'{type(loss).__name__}, gives a scalar: it must return '
                'the loss without reduction, as '
                '`mmib.openmmlab.losses.register_unreduced` says.')
        if divisor is None:
            return elements, None, None
        if reduction == 'sum':
            divisor = 1
        elif reduction == 'none':
            # If a loss isn't a scalar, the model takes its mean.
            divisor = elements.numel()
        else:
            # As in OpenMMLab's losses, the loss of a batch without labelled
            # pixels is 0, not NaN.
            divisor = ((divisor if avg_factor is None else avg_factor) +
                       torch.finfo(torch.float32).eps)
        return elements, divisor, counts[0] if counts else None


def is_known(loss: nn.Module) -> bool:
    """Return whether the class of a loss was registered."""
    return type(loss) in _UNREDUCED


def check_loss(loss: nn.Module) -> None:
    """Raise a Refusal unless mmib can wrap a loss."""
    name = type(loss).__name__
    # mmseg's and mmdet's CrossEntropyLoss of one mask per region.
    use_mask = getattr(loss, 'use_mask', False)
    if use_mask or not is_known(loss):
        raise Refusal(
            'InfoBatch needs a loss per image, and mmib knows none for '
            f'{name}{" with `use_mask=True`" * use_mask}: use CrossEntropyLoss'
            ' or another loss of the library, register how the loss falls '
            'into images with `mmib.openmmlab.losses.register_unreduced`, or '
            'train without InfoBatchHook.')
    if _UNREDUCED[type(loss)].reduces and not hasattr(loss, 'reduction'):
        raise Refusal(
            f'{name} has no `reduction`: register it with '
            '`mmib.openmmlab.losses.register_unreduced(..., reduces=False)`.')
    parameters = [name for name, _ in loss.named_parameters()]
    if parameters:
        # The names of the parameters, which EMA and others use, would change.
        raise Refusal(
            f'InfoBatch cannot wrap {name}, which has parameters of its own '
            f'({", ".join(parameters)}): keep them in the head, or train '
            'without InfoBatchHook.')


def _without_prefix(module: nn.Module, state_dict: Dict[str, Any], prefix: str,
                    local_metadata: dict) -> None:
    inner = f'{prefix}loss.'
    for name in [name for name in state_dict if name.startswith(inner)]:
        state_dict[prefix + name[len(inner):]] = state_dict.pop(name)


def _with_prefix(state_dict: Dict[str, Any], prefix: str, *args: Any) -> None:
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[f'{prefix}loss.{name[len(prefix):]}'] = state_dict.pop(name)
