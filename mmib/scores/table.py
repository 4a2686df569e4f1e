# Copyright (c) mmib contributors. All rights reserved.
"""The table of images, and sums over visits."""
from numbers import Real
from typing import Any, Dict, Iterator

import numpy as np
import torch

from ..errors import Refusal
from ..stream.slots import Columns
from . import worth

# `np.add.at` takes 30 times as long where it has to convert a number.
_ONE = np.int32(1)
# The record of an image. A visit reads and writes the whole record, so its
# fields lie side by side, and numpy copies records of 16 bytes fast.
_FIELDS = dict(
    scores=np.float32,
    averages=np.float32,
    last_visit=np.int32,
    visits=np.int32)
# In a dataset of more images, V is estimated from a sample of about this many
# images. The sample suffices for the third digit of V, and saves time where a
# plan is drawn.
_SAMPLED = 1 << 18
# Share of the old average in the new one at a visit, where `ema` is 0.
AVERAGE = 0.8


def check_ema(ema: Any, where: str) -> None:
    """Check the share of the old score in the new one.

    Args:
        ema (float): See :class:`ImageTable`.
        where (str): Where the user gives the argument, such as ``'of a
            Session'``.
    """
    if not isinstance(ema, Real):
        raise Refusal(f'`ema` {where} must be a number, but got {ema!r}.')
    if not 0 <= float(ema) < 1:
        raise Refusal(
            f'`ema` {where} is the share of the old score in the new one, and '
            f'must be in [0, 1), but got {ema}.')


class ImageTable:
    """A record of each image, and sums over the visits since scores were read.

    Args:
        images (np.ndarray): Number of the image of each dataset index, from 0,
            int64. An image that the dataset repeats has several indices and
            one score.
        ema (float): Share of the old score in the new one at each visit except
            the first, in [0, 1). With 0, plans depend on the last score alone.
            The table then still keeps a moving average, because the average
            finds more label errors. Defaults to 0.
        score (str): What the score of a visit is, ``'loss'`` or
            ``'gradient'``, the norm of the gradient. Defaults to ``'loss'``.
    """

    def __init__(self,
                 images: np.ndarray,
                 ema: float = 0.,
                 score: str = 'loss') -> None:
        self.ema, self.score = ema, score
        self._repeats = bool((images != np.arange(len(images))).any())
        # Without repeats, the number of an image is its index, and a range
        # takes no memory.
        self.images: Any = images if self._repeats else range(len(images))
        size = int(images.max()) + 1
        self._records = np.zeros(size, [*_FIELDS.items()])
        self._view_records()
        self.scores[:] = self.averages[:] = 1
        self.pruned = np.zeros(size, np.int32)
        """np.ndarray: How often plans left each image out. Each repeat of an
        image in a dataset counts."""
        self.non_finite = 0
        """int: Number of scores that weren't finite."""
        self.forget_sums()

    def _view_records(self) -> None:
        self.scores = self._records['scores']
        """np.ndarray: Score of each image, 1 before its first visit."""
        self.averages = self._records['averages']
        """np.ndarray: Moving average of the scores of each image."""
        self.last_visit = self._records['last_visit']
        """np.ndarray: The time, from 1, of the last visit of each image that
        gave a score; 0 before the first such visit."""
        self.visits = self._records['visits']
        """np.ndarray: Number of visits of each image, including visits in
        which another image was delivered in its place."""

    def __setstate__(self, state: Dict[str, Any]) -> None:
        # In a copy of the table, the columns are arrays of their own.
        vars(self).update(state)
        self._view_records()

    def forget_sums(self) -> None:
        """Reset the sums over visits."""
        self.sums = np.zeros((0, len(worth.MOMENTS) + 1))
        """np.ndarray: :func:`~mmib.worth.tier_sums` of the visits since the
        sums were last read for a plan, in a larger dataset of a sample of
        about 262,144 images."""

    def count_visits(self, indices: np.ndarray) -> None:
        """Count visits without a score, by the indices of the slots."""
        np.add.at(self.visits, self._images_of(indices), _ONE)

    def _images_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of the image of each index."""
        return self.images[indices] if self._repeats else indices

    def count_pruned(self, is_pruned: np.ndarray) -> None:
        """Count the images of a pass that a plan leaves out, bool of shape
        (pass_length,)."""
        if self._repeats:
            images = self.images[:len(is_pruned)]
            np.add.at(self.pruned, images[is_pruned], _ONE)
        else:
            self.pruned += is_pruned

    def add(self, slots: Columns, visited_at: np.ndarray, scores: np.ndarray,
            norms: np.ndarray) -> None:
        """Count visits, and add them to the scores, the averages and the sums.

        Args:
            slots (Columns): Slots with a score, of all ranks, in the order of
                the stream, of shape (K,).
            visited_at (np.ndarray): When each slot was visited, from 1, int32
                of shape (K,), for ``last_visit``.
            scores (np.ndarray): Raw score of each visit, float32 of shape
                (K,).
            norms (np.ndarray): Norm of each visit, float32 of shape (K,).
        """
        counts = np.ones(len(scores), bool)
        if self.score == 'gradient':
            scores = norms
            # No gradient flows back through weight 0, so the norm isn't known.
            counts &= slots.weights > 0
        finite = np.isfinite(scores)
        self.non_finite += int((counts & ~finite).sum())
        images = self._images_of(slots.indices)
        is_first = self._visit(images, counts & finite, scores, visited_at)
        self._add_norms(images, slots, norms, counts & finite & ~is_first)

    def add_late(self, slots: Columns, norms: np.ndarray) -> None:
        """Add the norms of visits that were added before their norms were
        known, to the sums alone.

        Args:
            slots (Columns): The slots of these visits, of shape (K,).
            norms (np.ndarray): Norm of each visit, float32 of shape (K,).
        """
        images = self._images_of(slots.indices)
        # As in `add`, the first visit of an image doesn't count.
        self._add_norms(images, slots, norms, self.visits[images] > 1)

    def _add_norms(self, images: np.ndarray, slots: Columns, norms: np.ndarray,
                   counts: np.ndarray) -> None:
        """Add the norms of visits to the sums, of those visits that count."""
        num_tiers = int(slots.tiers.max(initial=0))
        if len(self.scores) > _SAMPLED:
            rows = np.flatnonzero(is_sampled(images, len(self.scores)))
            slots, norms, counts = slots.at(rows), norms[rows], counts[rows]
        counts = (
            counts & np.isfinite(norms) & (slots.tiers > 0) &
            (slots.weights > 0))
        # A slice copies nothing.
        known = slice(None) if counts.all() else np.flatnonzero(counts)
        self.sums = worth.tier_sums(slots.tiers[known],
                                    slots.relative_weights[known],
                                    norms[known], num_tiers, self.sums)

    def _visit(self, images: np.ndarray, is_valid: np.ndarray,
               scores: np.ndarray, visited_at: np.ndarray) -> np.ndarray:
        """Add 1 to the visits of each image, and update the scores of images
        whose visit has a valid score. Return whether the image had no score
        before the visit."""
        are_first = np.empty(len(images), bool)
        all_valid, share = is_valid.all(), np.float32(self.ema or AVERAGE)
        for rows in rounds(images):
            of, new, now = images[rows], scores[rows], visited_at[rows]
            known = self._records[of]
            known['visits'] += 1
            is_first = are_first[rows] = known['last_visit'] == 0
            if not all_valid:
                # The other visits count too.
                self._records[of] = known
                of, new, now, known, is_first = (
                    each[is_valid[rows]]
                    for each in (of, new, now, known, is_first))
            average = share * known['averages'] + (np.float32(1) - share) * new
            average = np.where(is_first, new, average)
            known['averages'] = average
            known['scores'] = average if self.ema else new
            known['last_visit'] = now
            self._records[of] = known
        return are_first

    @property
    def knows_scores(self) -> bool:
        """bool: Whether any visit has had a score."""
        return bool(self.last_visit.any())

    def by_index(self, pass_length: int) -> np.ndarray:
        """Return the score of each index of a pass, float32 of shape
        (pass_length,)."""
        if self._repeats:
            return self.scores[self.images[:pass_length]]
        return self.scores.copy()

    def state_dict(self) -> Dict[str, Any]:
        """Return the table as tensors and plain Python values."""
        arrays = {
            name: torch.from_numpy(getattr(self, name).copy())
            for name in (*_FIELDS, 'pruned', 'sums')
        }
        return dict(
            arrays, ema=self.ema, score=self.score, non_finite=self.non_finite)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Resume where :meth:`state_dict` was called."""
        for name in (*_FIELDS, 'pruned'):
            getattr(self, name)[:] = state_dict[name].numpy()
        self.sums = state_dict['sums'].numpy().copy()
        self.non_finite = state_dict['non_finite']
        if self.ema and state_dict['ema'] != self.ema:
            # With `ema`, the score of an image is its average.
            self.averages[:] = self.scores


def is_sampled(images: np.ndarray, size: int) -> np.ndarray:
    """Return whether V is estimated from each of these images, bool of shape
    (K,), if the dataset has more than 262,144 images.

    The sample is the images whose number has a small hash, the finalizer of
    MurmurHash3. A mask of all images, which is read at random places, takes
    several times as long.

    Args:
        images (np.ndarray): Numbers of images, from 0, integer of shape (K,).
        size (int): Number of images of the dataset.
    """
    mixed = images.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ mixed >> np.uint32(shift)) * np.uint32(factor)
    mixed ^= mixed >> np.uint32(16)
    return mixed < np.uint32(_SAMPLED / size * 2**32)


def rounds(images: np.ndarray) -> Iterator[Any]:
    """Divide visits into rounds. An image occurs at most once in a round, and
    its visits stay in their order.

    Args:
        images (np.ndarray): Image of each visit, integer of shape (K,).

    Yields:
        np.ndarray or slice: Numbers of the visits of a round, increasing.
    """
    in_order = np.sort(images.astype(np.int32))
    if (in_order[1:] != in_order[:-1]).all():
        # The usual case: a plan has an image once.
        yield slice(None)
        return
    rest = np.arange(len(images))
    places = np.empty(int(in_order[-1]) + 1, np.int32)
    while len(rest):
        # If an entry gets several values, numpy writes the last one.
        places[images[rest[::-1]]] = rest[::-1]
        is_first = places[images[rest]] == rest
        yield rest[is_first]
        rest = rest[~is_first]
