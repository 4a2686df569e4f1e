# Copyright (c) mmib contributors. All rights reserved.
"""The score of every image, kept where the training runs."""
from typing import Callable, List, NamedTuple, Optional

import numpy as np
import torch
from mmengine.dist import all_reduce, get_dist_info
from torch import Tensor

from .batch import to_device

# Share of the old average in the new one at a visit, where `ema` is 0.
AVERAGE = 0.8
# Batches that are written at once: each operation takes longer than its few
# numbers.
_PENDING_BATCHES = 32


class BatchVisits(NamedTuple):
    """The visits of a batch.

    Args:
        indices (np.ndarray): Data set index of each, integer of shape (B,).
        scores (Tensor): Raw loss of each image, float32 of shape (B,).
        iteration (int): The iteration, from 0.
        tiers (np.ndarray): Tier of each, from 1, int16 of shape (B,). 0 where
            a visit doesn't count for V.
        weights (np.ndarray): Weight of each over the mean weight of its plan,
            float32 of shape (B,).
        norms (Tensor): Norm of the gradient of each image, float32 of shape
            (B,).
    """

    indices: np.ndarray
    scores: Tensor
    iteration: int
    tiers: np.ndarray
    weights: np.ndarray
    norms: Tensor


class ScoreTable:
    """Score of each image: its raw loss at its last visit, or a moving
    average over its visits, and 1 before the first one.

    Where the score is the loss of the last visit, a moving average is kept
    too: the report ranks by the average, which finds more label errors.

    An image that a data set repeats has several indices and one score. Who
    uses the table knows indices only.

    Batches are written in groups of up to 32, and before anything is read.

    Every rank records what it trains on; :meth:`merge` makes the tables of
    all ranks equal. The table takes 12 bytes an image, 8 with ``ema``. Only
    :meth:`merge`, :meth:`num_non_finite`, :meth:`state_dict` and what copies
    to the host wait for the device.

    Args:
        images (np.ndarray): Number of the image of each index of the data
            set, from 0, int64 of shape (pass_length,).
        device (torch.device): Device of the training.
        ema (float): Share of the old score in the new one, in [0, 1). The
            first visit of an image sets its loss. Where two ranks visit an
            image between two merges, the earlier visit is lost. Defaults to
            0, the last loss alone.
    """

    def __init__(self,
                 images: np.ndarray,
                 device: torch.device,
                 ema: float = 0.) -> None:
        num_images = int(images.max()) + 1
        # Most data sets repeat nothing.
        self._images = None if np.array_equal(
            images, np.arange(num_images)) else images
        self.ema = ema
        # Rows are kept alike: the scores, and the averages if these are
        # others.
        self._emas = torch.tensor(
            [[ema]] if ema else [[0.], [AVERAGE]], device=device)
        self._rows = torch.ones(len(self._emas), num_images, device=device)
        # Iteration of the last visit, counted from 1, and 0 before the first
        # one: when two ranks visited an image since the last merge, the later
        # visit is the score.
        self._last_visit = torch.zeros(
            num_images, dtype=torch.int32, device=device)
        self.empty = True
        """bool: Whether nothing was recorded yet."""
        self.on_write: Callable = lambda visits, before: None
        """Callable: Called as ``on_write(visits, before)`` with the list of
        the visits that were written, and the score that each image had, NaN
        before its first visit, float32 of the length of all."""
        self._pending: List[BatchVisits] = []
        # Whether an image is in one of these, and whether one has it twice.
        self._is_pending = np.zeros(num_images, bool)
        self._repeats = False
        self._non_finite = torch.zeros(
            get_dist_info()[1], dtype=torch.int64, device=device)
        # Whether the table is equal on all ranks.
        self._merged = True

    @property
    def device(self) -> torch.device:
        """torch.device: Device of the training."""
        return self._rows.device

    @property
    def num_images(self) -> int:
        """int: Images in the data set, each counted once."""
        return self._rows.shape[1]

    def record(self, visits: BatchVisits) -> None:
        """Write the scores of a batch, soon. A score that isn't finite is
        counted, and the image keeps the score it had.

        Args:
            visits (BatchVisits): The visits of the batch.
        """
        images = self._images_of(visits.indices)
        # A visit must see the score of the one before.
        if (len(self._pending) == _PENDING_BATCHES
                or self._is_pending[images].any()):
            self.write()
        self._pending.append(visits)
        self._is_pending[images] = True
        self._repeats |= len(set(images.tolist())) < len(images)
        self.empty = self._merged = False

    def _images_of(self, indices: np.ndarray) -> np.ndarray:
        return indices if self._images is None else self._images[indices]

    def write(self) -> None:
        """Write what was recorded. Nothing waits for the device."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        images = self._images_of(np.concatenate([v.indices for v in pending]))
        self._is_pending[images] = False
        where = to_device(images, self.device)
        times = np.repeat(
            np.array([v.iteration + 1 for v in pending], np.int32),
            [len(v.indices) for v in pending])
        scores = torch.cat([v.scores for v in pending])
        finite = torch.isfinite(scores)
        self._non_finite[get_dist_info()[0]] += (~finite).sum()
        old, visits = self._rows[:, where], self._last_visit[where]
        before = torch.where(visits > 0, old[0], torch.nan)
        smoothed = self._emas * old + (1 - self._emas) * scores
        new = torch.where(visits > 0, smoothed, scores)
        new = torch.where(finite, new, old)
        visits = torch.where(finite, to_device(times, self.device), visits)
        if self._repeats:
            # A batch crosses the edge of a virtual epoch and holds an image
            # twice: its last slot counts. (Writing both is not deterministic
            # on a GPU.)
            _, first_of_reversed = np.unique(images[::-1], return_index=True)
            last = len(images) - 1 - first_of_reversed
            last = to_device(last, scores.device)
            where, new, visits = where[last], new[:, last], visits[last]
            self._repeats = False
        self._rows[:, where] = new
        self._last_visit[where] = visits
        self.on_write(pending, before)

    def merge(self, own: Tensor) -> Optional[Tensor]:
        """Make the tables of all ranks equal, in one collective. It takes
        none if nothing was recorded since the last one.

        Args:
            own (Tensor): Numbers of this rank that all ranks should know,
                float64 of shape (M,).

        Returns:
            Tensor, optional: The numbers of all ranks, of shape (W, M). None
            if there was no collective.
        """
        self.write()
        rank, world_size = get_dist_info()
        if world_size == 1 or self._merged:
            return None
        # The later visit wins, so the visit is the high half of a number of
        # which the maximum is taken, and the bits of its score the low half.
        bits = self._rows.view(torch.int32).long() & 0xffffffff
        # The bits of a rank's own numbers, which no other rank exceeds.
        rows = bits.new_full((world_size, len(own)), -2**63)
        rows[rank] = own.view(torch.int64)
        latest = torch.cat([((self._last_visit.long() << 32) | bits).view(-1),
                            self._non_finite,
                            rows.view(-1)])
        all_reduce(latest, op='max')
        latest, counts, rows = latest.split(
            [bits.numel(), len(self._non_finite),
             rows.numel()])
        # A view would keep all of `latest` alive.
        self._non_finite = counts.clone()
        latest = latest.view_as(bits)
        self._rows = latest.int().view(torch.float32)
        self._last_visit = (latest[0] >> 32).int()
        self._merged = True
        return rows.clone().view(torch.float64).view(world_size, -1)

    def numpy(self) -> np.ndarray:
        """A copy of the scores on the host, one for each index of the data
        set, float32 of shape (pass_length,)."""
        scores = self.by_image()
        return scores if self._images is None else scores[self._images]

    def by_image(self) -> np.ndarray:
        """A copy of the scores on the host, one for each image, float32 of
        shape (num_images,)."""
        self.write()
        return self._rows[0].to('cpu', copy=True).numpy()

    def num_non_finite(self) -> int:
        """Losses so far that weren't finite, of all ranks as of the last
        merge."""
        self.write()
        return int(self._non_finite.sum())

    def state_dict(self) -> dict:
        """The merged table as tensors and plain Python values."""
        self.write()
        return dict(
            scores=self._rows[0].to('cpu', copy=True),
            averages=self._rows[-1].to('cpu', copy=True),
            last_visit=self._last_visit.to('cpu', copy=True),
            ema=self.ema,
            non_finite=self.num_non_finite(),
            empty=self.empty)

    def load_state_dict(self, state_dict: dict) -> List[str]:
        """Go on from :meth:`state_dict`, on any number of ranks, and tell what
        has changed since then, for the log."""
        self._rows[-1] = state_dict['averages']
        self._rows[0] = state_dict['scores']
        # All ranks alike, and earlier than any visit to come.
        self._last_visit.copy_(state_dict['last_visit'])
        self._non_finite.zero_()
        self._non_finite[0] = state_dict['non_finite']
        self.empty = state_dict['empty']
        self._merged = True
        ema = state_dict['ema']
        return [] if ema == self.ema else [
            f'`ema` is {self.ema} instead of {ema}'
        ]
