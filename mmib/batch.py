# Copyright (c) mmib contributors. All rights reserved.
"""What hook and losses tell each other of the batch in training."""
import weakref
from typing import List, Optional, Tuple, Union

import torch
from torch import Tensor

RowsPerImage = Union[int, List[int]]


class BatchContext:
    """What hook and losses tell each other of the batch in training.

    There is one in a training. While :attr:`weights` are None, as outside of
    training and in annealing, losses are computed as in the baseline.
    """

    def __init__(self) -> None:
        self.weights: Optional[Tensor] = None
        """Weight of each image, float32 of shape (B,)."""
        self.scores: Optional[Tensor] = None
        """Raw loss of each image, float32 of shape (B,), summed over all
        calls of all losses. None before the first one."""
        self.unweighted_loss: Optional[Tensor] = None
        """What the loss of the batch would be with all weights 1, a scalar.
        None before the first call."""
        self.row_weights: Optional[Tensor] = None
        """Weight of each row of the predictions, float32 of shape (B,): that
        of the image, unless :meth:`mix` says that rows are mixtures."""
        self._share: Optional[Tensor] = None
        self._norms: List[Tensor] = []
        self._scales: List[Tensor] = []
        self._watched: List[weakref.ref] = []
        self._is_blind = False

    def begin(self, weights: Optional[Tensor]) -> None:
        """Begin a batch.

        Args:
            weights (Tensor, optional): Weight of each image, float32 of shape
                (B,). None trains as the baseline.
        """
        self.weights = self.row_weights = weights
        self.scores = self.unweighted_loss = self._share = None
        self._norms, self._scales = [], []
        self._watched = []
        self._is_blind = False

    def mix(self, share: Union[float, Tensor]) -> None:
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
        self._share = (
            share.to(self.weights)
            if torch.is_tensor(share) else self.weights.new_full((), share))
        self.row_weights = (
            self._share * self.weights +
            (1 - self._share) * self.weights.flip(0))

    def _split(self, rows: Tensor) -> Tuple[Tensor, Tensor]:
        """What each image has of its own row, and of the other one."""
        return self._share * rows, ((1 - self._share) * rows).flip(0)

    def add_scores(self, scores: Tensor, unweighted_loss: Tensor) -> None:
        """Add to the raw loss of each image, and to that of the batch.

        Args:
            scores (Tensor): Unweighted loss of each row, of shape (B,): of
                each image, unless they are mixed.
            unweighted_loss (Tensor): What the baseline makes of them, a
                scalar.
        """
        scores, unweighted_loss = scores.detach(), unweighted_loss.detach()
        if self._share is not None:
            scores = torch.add(*self._split(scores))
        if self.scores is not None:
            scores = self.scores + scores
            unweighted_loss = self.unweighted_loss + unweighted_loss
        self.scores, self.unweighted_loss = scores, unweighted_loss

    def watch(self, pred: Tensor, rows_per_image: RowsPerImage) -> None:
        """Look at the gradient that will flow into a prediction, for
        :attr:`norms`. Call it before the loss is computed from it.

        Args:
            pred (Tensor): What a loss is computed from. It counts once,
                however many losses are.
            rows_per_image (int or list[int]): Its rows of each image.
        """
        num_images = len(self.weights)
        shares = (
            num_images if isinstance(rows_per_image, int) else max(
                sum(rows_per_image), 1))
        if not torch.is_tensor(pred) or len(pred) % shares:
            self._is_blind = True
            return
        if not pred.requires_grad:
            return
        # Another loss may get the same prediction in another shape.
        target = _whole(pred)
        if any(seen() is target for seen in self._watched):
            return
        self._watched.append(weakref.ref(target))
        shape = pred.shape

        def note_norms(gradient: Tensor) -> None:
            gradient = gradient.reshape(shape)
            # Without the copy that squaring each element would make.
            norms = torch.linalg.vector_norm(
                gradient.flatten(1) if len(shape) > 1 else gradient[:, None],
                dim=1,
                dtype=torch.float32)
            if len(norms) != num_images or isinstance(rows_per_image, list):
                squares, _ = sum_images(norms.square(), rows_per_image,
                                        num_images)
                norms = squares.sqrt()
            self._norms.append(norms)

        target.register_hook(note_norms)

    def watch_loss(self, value: Tensor) -> None:
        """Look at the gradient that will flow into a loss: mixed precision
        and gradient accumulation multiply it.

        Args:
            value (Tensor): The loss of a watched prediction.
        """
        if value.requires_grad:
            value.register_hook(self._note_scale)

    def _note_scale(self, gradient: Tensor) -> None:
        scale = gradient.detach().float()
        self._scales.append(scale.sum() if scale.dim() else scale)

    @property
    def norms(self) -> Optional[Tensor]:
        """Tensor, optional: Norm of the gradient of each image's loss,
        unweighted, with respect to all predictions that losses are computed
        from, float32 of shape (B,). Known after the backward pass; None where
        it can't be seen."""
        if not self._norms or not self._scales or self._is_blind:
            return None
        # Few operations, as each takes longer than its few numbers.
        norms = torch.linalg.vector_norm(torch.stack(self._norms), dim=0)
        # A model may multiply some of its losses besides.
        scales = torch.stack(self._scales)
        scale = torch.linalg.vector_norm(scales, torch.inf)
        norms = norms / (self.row_weights * scale)
        if self._share is None:
            return norms
        # Rows have nothing in common, so squares add up.
        images = torch.hypot(*self._split(norms))
        if len(norms) % 2:
            # The image in the middle is mixed with itself.
            middle = len(norms) // 2
            images[middle] = norms[middle]
        return images


def sum_images(elements: Tensor, rows_per_image: RowsPerImage,
               num_images: int) -> Tuple[Tensor, Tensor]:
    """Sum and mean over the elements of each image.

    Args:
        elements (Tensor): Any, of which the first dimension runs over the
            rows of the images, image by image.
        rows_per_image (int or list[int]): See :class:`InfoBatchLoss`.
        num_images (int): Images of the batch.

    Returns:
        tuple[Tensor, Tensor]: Both float32 of shape (B,).
    """
    if isinstance(rows_per_image, int):
        images = elements.reshape(num_images, -1)
        sums = images.sum(1, dtype=torch.float32)
        return sums, sums / images.shape[1]
    # Rows of an image: a multiple of its share, as points of its masks.
    shares = max(sum(rows_per_image), 1)
    images = elements.split(
        [share * len(elements) // shares for share in rows_per_image])
    sums = torch.stack([image.sum(dtype=torch.float32) for image in images])
    means = [
        total / max(image.numel(), 1) for total, image in zip(sums, images)
    ]
    return sums, torch.stack(means)


def _whole(pred: Tensor) -> Tensor:
    """The tensor of which a prediction is another shape, or itself."""
    base = pred._base
    # What was hung on a leaf, such as a parameter, would stay there.
    if (base is None or not base.requires_grad or base.is_leaf
            or base.numel() != pred.numel() or not base.is_contiguous()
            or not pred.is_contiguous()):
        return pred
    return base
