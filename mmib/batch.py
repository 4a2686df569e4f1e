# Copyright (c) mmib contributors. All rights reserved.
"""What hook and losses tell each other of the batch in training."""
import functools
import operator
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor

RowsPerImage = Union[int, List[int]]
Share = Union[float, Tensor]


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the training device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == 'cuda':
        # Only copies from pinned memory leave the host free to go on.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class BatchContext:
    """What hook and losses tell each other of the batch in training.

    There is one in a training. While :attr:`weights` are None, as outside of
    training and in annealing, losses are computed as in the baseline.
    """

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, weights: Optional[Tensor]) -> None:
        """Begin a batch.

        Args:
            weights (Tensor, optional): Weight of each image, float32 of shape
                (B,). None trains as the baseline.
        """
        self.weights = weights
        """Tensor, optional: Weight of each image, float32 of shape (B,)."""
        self.row_weights = weights
        """Tensor, optional: Weight of each row of the predictions, float32 of
        shape (B,): the weight of the image, unless :meth:`mix` says that rows
        are mixtures."""
        self._mixed: Optional[Tensor] = None
        self._part_of_row: Optional[Tensor] = None
        self._scores: List[Tensor] = []
        self._losses: List[Tensor] = []
        self._total: Optional[Tensor] = None
        self._scales: List[Tensor] = []
        self._watched: List[Watched] = []
        self._is_blind = False

    def mix(self, share: Share) -> None:
        """Tell that the images are mixed: row k is a mixture of image k and
        of image B - 1 - k. Call it before any loss.

        Each image counts in both of its mixtures, by its share of them. So
        the weight of a row is the mean weight of its two images, and the
        score of an image the sum over its two rows, by these shares.

        Args:
            share (float or Tensor): How much of row k is image k, in [0, 1].
                A tensor of shape (B,) has a share for each row.
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
        """What each image has of its own row, and of the other one."""
        return self._mixed * rows, ((1 - self._mixed) * rows).flip(0)

    @property
    def part_of_row(self) -> Tensor:
        """Tensor: What the mean over the batch multiplies the loss of each row
        by, its weight / B, float32 of shape (B,)."""
        if self._part_of_row is None:
            self._part_of_row = self.row_weights / len(self.row_weights)
        return self._part_of_row

    def mean(self, losses: Tensor, share: Share = 1.) -> Tensor:
        """Weighted mean over the images: the loss of the batch.

        The losses count for :attr:`scores`.

        Args:
            losses (Tensor): Raw loss of each row, float32 of shape (B,).
            share (float or Tensor): What the loss of the batch multiplies
                each of them by besides, a number or a tensor of shape () or
                (B,). 1 where the baseline takes the mean over the images.
                Defaults to 1.

        Returns:
            Tensor: The loss, scalar.
        """
        shared = losses if is_one(share) else losses * share
        self.add_scores(losses, shared)
        value = (shared * self.part_of_row).sum()
        self.watch_loss(value)
        return value

    def add_scores(self, scores: Tensor, losses: Tensor) -> None:
        """Add to the raw loss of each image, and to the loss of the batch.

        Args:
            scores (Tensor): Raw loss of each row, float32 of shape (B,).
            losses (Tensor): Any whose mean is what the baseline's loss is.
        """
        self._total = None
        self._scores.append(scores)
        self._losses.append(losses)

    @property
    def scores(self) -> Optional[Tensor]:
        """Tensor, optional: Raw loss of each image, float32 of shape (B,),
        summed over all calls of all losses. None before the first one."""
        if self._total is None and self._scores:
            total = _sum(self._scores)
            self._total = total if self._mixed is None else _sum(
                self._split(total))
        return self._total

    @property
    def unweighted_loss(self) -> Optional[Tensor]:
        """Tensor, optional: What the loss of the batch would be with all
        weights 1, a scalar. None before the first call of a loss."""
        if not self._losses:
            return None
        if all(map(operator.is_, self._scores, self._losses)):
            return self.scores.mean()
        with torch.no_grad():
            return functools.reduce(torch.add,
                                    (loss.mean() for loss in self._losses))

    def watch(self, pred: Tensor,
              rows_per_image: RowsPerImage) -> Tuple[Tensor, 'Watched']:
        """Look at the gradient that will flow into a prediction, for
        :attr:`norms`.

        Args:
            pred (Tensor): What a loss is about to be computed from.
            rows_per_image (int or list[int]): Its rows of each image.

        Returns:
            tuple[Tensor, Watched]: What to compute the loss from, and how the
            loss uses it: set its ``share``.
        """
        watched = Watched(rows_per_image)
        rows = (
            len(self.weights) if isinstance(rows_per_image, int) else max(
                sum(rows_per_image), 1))
        if not torch.is_tensor(pred) or len(pred) % rows:
            self._is_blind = True
        elif pred.requires_grad:
            # Another loss may get the same prediction in another shape.
            target = _whole(pred)
            first = next((w for w in self._watched if w.target() is target),
                         None)
            if first is None:
                watched.target = weakref.ref(target)
                target.register_hook(
                    watched.note_norms(pred.shape, len(self.weights)))
                self._watched.append(watched)
            else:
                pred = pred.view_as(pred)
                pred.register_hook(watched.note_gradient)
                first.others.append(watched)
        return pred, watched

    def add_watched(self) -> 'Watched':
        """A prediction that sets its ``norms`` by itself, for
        :attr:`norms`."""
        self._watched.append(Watched(1))
        return self._watched[-1]

    def watch_loss(self, value: Tensor) -> None:
        """Look at the gradient that will flow into a loss: mixed precision
        and gradient accumulation multiply it.

        Args:
            value (Tensor): The loss of a watched prediction, or the losses of
                the images whose mean is the loss.
        """
        if value.requires_grad:
            value.register_hook(self._note_scale)

    def _note_scale(self, gradient: Tensor) -> None:
        self._scales.append(gradient.sum() if gradient.dim() else gradient)

    @property
    def norms(self) -> Optional[Tensor]:
        """Tensor, optional: Norm of the gradient of each image's own loss,
        the raw one of its score, with respect to all predictions that losses
        are computed from, float32 of shape (B,). The other images of the
        batch, and how many there are, don't matter. Known after the backward
        pass; None where it can't be seen."""
        norms = [w.norms for w in self._watched if w.norms is not None]
        if not norms or not self._scales or self._is_blind:
            return None
        # Few operations, as each takes longer than its few numbers.
        rows = functools.reduce(torch.hypot, norms)
        # A model may multiply some of its losses besides.
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
    """How one loss uses a prediction, which itself isn't kept.

    Args:
        rows_per_image (int or list[int]): Its rows of each image.
    """

    def __init__(self, rows_per_image: RowsPerImage) -> None:
        self.rows_per_image = rows_per_image
        self.share: Share = 1.
        """float or Tensor: See :meth:`BatchContext.mean`."""
        self.target: Callable[[], Optional[Tensor]] = lambda: None
        """Callable: Returns the tensor of which the prediction is a shape."""
        self.others: List[Watched] = []
        """list[Watched]: How other losses use the same prediction."""
        self.norms: Optional[Tensor] = None
        """Tensor, optional: Norm of the gradient of each image over
        ``share``, float32 of shape (B,), after the backward pass."""
        self._gradient: Optional[Tensor] = None

    def note_gradient(self, gradient: Tensor) -> None:
        """Keep what flows back from this loss alone."""
        self._gradient = gradient

    def note_norms(self, shape: torch.Size,
                   num_images: int) -> Callable[[Tensor], None]:
        """What to do with the gradient of all losses.

        Args:
            shape (torch.Size): Shape of the prediction.
            num_images (int): Images of the batch.
        """

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
            self.norms = norms if is_one(self.share) else _over(
                norms, self.share)

        return note

    def _as_if_alike(self, gradient: Tensor, other: 'Watched') -> Tensor:
        """The gradient of all losses, as if another loss had the share of this
        one."""
        own, other._gradient = other._gradient, None
        share = _over(self.share, other.share)
        if own is None or is_one(share):
            return gradient
        if torch.is_tensor(share) and share.numel() > 1:
            share = _by_row(share, self.rows_per_image, len(gradient))
            share = share.view(-1, *[1] * (gradient.dim() - 1))
        return gradient + (share - 1) * own.reshape(gradient.shape)


def _over(value: Any, share: Share) -> Any:
    """Divide by a share, which is 0 of an image without rows."""
    return value / (
        share.clamp(min=1e-12) if isinstance(share, Tensor) else share)


def is_one(share: Share) -> bool:
    """Whether a share is 1, up to what losses add to their divisors."""
    return isinstance(share, (int, float)) and abs(share - 1) < 1e-6


def mean_images(elements: Tensor,
                rows_per_image: RowsPerImage,
                num_images: int,
                counts: Optional[Tensor] = None) -> Tuple[Tensor, Share]:
    """Mean over the elements of each image.

    Args:
        elements (Tensor): Any, of which the first dimension runs over the
            rows of the images, image by image.
        rows_per_image (int or list[int]): See :class:`InfoBatchLoss`.
        num_images (int): Images of the batch.
        counts (Tensor, optional): Elements of each image that count, of shape
            (B,). None counts all. Defaults to None.

    Returns:
        tuple[Tensor, int or Tensor]: Means, float32 of shape (B,), and
        elements of each image.
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
    """Sum over the elements of each image.

    Args:
        elements (Tensor): See :func:`mean_images`.
        rows_per_image (int or list[int]): See :class:`InfoBatchLoss`.
        num_images (int): Images of the batch.

    Returns:
        tuple[Tensor, list[int]]: Sums, float32 of shape (B,), and elements of
        each image.
    """
    if isinstance(rows_per_image, int):
        images = elements.reshape(num_images, -1)
        return (images.sum(1, dtype=torch.float32),
                [images.shape[1]] * num_images)
    images = elements.split(_rows(rows_per_image, len(elements)))
    return (torch.stack([image.sum(dtype=torch.float32) for image in images]),
            [image.numel() for image in images])


def _rows(rows_per_image: List[int], num_rows: int) -> List[int]:
    """Rows of each image: a multiple of its share, as points of its masks."""
    shares = max(sum(rows_per_image), 1)
    return [share * num_rows // shares for share in rows_per_image]


def _by_row(images: Tensor, rows_per_image: RowsPerImage,
            num_rows: int) -> Tensor:
    """Repeat what each image has for each of its rows."""
    if isinstance(rows_per_image, int):
        return images[:, None].expand(-1, num_rows // len(images)).flatten()
    return torch.cat([
        image.expand(number)
        for image, number in zip(images, _rows(rows_per_image, num_rows))
    ])


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    """A tensor of its own, without a gradient."""
    with torch.no_grad():
        # What is kept must neither hold a larger tensor nor be written to.
        return (tensors[0].clone() if len(tensors) == 1 else functools.reduce(
            torch.add, tensors))


def _whole(pred: Tensor) -> Tensor:
    """The tensor of which a prediction is another shape, or itself."""
    base = pred._base
    # What was hung on a leaf, such as a parameter, would stay there.
    if (base is None or not base.requires_grad or base.is_leaf
            or base.numel() != pred.numel() or not base.is_contiguous()
            or not pred.is_contiguous()):
        return pred
    return base
