# Copyright (c) mmib contributors. All rights reserved.
"""From the loss of a batch to one raw score and one weight per image.

:func:`register_unreduced` tells how a class of losses falls into images. The
task of a library registers its losses.
"""
import copy
import inspect
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from ..errors import Refusal
from ..weigh import weigh_gradients
from .batch import BatchContext, Factor, RowsPerImage, mean_images


class Unreduced(NamedTuple):
    """See :func:`register_unreduced`."""

    function: Callable[..., Tuple]
    reduces: bool
    always: Callable[[nn.Module], bool]


_UNREDUCED: Dict[type, Unreduced] = {}
_COUPLED: Dict[type, Callable[..., Optional[Tensor]]] = {}


def register_unreduced(
        *loss_types: type,
        reduces: bool = True,
        always: Callable[[nn.Module], bool] = lambda loss: False) -> Callable:
    """Tell mmib how a loss falls into images.

    The decorated function ``unreduced(loss, pred, target, **kwargs)`` returns

    - the loss without reduction, a tensor whose first dimension runs over the
      images, or over their queries or masks, image by image. Elements may
      depend on the whole batch, as a selection of hard pixels does.
    - its ``avg_factor``, by which the mean divides the sum of the elements.
    - optionally the number of elements of each image that count, of shape
      (B,), as within a mask. The others are 0.

    Args:
        *loss_types (type): Classes of losses, without their subclasses, which
            may compute anything.
        reduces (bool): Whether the loss follows its ``reduction``. If not, it
            always takes the mean. Defaults to True.
        always (Callable): ``always(loss)`` tells whether to replace the loss
            also where nothing is weighted, as its own computation fails.
            Defaults to never.

    Examples:
        >>> @register_unreduced(MyLoss)
        >>> def my_loss(loss, pred, target, **kwargs):
        >>>     pixels = loss(
        >>>         pred, target, reduction_override='none', **kwargs)
        >>>     return pixels, pixels.numel()
    """

    def register(function: Callable) -> Callable:
        for loss_type in loss_types:
            _UNREDUCED[loss_type] = Unreduced(function, reduces, always)
        return function

    return register


def register_coupled(*loss_types: type) -> Callable:
    """Tell mmib of classes of losses that are no sum over images.

    Such a loss keeps its value, and the weights multiply the gradient of each
    image. The decorated function ``scores(loss, pred, target, **kwargs)``
    returns the loss of each image alone, of shape (B,), or None where a loss
    is a sum over images, for which :func:`register_unreduced` counts.
    """

    def register(function: Callable) -> Callable:
        for loss_type in loss_types:
            _COUPLED[loss_type] = function
        return function

    return register


@MODELS.register_module()
class InfoBatchLoss(nn.Module):
    """Multiply the loss of each image by its weight, and keep its raw value.

    :class:`InfoBatchHook` wraps the losses of a model in this module. Without
    weights the wrapped loss is called as it is. With weights, the loss of each
    image is weighed as :func:`mmib.weigh.weigh_losses` does, and the sum is
    divided as the wrapped loss divides. The mean of an image's elements,
    mostly pixels, is its score. Other attributes, such as ``loss_weight``, are
    those of the wrapped loss.

    Args:
        loss (dict or nn.Module): The loss to wrap.
        rows_per_image (int or list[int]): Rows of a call that belong to each
            image, image by image: a number for all images, as of queries; or
            a list of numbers in proportion to the rows of each image, as of
            matched masks, which may change with every batch. Defaults to 1.
        batch (BatchContext, optional): Weights and scores of the batch. The
            hook sets it. Defaults to None.
    """

    def __init__(self,
                 loss: Union[dict, nn.Module],
                 rows_per_image: RowsPerImage = 1,
                 batch: Optional[BatchContext] = None) -> None:
        super().__init__()
        self.rows_per_image = rows_per_image
        self.batch = batch or BatchContext()
        # From here on other attributes are set on the loss.
        self.loss = MODELS.build(loss) if isinstance(loss, dict) else loss
        # MMPretrain's losses of masked images take a mask as third argument.
        parameters = inspect.signature(self.loss.forward).parameters
        self._third = 'mask' if 'mask' in parameters else 'weight'
        # Buffers of a loss keep their names in checkpoints.
        self._register_state_dict_hook(_without_prefix)
        self._register_load_state_dict_pre_hook(_with_prefix)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == 'loss':  # As while a module is copied or unpickled.
                raise
            return getattr(self.loss, name)

    def __setattr__(self, name: str, value: Any) -> None:
        wrapped = self.__dict__.get('_modules', {}).get('loss')
        is_own = (
            name == 'loss' or name in self.__dict__
            or hasattr(nn.Module, name))
        if is_own or not hasattr(wrapped, name):
            super().__setattr__(name, value)
        else:
            setattr(wrapped, name, value)

    # The batch takes Python values, for which `torch.compile` would compile
    # anew in each step.
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
                pixel, of shape (B, H, W), which counts in score and loss; or
                the mask of a loss that takes one. Defaults to None.
            **kwargs: Other arguments of the wrapped loss. Nothing is scored or
                weighted with ``reduction_override='none'``, as pixel samplers
                call losses, or without gradients.

        Raises:
            Refusal: If rows can't be told apart by images.
        """
        # Some losses don't know the argument.
        if weight is not None:
            kwargs[self._third] = weight
        # A loss that isn't differentiated isn't trained: a pixel sampler, or a
        # hook, looks at losses.
        is_trained = (
            torch.is_grad_enabled()
            and kwargs.get('reduction_override') != 'none')
        if not is_trained or (self.batch.weights is None
                              and not self._fails_as_it_is()):
            return self.loss(pred, target, **kwargs)
        if self.batch.weights is None:
            elements, divisor, _ = self._unreduced(self.loss, pred, target,
                                                   **kwargs)
            return elements.sum(dtype=torch.float32) / divisor
        scores = None
        if type(self.loss) in _COUPLED:
            scores = _COUPLED[type(self.loss)](self.loss, pred, target,
                                               **kwargs)
        if scores is not None:
            return self._coupled(scores, pred, target, **kwargs)
        if self.batch.only_scores:
            return self._only_scored(pred, target, **kwargs)
        return self._weighted(pred, target, **kwargs)

    def _weighted(self, pred: Tensor, target: Tensor, **kwargs: Any) -> Tensor:
        """The baseline's loss with a weight for each image."""
        watched = self.batch.watch(pred, self.rows_per_image)
        means, factor = self._by_image(self.loss, pred, target, **kwargs)
        watched.divide_by(factor)
        return self.batch.mean(means, factor)

    def _only_scored(self, pred: Tensor, target: Tensor,
                     **kwargs: Any) -> Tensor:
        """The baseline's loss to the last bit. A copy of the loss scores, as a
        loss may count what it has seen."""
        watched = self.batch.watch(pred, self.rows_per_image)
        with torch.no_grad():
            means, factor = self._by_image(
                copy.deepcopy(self.loss), pred, target, **kwargs)
        watched.divide_by(factor)
        self.batch.add_scores(means)
        return self.loss(pred, target, **kwargs)

    def _coupled(self, scores: Tensor, pred: Tensor, target: Tensor,
                 **kwargs: Any) -> Tensor:
        """The value of a loss that is no sum over images. The weights multiply
        the gradient of each image."""
        row_weights = self.batch.row_weights
        self._check_rows(len(pred), len(row_weights))
        self.batch.watch(pred, self.rows_per_image)
        self.batch.add_scores(scores)
        if pred.requires_grad:
            pred, = weigh_gradients(row_weights, [pred])
        return self.loss(pred, target, **kwargs)

    def _by_image(self, loss: nn.Module, pred: Tensor, target: Tensor,
                  **kwargs: Any) -> Tuple[Tensor, Factor]:
        """Mean over the elements of each image, float32 of shape (B,), and
        what a mean over the batch multiplies these by to be the baseline's
        loss."""
        elements, divisor, counts = self._unreduced(loss, pred, target,
                                                    **kwargs)
        num_images, num_rows = self.batch.size, len(elements)
        if isinstance(self.rows_per_image, int):
            expected = num_images * self.rows_per_image
        else:
            shares = max(sum(self.rows_per_image), 1)
            expected = shares * max(num_rows // shares, 1)
        self._check_rows(num_rows, expected)
        means, numbers = mean_images(elements, self.rows_per_image, num_images,
                                     counts)
        return means, num_images * numbers / divisor

    def _unreduced(self, loss: nn.Module, pred: Tensor, target: Tensor,
                   **kwargs: Any) -> Tuple[Tensor, Factor, Optional[Tensor]]:
        """Elements of the loss, what the baseline divides their sum by, and
        how many elements of each image count."""
        unreduced = _UNREDUCED.get(type(loss))
        if unreduced is None:
            raise Refusal(
                f'What `register_coupled` has for {type(loss).__name__} gave '
                'None, as of a sum over images: register such a loss by '
                '`mmib.openmmlab.losses.register_unreduced` too.')
        reduction = kwargs.pop('reduction_override', None)
        if not unreduced.reduces:
            reduction = 'mean'
        elif reduction is None:
            reduction = loss.reduction
        avg_factor = kwargs.pop('avg_factor', None)
        elements, divisor, *counts = unreduced.function(
            loss, pred, target, **kwargs)
        if elements.dim() == 0:
            raise Refusal(
                f'`{unreduced.function.__name__}`, which was registered for '
                f'{type(loss).__name__}, gives a scalar: it must return '
                'the loss without reduction, as '
                '`mmib.openmmlab.losses.register_unreduced` says.')
        if reduction == 'sum':
            divisor = 1
        elif reduction == 'none':
            # The model takes the mean of a loss that isn't a scalar.
            divisor = elements.numel()
        else:
            # As OpenMMLab's losses: a batch of ignored pixels gives 0, not
            # NaN.
            divisor = ((divisor if avg_factor is None else avg_factor) +
                       torch.finfo(torch.float32).eps)
        return elements, divisor, counts[0] if counts else None

    def _fails_as_it_is(self) -> bool:
        """Whether the wrapped loss can't be called itself."""
        unreduced = _UNREDUCED.get(type(self.loss))
        return bool(
            unreduced and unreduced.always(self.loss)
            and not self.batch.only_scores)

    def _check_rows(self, num_rows: int, expected: int) -> None:
        if num_rows != expected:
            raise Refusal(
                f'{type(self.loss).__name__} was called on {num_rows} rows '
                f'for a batch of {self.batch.size} images, so '
                'InfoBatch cannot tell which row is which image: check the '
                '`loss` method of `model` and its heads, set `rows_per_image` '
                'of its InfoBatchLoss, or train without InfoBatchHook.')


def is_known(loss: nn.Module) -> bool:
    """Whether the class of a loss was registered."""
    return type(loss) in _UNREDUCED or type(loss) in _COUPLED


def check_loss(loss: nn.Module) -> None:
    """Raise a Refusal unless mmib can wrap a loss."""
    # mmseg's and mmdet's CrossEntropyLoss of one mask per region.
    use_mask = getattr(loss, 'use_mask', False)
    unreduced = _UNREDUCED.get(type(loss))
    if use_mask or (unreduced is None and type(loss) not in _COUPLED):
        name = type(loss).__name__ + (' with `use_mask=True`'
                                      if use_mask else '')
        raise Refusal(
            'InfoBatch needs a loss per image, and mmib knows none for '
            f'{name}: use CrossEntropyLoss or another loss of the library, '
            'tell mmib how it falls into images with '
            '`mmib.openmmlab.losses.register_unreduced`, or train without '
            'InfoBatchHook.')
    if unreduced and unreduced.reduces and not hasattr(loss, 'reduction'):
        raise Refusal(
            f'{type(loss).__name__} has no `reduction`: register it with '
            '`mmib.openmmlab.losses.register_unreduced(..., reduces=False)`.')
    parameters = [name for name, _ in loss.named_parameters()]
    if parameters:
        # Their names, by which EMA and others know them, would change.
        raise Refusal(
            f'InfoBatch cannot wrap {type(loss).__name__}, which has '
            f'parameters of its own ({", ".join(parameters)}): keep them in '
            'the head, or train without InfoBatchHook.')


def _without_prefix(module: nn.Module, state_dict: Dict[str, Any], prefix: str,
                    local_metadata: dict) -> None:
    inner = f'{prefix}loss.'
    for name in [name for name in state_dict if name.startswith(inner)]:
        state_dict[prefix + name[len(inner):]] = state_dict.pop(name)


def _with_prefix(state_dict: Dict[str, Any], prefix: str, *args: Any) -> None:
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[f'{prefix}loss.{name[len(prefix):]}'] = state_dict.pop(name)
