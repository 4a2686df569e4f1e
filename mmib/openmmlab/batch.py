# Copyright (c) mmib contributors. All rights reserved.
"""The batch in training, which the hook and the losses share."""
import functools
import weakref
from typing import List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor

from ..weigh import row_norms, to_device, weighed_sum

RowsPerImage = Union[int, List[int]]
Factor = Union[float, Tensor]


class BatchContext:
    """Weights, scores and norms of the batch in training.

    The hook sets the weights, the losses take them and add scores, and the
    backward pass adds norms. A run has one context. Without weights, as in
    annealing and outside of training, losses are those of the baseline.

    Args:
        only_scores (bool): Whether losses keep the baseline's value to the
            last bit, because nothing is pruned. Defaults to False.
    """

    def __init__(self, only_scores: bool = False) -> None:
        self.only_scores = only_scores
        self.weights: Optional[Tensor]
        """Tensor, optional: Weight of each image, float32 of shape (B,). None
        where losses are those of the baseline."""
        self.row_weights: Tensor
        """Tensor: Weight of each row of the predictions, of an image or of a
        mixture (:meth:`mix`), float32 of shape (B,)."""
        self.relative_weights: Tensor
        """Tensor: Relative weight of each row, float32 of shape (B,)."""
        self.clear()

    def set_weights(self, relative_weights: Tensor, weights: Tensor) -> None:
        """Set the weights of the next batch.

        Args:
            relative_weights (Tensor): Relative weight of each image, float32
                of shape (B,).
            weights (Tensor): Weight of each image, float32 of shape (B,).
        """
        self.clear()
        self.weights = self.row_weights = weights
        self.relative_weights = relative_weights

    def clear(self) -> None:
        """Forget the batch. Losses are those of the baseline from here on."""
        self.weights = None
        self._share: Optional[Tensor] = None  # Of mixtures.
        self._parts: Optional[Sequence[Tensor]] = None
        self._scores: List[Tensor] = []
        self._norms: List[Tensor] = []
        self._watched: List[weakref.ref] = []
        self._scale: Optional[Tensor] = None
        self._hides_norms = False

    @property
    def size(self) -> int:
        """int: Number of images in a batch with weights."""
        assert self.weights is not None
        return len(self.weights)

    def mix(self, share: Factor) -> None:
        """Declare, before any loss, that row k is a mixture of the images k
        and B - 1 - k.

        The weight of a row is the mean weight of its two images, and the score
        of an image the sum over its two rows, by their shares.

        Args:
            share (float or Tensor): Share of image k in row k, in [0, 1], for
                all rows or of shape (B,).
        """
        if self.weights is None:
            return
        # A tensor, because `torch.compile` takes numbers for constants.
        self._share = (
            share.to(self.weights)
            if torch.is_tensor(share) else self.weights.new_full((), share))
        self.relative_weights, self.row_weights = (
            self._share * rows + (1 - self._share) * rows.flip(0)
            for rows in (self.relative_weights, self.row_weights))

    @property
    def parts(self) -> Sequence[Tensor]:
        """Sequence[Tensor]: ``relative_weights / B`` and ``row_weights / B``,
        the factors of a mean over the batch, float32 of shape (B,)."""
        if self._parts is None:
            self._parts = torch._foreach_div(
                [self.relative_weights, self.row_weights], self.size)
        return self._parts

    def mean(self, losses: Tensor, factor: Factor = 1.) -> Tensor:
        """Return the loss of the batch, the weighted mean of raw losses, which
        count as scores.

        Args:
            losses (Tensor): Raw loss of each row, float32 of shape (B,).
            factor (float or Tensor): Another factor of the losses, for all or
                of shape (B,). 1 where the baseline takes the mean over the
                images. Defaults to 1.
        """
        self.add_scores(losses)
        if not is_one(factor):
            losses = losses * factor
        return weighed_sum(losses, *self.parts)

    def add_scores(self, scores: Tensor) -> None:
        """Add to the raw loss of each row, float32 of shape (B,)."""
        self._scores.append(scores)

    @property
    def has_scores(self) -> bool:
        """bool: Whether a loss was called."""
        return bool(self._scores)

    @property
    def scores(self) -> Optional[Tensor]:
        """Tensor, optional: Raw loss of each image, float32 of shape (B,),
        summed over all calls of losses. None before the first call."""
        if not self._scores:
            return None
        with torch.no_grad():
            rows = functools.reduce(torch.add, self._scores)
            if self._share is not None:
                rows = self._share * rows + ((1 - self._share) * rows).flip(0)
        return rows.detach() if rows.requires_grad else rows

    def watch(self,
              pred: Tensor,
              rows_per_image: RowsPerImage = 1,
              factor: Factor = 1.) -> None:
        """Watch the gradient that will flow into a prediction, for
        :attr:`norms`. A prediction that several losses share is watched once.

        Args:
            pred (Tensor): The prediction.
            rows_per_image (int or list[int]): See :class:`InfoBatchLoss`.
            factor (float or Tensor): The factor of the losses, see
                :meth:`mean`. Defaults to 1.
        """
        rows = (
            self.size if isinstance(rows_per_image, int) else max(
                sum(rows_per_image), 1))
        if not torch.is_tensor(pred) or len(pred) % rows:
            self._hides_norms = True
        elif pred.requires_grad and not any(other() is pred
                                            for other in self._watched):
            self._watched.append(weakref.ref(pred))
            pred.register_hook(
                functools.partial(self._note_gradient, rows_per_image, factor))

    # The list of norms would be compiled at each of its lengths.
    @torch.compiler.disable
    def _note_gradient(self, rows_per_image: RowsPerImage, factor: Factor,
                       gradient: Tensor) -> None:
        """Take the norm of each image from the gradient at a prediction."""
        norms = row_norms(gradient)
        if len(norms) != self.size or isinstance(rows_per_image, list):
            squares, _ = sum_images(norms.square(), rows_per_image, self.size)
            norms = squares.sqrt()
        if isinstance(factor, Tensor):
            # The factor is 0 for an image without rows.
            norms = norms / factor.clamp(min=1e-12)
        elif not is_one(factor):
            norms = norms / factor
        self.add_norms(norms)

    def add_norms(self, norms: Tensor) -> None:
        """Add, in the backward pass, the norm of the weighed gradient of each
        row at some predictions, float32 of shape (B,)."""
        self._norms.append(norms)

    def watch_total(self, loss: Tensor) -> None:
        """Watch the gradient that will flow into the total loss: AMP and
        gradient accumulation scale the loss."""
        if loss.requires_grad:
            loss.register_hook(self._note_scale)

    def _note_scale(self, gradient: Tensor) -> None:
        self._scale = gradient

    @property
    def norms(self) -> Optional[Tensor]:
        """Tensor, optional: Norm of the gradient of each image's own raw loss
        with respect to all predictions, float32 of shape (B,), whatever else
        is in the batch. Where losses with different divisors share a
        prediction, the norm is approximate. Known after the backward pass, or
        None.
        """
        if not self._norms or self._scale is None or self._hides_norms:
            return None
        rows = functools.reduce(torch.hypot, self._norms)
        rows = rows / (self.parts[1] * self._scale)
        if self._share is None:
            return rows
        # Gradients of different rows are orthogonal, so squares add up.
        images = torch.hypot(self._share * rows,
                             ((1 - self._share) * rows).flip(0))
        if len(rows) % 2:
            # The image in the middle is mixed with itself.
            images[len(rows) // 2] = rows[len(rows) // 2]
        return images


def is_one(factor: Factor) -> bool:
    """Return whether a factor is 1, up to the epsilon in the divisors of
    losses."""
    return isinstance(factor, (int, float)) and abs(factor - 1) < 1e-6


def mean_images(elements: Tensor,
                rows_per_image: RowsPerImage,
                num_images: int,
                counts: Optional[Tensor] = None) -> Tuple[Tensor, Factor]:
    """Return the mean over the elements of each image, float32 of shape (B,),
    and the number of these elements.

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
    """Return the sum over the elements of each image, and their number.
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
