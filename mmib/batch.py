# Copyright (c) mmib contributors. All rights reserved.
"""The batch in training, which hook and losses share."""
import functools
import operator
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor

RowsPerImage = Union[int, List[int]]
Factor = Union[float, Tensor]


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the training device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == 'cuda':
        # Only copies from pinned memory leave the host free to go on.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class BatchContext:
    """What hook and losses tell each other of the batch in training.

    A training has one context. While :attr:`weights` is None, as in annealing
    and outside of training, losses are those of the baseline.
    """

    def __init__(self, as_baseline: bool = False) -> None:
        self.as_baseline = as_baseline
        """bool: Whether losses have the baseline's value to the last bit."""
        self.begin(None)

    def begin(self, weights: Optional[Tensor]) -> None:
        """Begin a batch with these weights. None trains as the baseline."""
        self.weights = weights
        """Tensor, optional: Weight of each image, float32 of shape (B,)."""
        self.row_weights = weights
        """Tensor, optional: Weight of each row of the predictions, of an image
        or of a mixture (:meth:`mix`), float32 of shape (B,)."""
        self._mixed: Optional[Tensor] = None
        self._part_of_row: Optional[Tensor] = None
        self._scores: List[Tensor] = []
        self._losses: List[Tensor] = []
        self._total: Optional[Tensor] = None
        self._scales: List[Tensor] = []
        self._watched: List[Watched] = []
        self._is_blind = False

    def mix(self, share: Factor) -> None:
        """Tell, before any loss, that row k is a mixture of the images k and
        B - 1 - k.

        The weight of a row is the mean weight of its two images, and the score
        of an image the sum over its two rows, by their shares.

        Args:
            share (float or Tensor): Share of image k in row k, in [0, 1], for
                all rows or of shape (B,).
        """
        if self.weights is None:
            return
        # A tensor, as `torch.compile` takes numbers for constants.
        self._mixed = (
            share.to(self.weights)
            if torch.is_tensor(share) else self.weights.new_full((), share))
        self.row_weights = (
            self._mixed * self.weights +
            (1 - self._mixed) * self.weights.flip(0))

    def _split(self, rows: Tensor) -> Tuple[Tensor, Tensor]:
        """The parts of each image in its own row, and in the other one."""
        return self._mixed * rows, ((1 - self._mixed) * rows).flip(0)

    @property
    def part_of_row(self) -> Tensor:
        """Tensor: Weight of each row over B: the factor of its loss in the
        mean over the batch, float32 of shape (B,)."""
        if self._part_of_row is None:
            self._part_of_row = self.row_weights / len(self.row_weights)
        return self._part_of_row

    def mean(self, losses: Tensor, factor: Factor = 1.) -> Tensor:
        """The loss of the batch, a weighted mean, from raw losses, which are
        added to :attr:`scores`.

        Args:
            losses (Tensor): Raw loss of each row, float32 of shape (B,).
            factor (float or Tensor): Another factor of the losses, for all or
                of shape (B,). 1 where the baseline takes the mean over the
                images. Defaults to 1.
        """
        shared = losses if is_one(factor) else losses * factor
        self.add_scores(losses, shared)
        value = (shared * self.part_of_row).sum()
        self.watch_loss(value)
        return value

    def add_scores(self, scores: Tensor, losses: Tensor) -> None:
        """Add to the raw loss of each image, and to the loss of the batch.

        Args:
            scores (Tensor): Raw loss of each row, float32 of shape (B,).
            losses (Tensor): Losses whose mean is the baseline's loss.
        """
        self._total = None
        self._scores.append(scores)
        self._losses.append(losses)

    @property
    def scores(self) -> Optional[Tensor]:
        """Tensor, optional: Raw loss of each image, float32 of shape (B,),
        summed over all calls of losses. None before the first call."""
        if self._total is None and self._scores:
            total = _sum(self._scores)
            self._total = total if self._mixed is None else _sum(
                self._split(total))
        return self._total

    @property
    def unweighted_loss(self) -> Optional[Tensor]:
        """Tensor, optional: Loss of the batch with all weights 1, a scalar.
        None before the first call of a loss."""
        if not self._losses:
            return None
        if all(map(operator.is_, self._scores, self._losses)):
            return self.scores.mean()
        with torch.no_grad():
            return functools.reduce(torch.add,
                                    (loss.mean() for loss in self._losses))

    def watch(self, pred: Tensor,
              rows_per_image: RowsPerImage) -> Tuple[Tensor, 'Watched']:
        """Watch the gradient that will flow into a prediction, for
        :attr:`norms`.

        Args:
            pred (Tensor): The prediction.
            rows_per_image (int or list[int]): See :class:`InfoBatchLoss`.

        Returns:
            tuple[Tensor, Watched]: The prediction to compute the loss from;
            and how the loss uses it, where the caller sets ``factor``.
        """
        watched = Watched(rows_per_image)
        rows = (
            len(self.weights) if isinstance(rows_per_image, int) else max(
                sum(rows_per_image), 1))
        if not torch.is_tensor(pred) or len(pred) % rows:
            self._is_blind = True
        elif pred.requires_grad:
            # Two losses may get the same prediction in two shapes.
            target = _whole(pred)
            same = [w for w in self._watched if w.target() is target]
            if not same:
                watched.target = weakref.ref(target)
                target.register_hook(
                    watched.note_norms(pred.shape, len(self.weights)))
                self._watched.append(watched)
            else:
                pred = pred.view_as(pred)
                pred.register_hook(watched.note_gradient)
                same[0].others.append(watched)
        return pred, watched

    def add_watched(self) -> 'Watched':
        """A watched prediction whose ``norms`` the caller sets."""
        self._watched.append(Watched(1))
        return self._watched[-1]

    def watch_loss(self, value: Tensor) -> None:
        """Watch the gradient that will flow into a loss, or into losses whose
        mean is the loss: AMP and gradient accumulation scale it."""
        if value.requires_grad:
            value.register_hook(self._note_scale)

    def _note_scale(self, gradient: Tensor) -> None:
        self._scales.append(gradient.sum() if gradient.dim() else gradient)

    @property
    def norms(self) -> Optional[Tensor]:
        """Tensor, optional: Norm of the gradient of each image's own raw loss
        with respect to all predictions, float32 of shape (B,), whatever else
        is in the batch. Known after the backward pass, or None."""
        norms = [w.norms for w in self._watched if w.norms is not None]
        if not norms or not self._scales or self._is_blind:
            return None
        rows = functools.reduce(torch.hypot, norms)
        # A model may multiply some of its losses.
        scale = functools.reduce(torch.maximum, self._scales)
        rows = rows / (self.part_of_row * scale)
        if self._mixed is None:
            return rows
        # Rows have nothing in common, so squares add up.
        images = torch.hypot(*self._split(rows))
        if len(rows) % 2:
            # The image in the middle is mixed with itself.
            middle = len(rows) // 2
            images[middle] = rows[middle]
        return images


class Watched:
    """How one loss uses a prediction. The prediction itself isn't kept."""

    def __init__(self, rows_per_image: RowsPerImage) -> None:
        self.rows_per_image = rows_per_image
        self.factor: Factor = 1.
        """float or Tensor: See :meth:`BatchContext.mean`."""
        self.target: Callable[[], Optional[Tensor]] = lambda: None
        """Callable: Returns the tensor that the prediction is a view of."""
        self.others: List[Watched] = []
        """list[Watched]: How other losses use the same prediction."""
        self.norms: Optional[Tensor] = None
        """Tensor, optional: Norm of the gradient of each image over
        ``factor``, float32 of shape (B,), after the backward pass."""
        self._gradient: Optional[Tensor] = None

    def note_gradient(self, gradient: Tensor) -> None:
        """Keep the gradient of this loss alone."""
        self._gradient = gradient

    def note_norms(self, shape: torch.Size,
                   num_images: int) -> Callable[[Tensor], None]:
        """A hook for the gradient of all losses of a prediction."""

        def note(gradient: Tensor) -> None:
            if gradient.shape != shape:
                gradient = gradient.reshape(shape)
            for other in self.others:
                gradient = self._as_if_alike(gradient, other)
            norms = torch.linalg.vector_norm(
                gradient[:, None] if len(shape) == 1 else gradient,
                dim=tuple(range(1, max(len(shape), 2))),
                dtype=torch.promote_types(gradient.dtype,
                                          torch.float32)).float()
            if len(norms) != num_images or isinstance(self.rows_per_image,
                                                      list):
                squares, _ = sum_images(norms.square(), self.rows_per_image,
                                        num_images)
                norms = squares.sqrt()
            self.norms = norms if is_one(self.factor) else _over(
                norms, self.factor)

        return note

    def _as_if_alike(self, gradient: Tensor, other: 'Watched') -> Tensor:
        """The gradient of all losses, with the part of another loss rescaled
        to the factor of this one, so that one division serves both."""
        own, other._gradient = other._gradient, None
        factor = _over(self.factor, other.factor)
        if own is None or is_one(factor):
            return gradient
        if torch.is_tensor(factor) and factor.numel() > 1:
            factor = _by_row(factor, self.rows_per_image, len(gradient))
            factor = factor.view(-1, *[1] * (gradient.dim() - 1))
        return gradient + (factor - 1) * own.reshape(gradient.shape)


def _over(value: Any, factor: Factor) -> Any:
    """Divide by a factor, which is 0 for an image without rows."""
    return value / (
        factor.clamp(min=1e-12) if isinstance(factor, Tensor) else factor)


def is_one(factor: Factor) -> bool:
    """Whether a factor is 1, up to the epsilon in the divisors of losses."""
    return isinstance(factor, (int, float)) and abs(factor - 1) < 1e-6


def mean_images(elements: Tensor,
                rows_per_image: RowsPerImage,
                num_images: int,
                counts: Optional[Tensor] = None) -> Tuple[Tensor, Factor]:
    """Mean over the elements of each image, float32 of shape (B,), and the
    number of these elements.

    Args:
        elements (Tensor): Elements whose first dimension runs over the rows,
            image by image.
        rows_per_image (int or list[int]): See :class:`InfoBatchLoss`.
        num_images (int): Images of the batch.
        counts (Tensor, optional): Elements of each image that count, of shape
            (B,). None counts all. Defaults to None.
    """
    if counts is None and rows_per_image == 1 and elements.dim() == 1:
        return elements.float(), 1
    if counts is None and isinstance(rows_per_image, int):
        if rows_per_image != 1:
            elements = elements.reshape(num_images, -1)
        return elements.mean(
            tuple(range(1, elements.dim())),
            dtype=torch.float32), elements.numel() // num_images
    sums, number = sum_images(elements, rows_per_image, num_images)
    if counts is None:
        counts = to_device(np.array(number, np.float32), elements.device)
    return sums / counts.clamp(min=1), counts


def sum_images(elements: Tensor, rows_per_image: RowsPerImage,
               num_images: int) -> Tuple[Tensor, List[int]]:
    """Sum over the elements of each image, and the number of these elements.
    See :func:`mean_images`."""
    if isinstance(rows_per_image, int):
        images = elements.reshape(num_images, -1)
        return (images.sum(1, dtype=torch.float32),
                [images.shape[1]] * num_images)
    images = elements.split(_rows(rows_per_image, len(elements)))
    return (torch.stack([image.sum(dtype=torch.float32) for image in images]),
            [image.numel() for image in images])


def _rows(rows_per_image: List[int], num_rows: int) -> List[int]:
    """Rows of each image, in proportion to its ``rows_per_image``."""
    shares = max(sum(rows_per_image), 1)
    return [share * num_rows // shares for share in rows_per_image]


def _by_row(images: Tensor, rows_per_image: RowsPerImage,
            num_rows: int) -> Tensor:
    """Repeat the value of each image for each of its rows."""
    if isinstance(rows_per_image, int):
        return images[:, None].expand(-1, num_rows // len(images)).flatten()
    return torch.cat([
        image.expand(number)
        for image, number in zip(images, _rows(rows_per_image, num_rows))
    ])


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    """The sum in memory of its own, without a gradient."""
    with torch.no_grad():
        return (tensors[0].clone() if len(tensors) == 1 else functools.reduce(
            torch.add, tensors))


def _whole(pred: Tensor) -> Tensor:
    """The tensor that a prediction is a view of, or the prediction."""
    base = pred._base
    # A hook of a leaf, such as a parameter, would stay there.
    if (base is None or not base.requires_grad or base.is_leaf
            or base.numel() != pred.numel() or not base.is_contiguous()
            or not pred.is_contiguous()):
        return pred
    return base
