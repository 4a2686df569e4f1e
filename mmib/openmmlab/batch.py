# Copyright (c) mmib contributors. All rights reserved.
"""The batch in training, which the hook and the losses share."""
import functools
import weakref
from typing import Dict, Hashable, List, Optional, Sequence, Set, Tuple, Union

import numpy as np
import torch
from torch import Tensor

from ..scores.weigh import row_norms, to_device, weighted_sum

RowsPerImage = Union[int, List[int]]
Factor = Union[float, Tensor]


class BatchContext:
    """Weights, scores and norms of the batch in training.

    The hook sets the weights, the losses use the weights and add scores, and
    the backward pass adds norms. A run has one context. Without weights, as in
    annealing and outside of training, losses are computed as in the baseline.

    Args:
        only_scores (bool): Whether losses keep the value of the baseline to
            the last bit, because nothing is pruned. Defaults to False.
    """

    def __init__(self, only_scores: bool = False) -> None:
        self.only_scores = only_scores
        self.weights: Optional[Tensor]
        """Tensor, optional: Weight of each image, float32 of shape (B,). None
        where losses are computed as in the baseline."""
        self.row_weights: Tensor
        """Tensor: Weight of each row of the predictions, of an image or of a
        mixture (:meth:`mix`), float32 of shape (B,)."""
        self.relative_weights: Tensor
        """Tensor: Relative weight of each row, float32 of shape (B,)."""
        self.size: int
        """int: Number of images in a batch with weights."""
        self._mean_factors: Optional[Sequence[Tensor]]
        self.clear()

    def set_weights(self,
                    relative_weights: Tensor,
                    weights: Tensor,
                    mean_factors: Optional[Sequence[Tensor]] = None) -> None:
        """Set the relative weight and the weight of each image of the next
        batch, float32 of shape (B,), and both over B, if these are known."""
        self.clear()
        self._mean_factors = mean_factors or None
        self.weights = self.row_weights = weights
        self.relative_weights, self.size = relative_weights, len(weights)

    def clear(self) -> None:
        """Forget the batch. Until weights are set again, losses are computed
        as in the baseline."""
        self.weights = None
        self._share: Optional[Tensor] = None  # Of mixtures.
        self._mean_factors = None
        self._scores: List[Tensor] = []
        # The norms at each source, such as a prediction, and the sources that
        # have noted norms in this backward pass.
        self._norms: Dict[Hashable, Tensor] = {}
        self._noted: Set[Hashable] = set()
        self._watched: List[weakref.ref] = []
        self._scale: Optional[Tensor] = None
        self._hides_norms = False

    def mix(self, share: Factor) -> None:
        """Declare that row k is a mixture of the images k and B - 1 - k. Call
        this method before any loss.

        The weight of a row is the mean of the weights of its two images. The
        score of an image is the sum of the losses of its two rows. Both are
        weighted by the shares.

        Args:
            share (float or Tensor): Share of image k in row k, in [0, 1]: one
                for all rows, or of shape (B,).
        """
        if self.weights is None:
            return
        # A tensor, because `torch.compile` treats numbers as constants.
        self._share = (
            share.to(self.weights)
            if torch.is_tensor(share) else self.weights.new_full((), share))
        self._mean_factors = None
        self.relative_weights, self.row_weights = (
            self._share * rows + (1 - self._share) * rows.flip(0)
            for rows in (self.relative_weights, self.row_weights))

    @property
    def mean_factors(self) -> Sequence[Tensor]:
        """Sequence[Tensor]: ``relative_weights / B`` and ``row_weights / B``,
        the factors of a mean over the batch, float32 of shape (B,)."""
        if self._mean_factors is None:
            self._mean_factors = torch._foreach_div(
                [self.relative_weights, self.row_weights], self.size)
        return self._mean_factors

    def mean(self, losses: Tensor, factor: Factor = 1.) -> Tensor:
        """Return the loss of the batch: the weighted mean of raw losses. The
        raw losses are added to the scores.

        Args:
            losses (Tensor): Raw loss of each row, float32 of shape (B,).
            factor (float or Tensor): What the losses are multiplied by: one
                factor for all rows, or of shape (B,). 1 if the baseline takes
                the mean over the images. Defaults to 1.
        """
        self.add_scores(losses)
        if not is_one(factor):
            losses = losses * factor
        return weighted_sum(losses, *self.mean_factors)

    def add_scores(self, scores: Tensor) -> None:
        """Add raw losses of the rows, float32 of shape (B,), to the scores."""
        self._scores.append(scores)

    @property
    def has_scores(self) -> bool:
        """bool: Whether a loss has added scores."""
        return bool(self._scores)

    @property
    def scores(self) -> Optional[Tensor]:
        """Tensor, optional: Raw loss of each image, summed over all calls of
        losses, float32 of shape (B,). None before the first call."""
        return self.write_scores(None)

    def write_scores(self, out: Optional[Tensor]) -> Optional[Tensor]:
        """Write :attr:`scores` to ``out``, of shape (B,), if there are any,
        and return them."""
        if not self._scores:
            return None
        with torch.no_grad():
            if self._share is None and len(self._scores) > 1:
                *others, last = self._scores
                return torch.add(
                    functools.reduce(torch.add, others), last, out=out)
            rows = functools.reduce(torch.add, self._scores)
            if self._share is not None:
                rows = self._share * rows + ((1 - self._share) * rows).flip(0)
        rows = rows.detach() if rows.requires_grad else rows
        return rows if out is None else out.copy_(rows)

    def watch(self,
              pred: Tensor,
              rows_per_image: RowsPerImage = 1,
              factor: Factor = 1.) -> None:
        """Watch the gradient at a prediction, for :attr:`norms`. A prediction
        that several losses share is watched once.

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
            pred.register_hook(
                functools.partial(self._note_gradient, len(self._watched),
                                  rows_per_image, factor))
            self._watched.append(weakref.ref(pred))

    # The list of norms would be compiled at each of its lengths.
    @torch.compiler.disable
    def _note_gradient(self, number: int, rows_per_image: RowsPerImage,
                       factor: Factor, gradient: Tensor) -> None:
        """Add the norm of each image, from the gradient at a prediction."""
        if not self.awaits_norms(number):
            return
        norms = row_norms(gradient)
        if len(norms) != self.size or isinstance(rows_per_image, list):
            squares, _ = sum_images(norms.square(), rows_per_image, self.size)
            norms = squares.sqrt()
        if isinstance(factor, Tensor):
            # The factor is 0 for an image without rows.
            norms = norms / factor.clamp(min=1e-12)
        elif not is_one(factor):
            norms = norms / factor
        self.add_norms(norms, number)

    def awaits_norms(self, source: Hashable) -> bool:
        """Return whether norms of a source are still to come in the backward
        pass of the total loss. There are none in a backward pass of another
        term."""
        return self._scale is not None and source not in self._noted

    def add_norms(self, norms: Tensor, source: Hashable) -> None:
        """Add the norm of the weighted gradient at some predictions, once in
        the backward pass of the total loss.

        Args:
            norms (Tensor): Norm of each image, float32 of shape (B,).
            source (Hashable): What stands for the predictions.
        """
        if self.awaits_norms(source):
            self._norms[source] = norms
            self._noted.add(source)

    def watch_total(self, loss: Tensor) -> None:
        """Watch the gradient at the total loss, which AMP and gradient
        accumulation scale."""
        if loss.requires_grad:
            loss.register_hook(self._note_scale)

    def _note_scale(self, gradient: Tensor) -> None:
        self._scale = gradient
        self._noted.clear()

    @property
    def norms(self) -> Optional[Tensor]:
        """Tensor, optional: Norm of the gradient of each image's own raw loss
        with respect to all predictions, float32 of shape (B,), whatever else
        is in the batch. If losses with different divisors share a prediction,
        the norm is approximate. None before the backward pass, and where the
        gradients can't be seen.
        """
        return self.write_norms(None)

    def write_norms(self, out: Optional[Tensor]) -> Optional[Tensor]:
        """Write :attr:`norms` to ``out``, of shape (B,), if there are any, and
        return them."""
        if not self._norms or self._scale is None or self._hides_norms:
            return None
        rows = functools.reduce(torch.hypot, self._norms.values())
        weights = self.mean_factors[1] * self._scale
        if self._share is None:
            return torch.div(rows, weights, out=out)
        rows = rows / weights
        # Gradients of different rows are orthogonal, so squares add up.
        images = torch.hypot(self._share * rows,
                             ((1 - self._share) * rows).flip(0))
        if len(rows) % 2:
            # The image in the middle is mixed with itself.
            images[len(rows) // 2] = rows[len(rows) // 2]
        return images if out is None else out.copy_(images)


def is_one(factor: Factor) -> bool:
    """Return whether a factor is 1, up to the epsilon that losses add to
    their divisors."""
    return isinstance(factor, (int, float)) and abs(factor - 1) < 1e-6


def mean_images(elements: Tensor,
                rows_per_image: RowsPerImage,
                num_images: int,
                counts: Optional[Tensor] = None) -> Tuple[Tensor, Factor]:
    """Return the mean over the elements of each image, float32 of shape (B,),
    and the number of these elements.

    Args:
        elements (Tensor): Elements of a loss. The first dimension runs over
            the rows, image by image.
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
    """Return the sum over the elements of each image, and the number of these
    elements. See :func:`mean_images`."""
    if isinstance(rows_per_image, int):
        images = elements.reshape(num_images, -1)
        return (images.sum(1, dtype=torch.float32),
                [images.shape[1]] * num_images)
    # The rows of an image are proportional to its `rows_per_image`.
    shares = max(sum(rows_per_image), 1)
    images = elements.split(
        [share * len(elements) // shares for share in rows_per_image])
    return (torch.stack([image.sum(dtype=torch.float32) for image in images]),
            [image.numel() for image in images])
