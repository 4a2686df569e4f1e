# Copyright (c) mmib contributors. All rights reserved.
"""The batch in training, which hook and losses share."""
import functools
import operator
from typing import List, Optional, Sequence, Tuple, Union

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

    Args:
        only_scores (bool): Whether losses keep the baseline's value to the
            last bit, as nothing is pruned. Defaults to False.
    """

    def __init__(self, only_scores: bool = False) -> None:
        self.only_scores = only_scores
        self.begin(None)

    def begin(self, weights: Optional[Tensor]) -> None:
        """Begin a batch with these weights. None trains as the baseline."""
        self.weights = weights
        """Tensor, optional: Weight of each image, float32 of shape (B,)."""
        self.row_weights = weights
        """Tensor, optional: Weight of each row of the predictions, of an image
        or of a mixture (:meth:`mix`), float32 of shape (B,)."""
        self._share: Optional[Tensor] = None  # Of mixtures.
        self._parts: Optional[Tensor] = None
        self._total: Optional[Tensor] = None
        self._scores: List[Tensor] = []
        self._losses: List[Tensor] = []
        self._norms: List[Tensor] = []
        self._scales: List[Tensor] = []
        self._hides_norms = False

    @property
    def size(self) -> int:
        """int: Images of a batch with weights."""
        assert self.weights is not None
        return len(self.weights)

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
        self._share = (
            share.to(self.weights)
            if torch.is_tensor(share) else self.weights.new_full((), share))
        self.row_weights = (
            self._share * self.weights +
            (1 - self._share) * self.weights.flip(0))

    @property
    def parts(self) -> Tensor:
        """Tensor: Weight of each row over B: the factor of its loss in the
        mean over the batch, float32 of shape (B,)."""
        assert self.row_weights is not None
        if self._parts is None:
            self._parts = self.row_weights / len(self.row_weights)
        return self._parts

    def mean(self, losses: Tensor, factor: Factor = 1.) -> Tensor:
        """The loss of the batch, a weighted mean, from raw losses, which count
        as scores.

        Args:
            losses (Tensor): Raw loss of each row, float32 of shape (B,).
            factor (float or Tensor): Another factor of the losses, for all or
                of shape (B,). 1 where the baseline takes the mean over the
                images. Defaults to 1.
        """
        shared = losses if is_one(factor) else losses * factor
        self.add_scores(losses, shared)
        value = torch.dot(shared, self.parts)
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
            with torch.no_grad():
                rows = functools.reduce(torch.add, self._scores)
                if self._share is not None:
                    rows = (
                        self._share * rows +
                        ((1 - self._share) * rows).flip(0))
                # A sum has no gradient here.
                self._total = rows.detach() if rows.requires_grad else rows
        return self._total

    @property
    def unweighted_loss(self) -> Optional[Tensor]:
        """Tensor, optional: Loss of the batch with all weights 1, a scalar.
        None before the first call of a loss."""
        if self.scores is None:
            return None
        if all(map(operator.is_, self._scores, self._losses)):
            return self.scores.mean()
        with torch.no_grad():
            return functools.reduce(torch.add,
                                    (x.mean() for x in self._losses))

    def watch(self,
              pred: Tensor,
              rows_per_image: RowsPerImage = 1) -> 'Watched':
        """Watch the gradient that will flow into a prediction, for
        :attr:`norms`.

        Args:
            pred (Tensor): The prediction.
            rows_per_image (int or list[int]): See :class:`InfoBatchLoss`.

        Returns:
            Watched: How the loss uses the prediction, of which the caller sets
            ``factor``.
        """
        watched = Watched(self, rows_per_image)
        rows = (
            self.size if isinstance(rows_per_image, int) else max(
                sum(rows_per_image), 1))
        if not torch.is_tensor(pred) or len(pred) % rows:
            self._hides_norms = True
        elif pred.requires_grad:
            pred.register_hook(watched.note)
        return watched

    def add_norms(self, norms: Tensor) -> None:
        """Add, in the backward pass, the norm of the weighted gradient of each
        row at some predictions, float32 of shape (B,)."""
        self._norms.append(norms)

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
        is in the batch. Losses that share a prediction share its gradient,
        which counts once for each. Known after the backward pass, or None.
        """
        if not self._norms or not self._scales or self._hides_norms:
            return None
        # A model may multiply some of its losses by less than 1, as those of
        # auxiliary heads. The largest is that of AMP and accumulation.
        scale = functools.reduce(torch.maximum, self._scales)
        rows = functools.reduce(torch.hypot, self._norms)
        rows = rows / (self.parts * scale)
        if self._share is None:
            return rows
        # Rows have nothing in common, so squares add up.
        images = torch.hypot(self._share * rows,
                             ((1 - self._share) * rows).flip(0))
        if len(rows) % 2:
            # The image in the middle is mixed with itself.
            images[len(rows) // 2] = rows[len(rows) // 2]
        return images


class Watched:
    """How a loss uses a prediction. The prediction itself isn't kept."""

    def __init__(self, batch: BatchContext,
                 rows_per_image: RowsPerImage) -> None:
        self.factor: Factor = 1.
        """float or Tensor: See :meth:`BatchContext.mean`."""
        self._batch = batch
        self._rows_per_image = rows_per_image

    def note(self, gradient: Tensor) -> None:
        """Take the norm of each image from the gradient at the prediction."""
        num_images = self._batch.size
        if gradient.dim() == 1:
            gradient = gradient[:, None]
        if gradient.dtype in (torch.float16, torch.bfloat16):
            gradient = gradient.float()
        norms = torch.linalg.vector_norm(
            gradient, dim=tuple(range(1, gradient.dim()))).float()
        if len(norms) != num_images or isinstance(self._rows_per_image, list):
            squares, _ = sum_images(norms.square(), self._rows_per_image,
                                    num_images)
            norms = squares.sqrt()
        if not is_one(self.factor):
            # The factor is 0 for an image without rows.
            norms = norms / (
                self.factor.clamp(min=1e-12) if isinstance(
                    self.factor, Tensor) else self.factor)
        self._batch.add_norms(norms)


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
    if counts is None and isinstance(rows_per_image, int):
        if len(elements) != num_images:
            elements = elements.reshape(num_images, -1)
        if elements.dim() == 1:
            return elements.float(), 1
        return elements.mean(
            tuple(range(1, elements.dim())),
            dtype=torch.float32), elements.numel() // num_images
    sums, numbers = sum_images(elements, rows_per_image, num_images)
    if counts is None:
        counts = to_device(np.array(numbers, np.float32), elements.device)
    return sums / counts.clamp(min=1), counts


def sum_images(elements: Tensor, rows_per_image: RowsPerImage,
               num_images: int) -> Tuple[Tensor, Sequence[int]]:
    """Sum over the elements of each image, and the number of these elements.
    See :func:`mean_images`."""
    if isinstance(rows_per_image, int):
        images = elements.reshape(num_images, -1)
        return (images.sum(1, dtype=torch.float32),
                [images.shape[1]] * num_images)
    # Rows of each image, in proportion to its `rows_per_image`.
    shares = max(sum(rows_per_image), 1)
    images = elements.split(
        [share * len(elements) // shares for share in rows_per_image])
    return (torch.stack([image.sum(dtype=torch.float32) for image in images]),
            [image.numel() for image in images])
