# Copyright (c) mmib contributors. All rights reserved.
"""The next slots of this rank on the training device."""
from typing import Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from ..stream.slots import Slots
from .weigh import to_device

# Batches of a stretch. The views of a batch take about 0.7 kB on the host.
_NUM_BATCHES = 256


class Views(NamedTuple):
    """Where a batch has its weights and leaves its visits, each float32 of
    shape (B,).

    Args:
        relative_weights (Tensor): Relative weight of each slot.
        weights (Tensor): Weight of each slot.
        scores (Tensor): Row of the log for the scores.
        norms (Tensor): Row of the log for the norms.
        stretch (Stretch): The stretch that the views belong to.
        rows (range): The rows of the views in the stretch.
        mean_factors (tuple[Tensor]): Relative weights and weights over B, the
            factors of a mean over the batch. Empty where nobody needs them, or
            where B isn't the batch size of the stretch.
    """

    relative_weights: Tensor
    weights: Tensor
    scores: Tensor
    norms: Tensor
    stretch: 'Stretch'
    rows: range
    mean_factors: Tuple[Tensor, ...]


class Stretch:
    """The next slots of this rank in many batches of one size: their weights,
    which are copied to the device at once, and rows of the log, which the
    steps write in place.

    Weights and rows are two tensors: views of one tensor share a version, so
    that autograd would refuse weights after a row was written.

    Args:
        slots (Slots): The first batch, in a row.
        device (torch.device): The training device.
        has_mean_factors (bool): Whether views have
            :attr:`Views.mean_factors`. Defaults to False.
    """

    def __init__(self,
                 slots: Slots,
                 device: torch.device,
                 has_mean_factors: bool = False) -> None:
        self._numbers, columns = slots.ahead(_NUM_BATCHES)
        self._numbering, self._batch_size = slots.numbering, len(slots)
        size = self._batch_size
        weights = np.array([columns.relative_weights, columns.weights])
        if has_mean_factors:
            weights = np.concatenate([weights, weights / np.float32(size)])
        self._weights = to_device(weights, device)
        self._rows = torch.full((2, len(self._numbers)),
                                torch.nan,
                                dtype=torch.float32,
                                device=device)
        # The views of all whole batches, in few calls.
        relative, full, *factors = self._weights.unbind()
        rows = (relative, full, *self._rows.unbind(), *factors)
        self._views: Dict[range, Views] = {}
        begins = range(0, len(self._numbers) - size + 1, size)
        for begin, each in zip(begins,
                               zip(*(row.split(size) for row in rows))):
            own = range(begin, begin + size)
            self._views[self._numbers[begin:own.stop]] = Views._make(
                [*each[:4], self, own, each[4:]])
        # Begin and end of the rows that were written, without gaps.
        self._written: List[List[int]] = []

    def views(self, slots: Slots) -> Optional[Views]:
        """Return the views of a batch, or None if the batch isn't a part of
        the stretch."""
        own, numbers = slots.in_row, self._numbers
        if not own or slots.numbering is not self._numbering:
            return None
        views = self._views.get(own)
        if views is not None:
            return views
        row, offset = divmod(own.start - numbers.start, numbers.step)
        size = len(own)
        if (offset or row < 0 or row + size > len(numbers)
                or own.step != numbers.step):
            return None
        rows = range(row, row + size)
        parts = (
            each[row:rows.stop] for each in (*self._weights[:2], *self._rows))
        return Views._make([*parts, self, rows, ()])

    def close(self) -> None:
        """Free the weights and the views. The rows stay, because a late
        backward pass may write to them."""
        self._views.clear()
        del self._weights

    def note_written(self, views: Views) -> int:
        """Note that the rows of some views were written, after all rows before
        them. Return the number of the next slot of all ranks."""
        begin, end = views.rows.start, views.rows.stop
        if self._written and self._written[-1][1] == begin:
            self._written[-1][1] = end
        else:
            self._written.append([begin, end])
        return self._numbers[end - 1] + 1

    def written(self) -> List[np.ndarray]:
        """Return the numbers of the slots whose rows were written."""
        numbers = [self._numbers[begin:end] for begin, end in self._written]
        return [np.arange(own.start, own.stop, own.step) for own in numbers]

    def values(self) -> List[Tensor]:
        """Return copies of the rows that were written, float32 of shape
        (2, K)."""
        parts = [
            self._rows[:, begin:end].clone() for begin, end in self._written
        ]
        for rows in parts:
            # Where a loss counts negatively, so does its norm.
            rows[1].abs_()
        return parts


def weights_of(slots: Slots, device: torch.device) -> Tensor:
    """Return the relative weights and the weights of a batch, float32 of shape
    (2, B)."""
    return to_device(np.array([slots.relative_weights, slots.weights]), device)


def cuda_stream_of(device: torch.device) -> int:
    """Return the CUDA stream on which a device computes now. What a stream has
    written, another stream may not see yet."""
    # Asking for the type takes longer.
    if device.index is None or device.type != 'cuda':
        return 0
    return torch.cuda.current_stream(device).cuda_stream
