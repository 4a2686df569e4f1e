# Copyright (c) mmib contributors. All rights reserved.
"""What is known of visits: the log that a training writes, and what is made of
it.

A visit is a slot that was trained on. In a step a rank keeps what its device
has computed there, and notes on the host which slots these were. At the edge
of a plan all is gathered and copied to the host, once. From there on
everything is a function of arrays, equal on all ranks.
"""
import math
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np
import torch
from mmengine.dist import all_gather, get_dist_info
from torch import Tensor

from . import worth
from .errors import Refusal
from .pruning import Slots, TierNorms

# Steps whose scores are packed at once: each operation takes longer than its
# few numbers.
_PACKED_STEPS = 32
# Visits that tables take in at once: their arrays stay in the processor's
# cache.
_BLOCK = 1 << 17
# `np.add.at` takes 30 times as long where it has to convert a number.
_ONE = np.int32(1)
# What is known of an image. A visit reads and writes all of it, so it lies in
# one place, and numpy copies records of 16 bytes fast.
_FIELDS = dict(
    scores=np.float32,
    averages=np.float32,
    last_visit=np.int32,
    visits=np.int32)
# Of more images, so many at random tell V and the correlation of scores. That
# is enough for the third digit of V, and the edge of a plan takes less time.
_TELLING = 1 << 18
# Share of the old average in the new one at a visit, where `ema` is 0.
AVERAGE = 0.8
# The norm of a visit for which the data set delivered another image. Losses
# that stand in for norms may be negative.
NOT_DELIVERED = -np.inf


@dataclass(frozen=True)
class Visits:
    """Visits of all ranks, in the order of the stream.

    Args:
        slots (Slots): The slots, of shape (V,).
        iterations (np.ndarray): Iterations of the training until each visit
            was over, int32 of shape (V,).
        scores (np.ndarray): Raw score of each, float32 of shape (V,).
        norms (np.ndarray): Norm of the gradient of each, float32 of shape
            (V,).
    """

    slots: Slots
    iterations: np.ndarray
    scores: np.ndarray
    norms: np.ndarray


class VisitLog:
    """The visits since the last merge.

    Nothing waits for the device but :meth:`merge`. There, the log takes 8
    bytes for each visit of this rank.
    """

    def __init__(self) -> None:
        _, self._world_size = get_dist_info()
        self._clear()

    def _clear(self) -> None:
        self._slots: List[Slots] = []
        self._iterations: List[int] = []
        self._scores: List[Tensor] = []
        self._norms: List[Tensor] = []
        self._packed: List[Tensor] = []

    def __len__(self) -> int:
        """Steps in the log."""
        return len(self._slots)

    def record(self,
               slots: Slots,
               iteration: int,
               scores: Tensor,
               norms: Tensor,
               delivered: Optional[Tensor] = None) -> None:
        """Note a step.

        Args:
            slots (Slots): Slots of all ranks in this step, of shape (B * W,).
                This rank had ``[rank::W]``.
            iteration (int): Iterations of the training with this one.
            scores (Tensor): Raw scores of this rank, float32 of shape (B,).
            norms (Tensor): Norms of this rank, float32 of shape (B,).
            delivered (Tensor, optional): Whether the data set delivered the
                image of each slot, bool of shape (B,). None is all.
        """
        if delivered is not None:
            norms = torch.where(delivered, norms, NOT_DELIVERED)
        self._slots.append(slots)
        self._iterations.append(iteration)
        self._scores.append(scores)
        self._norms.append(norms)
        if len(self._scores) == _PACKED_STEPS:
            self._pack()

    def _pack(self) -> None:
        if self._scores:
            self._packed.append(
                torch.stack([torch.cat(self._scores),
                             torch.cat(self._norms)]))
            self._scores, self._norms = [], []

    def merge(self, checksum: int) -> Iterator[Visits]:
        """Empty the log into what all ranks know of its visits: one collective
        and one copy to the host. No collective where nothing was recorded.
        The visits come in blocks.

        Args:
            checksum (int): A number of 32 bits that must be the same on all
                ranks.

        Raises:
            Refusal: If ranks drew different plans. This is seen where the
                plans are equally long; else the ranks call collectives that
                don't match, and the process group fails.
        """
        if not self._slots:
            return iter(())
        self._pack()
        values = torch.cat(self._packed, 1)
        if self._world_size > 1:
            values = self._gather(values, checksum)
        steps = self._slots, self._iterations
        self._clear()
        return _blocks(*steps, *values.cpu().numpy())

    def _gather(self, values: Tensor, checksum: int) -> Tensor:
        """Values of shape (2, V) in the order of the stream, in which rank k
        of W has every W-th one from k on."""
        head = np.array([checksum, values.shape[1]], np.uint32)
        row = torch.from_numpy(head.view(np.float32)).to(values.device)
        rows = all_gather(torch.cat([row, values.flatten()]))
        heads = torch.stack([row[:2] for row in rows])
        heads = heads.cpu().numpy().view(np.uint32)
        if (heads != head).any():
            raise Refusal(
                'The ranks drew different plans. A policy must take every '
                'random choice from its argument `rng`: check the `policy` of '
                'InfoBatchHook in `custom_hooks`.')
        of_all = values.new_empty(2, len(rows) * values.shape[1])
        for rank, row in enumerate(rows):
            of_all[:, rank::len(rows)] = row[2:].view(2, -1)
        return of_all


def _blocks(slots: List[Slots], iterations: List[int], scores: np.ndarray,
            norms: np.ndarray) -> Iterator[Visits]:
    """The visits of steps, of as many steps at once as fill a block."""
    ends = np.cumsum([0, *map(len, slots)])
    first = 0
    while first < len(slots):
        last = np.searchsorted(ends, ends[first] + _BLOCK, 'right') - 1
        last = max(int(last), first + 1)
        visits = slice(ends[first], ends[last])
        yield Visits(
            Slots.join(slots[first:last]),
            np.repeat(
                np.array(iterations[first:last], np.int32),
                np.diff(ends[first:last + 1])), scores[visits], norms[visits])
        first = last


class Tables:
    """What is known of each image, and of the visits since a plan was drawn.

    Args:
        images (np.ndarray): Number of the image of each index of the data
            set, from 0, int64. An image that a data set repeats has several
            indices and one score.
        ema (float): Share of the old score in the new one at each visit but
            the first, in [0, 1). Defaults to 0, the last score alone. A moving
            average is kept besides then, as more label errors are found by it.
        score (str): What the score of a visit is, ``'loss'`` or
            ``'gradient'``, the norm of the gradient. Defaults to ``'loss'``.
    """

    def __init__(self,
                 images: np.ndarray,
                 ema: float = 0.,
                 score: str = 'loss') -> None:
        self.images, self.ema, self.score = images, ema, score
        # Else the number of an image is its index.
        self._repeats = (images != np.arange(len(images))).any()
        size = int(images.max()) + 1
        self._telling = _draw_telling(size)
        self._seen = np.zeros(size, bool)
        self._records = np.zeros(size, [*_FIELDS.items()])
        self.scores = self._records['scores']
        """np.ndarray: Score of each image, 1 before its first visit."""
        self.averages = self._records['averages']
        """np.ndarray: Moving average of the scores of each image."""
        self.last_visit = self._records['last_visit']
        """np.ndarray: Iterations until the last visit of each image that gave
        a score, with that of the visit; 0 before the first one."""
        self.visits = self._records['visits']
        """np.ndarray: How often each image was asked for in a step, also where
        another one was delivered."""
        self.scores[:] = self.averages[:] = 1
        self.pruned = np.zeros(size, np.int32)
        """np.ndarray: How often plans left each image out."""
        self.non_finite = 0
        """int: Scores that weren't finite."""
        self.knows_scores = False
        """bool: Whether a batch was scored, merged or not."""
        self.forget_sums()

    def forget_sums(self) -> None:
        """Begin the sums over visits anew."""
        self.sums = np.zeros((0, len(worth.MOMENTS) + 1))
        """np.ndarray: :func:`~mmib.worth.tier_sums` of the visits since they
        were read, to at most 262,144 images."""
        self.pairs = np.zeros(6)
        """np.ndarray: :func:`~mmib.worth.pair_sums` of the scores before and
        after these visits."""

    def count_visits(self, indices: np.ndarray) -> None:
        """Count the images of a step, by their indices on all ranks."""
        np.add.at(self.visits, self.images[indices], _ONE)

    def count_pruned(self, kept: np.ndarray, pass_length: int) -> None:
        """Count the images of a pass that a plan leaves out, by the indices in
        the plan."""
        is_pruned = np.ones(pass_length, bool)
        is_pruned[kept] = False
        if self._repeats:
            np.add.at(self.pruned, self.images[:pass_length][is_pruned], _ONE)
        else:
            self.pruned += is_pruned

    def add(self, visits: Visits) -> None:
        """Take visits in: scores, averages, and the sums for V."""
        slots, norms, scores = visits.slots, visits.norms, visits.scores
        counts = norms != NOT_DELIVERED
        if self.score == 'gradient':
            scores = norms
            # With weight 0 nothing flows back, so the norm isn't known.
            counts &= slots.weights > 0
        finite = np.isfinite(scores)
        self.non_finite += int((counts & ~finite).sum())
        images = slots.indices
        if self._repeats:
            images = self.images[images]
        before = self._score(images, counts & finite, scores,
                             visits.iterations)
        counts &= (
            finite & np.isfinite(norms) & np.isfinite(before) &
            (slots.tiers > 0) & (slots.weights > 0))
        if self._telling is not None:
            counts &= self._telling[images]
        # A slice copies nothing.
        known = slice(None) if counts.all() else np.flatnonzero(counts)
        self.sums = worth.tier_sums(slots.tiers[known],
                                    slots.weights[known] / slots.means[known],
                                    norms[known],
                                    int(slots.tiers.max(initial=0)), self.sums)
        self.pairs = worth.pair_sums(before[known], scores[known], self.pairs)

    def _score(self, images: np.ndarray, counts: np.ndarray,
               scores: np.ndarray, iterations: np.ndarray) -> np.ndarray:
        """Write the scores that count, and return the score that each image
        had before its visit, NaN before its first one."""
        before = np.empty(len(images), np.float32)
        all_count, share = counts.all(), np.float32(self.ema or AVERAGE)
        for rows in rounds(images, self._seen):
            of, new, times = images[rows], scores[rows], iterations[rows]
            known = self._records[of]
            is_first = known['last_visit'] == 0
            before[rows] = np.where(is_first, np.nan, known['scores'])
            if not all_count:
                of, new, times, known, is_first = (
                    each[counts[rows]]
                    for each in (of, new, times, known, is_first))
            average = share * known['averages'] + (np.float32(1) - share) * new
            average = np.where(is_first, new, average)
            known['averages'] = average
            known['scores'] = average if self.ema else new
            known['last_visit'] = times
            self._records[of] = known
        return before

    def by_index(self, pass_length: int) -> np.ndarray:
        """Score of each index of a pass, float32 of shape (pass_length,)."""
        if self._repeats:
            return self.scores[self.images[:pass_length]]
        return self.scores.copy()

    def read_sums(self) -> Tuple[np.ndarray, np.ndarray]:
        """The sums since they were read, and begin them anew."""
        sums = self.sums, self.pairs
        self.forget_sums()
        return sums

    def state_dict(self) -> Dict[str, Any]:
        """All tables as tensors and plain Python values."""
        arrays = {
            name: torch.from_numpy(getattr(self, name).copy())
            for name in (*_FIELDS, 'pruned', 'sums', 'pairs')
        }
        return dict(
            arrays,
            ema=self.ema,
            score=self.score,
            non_finite=self.non_finite,
            knows_scores=self.knows_scores)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> List[str]:
        """Go on from :meth:`state_dict`, and tell what has changed since then,
        for the log."""
        for name in (*_FIELDS, 'pruned'):
            getattr(self, name)[:] = state_dict[name].numpy()
        self.sums = state_dict['sums'].numpy().copy()
        self.pairs = state_dict['pairs'].numpy().copy()
        self.non_finite = state_dict['non_finite']
        self.knows_scores = state_dict['knows_scores']
        if state_dict['ema'] == self.ema:
            return []
        if self.ema:
            # From here on they are one.
            self.averages[:] = self.scores
        return [f'`ema` is {self.ema} instead of {state_dict["ema"]}']


def _draw_telling(size: int) -> Optional[np.ndarray]:
    """Whether V is told from each image, bool of shape (size,), which a data
    set always has the same. None is all."""
    if size <= _TELLING:
        return None
    telling = np.zeros(size, bool)
    telling[np.random.default_rng(0).permutation(size)[:_TELLING]] = True
    return telling


def rounds(images: np.ndarray, seen: np.ndarray) -> Iterator[Any]:
    """Divide visits into rounds: an image comes at most once in each, and its
    visits stay in their order.

    Args:
        images (np.ndarray): Image of each visit, integer of shape (V,).
        seen (np.ndarray): False for each image of the data set, bool. This is
            written to, and left as it was.

    Yields:
        np.ndarray or slice: Numbers of the visits of a round, increasing.
    """
    seen[images] = True
    once = np.count_nonzero(seen) == len(images)
    seen[images] = False
    if once:
        # Mostly so: a plan has an image once.
        yield slice(None)
        return
    rest = np.arange(len(images))
    places = np.empty(len(seen), np.int32)
    while len(rest):
        # Of several values for one entry numpy writes the last.
        places[images[rest[::-1]]] = rest[::-1]
        is_first = places[images[rest]] == rest
        yield rest[is_first]
        rest = rest[~is_first]


def ratio_of(sums: np.ndarray) -> Optional[worth.VarianceRatio]:
    """V of :attr:`Tables.sums`, None where V can't be told."""
    ratio = worth.from_sums(sums)
    return ratio if math.isfinite(ratio.value) else None


def reliability_of(pairs: np.ndarray) -> Optional[float]:
    """Correlation of the score that an image had with its next one, of
    :attr:`Tables.pairs`. None where the correlation can't be told."""
    correlation = worth.correlation(pairs)
    return correlation if math.isfinite(correlation) else None


def norms_of(sums: np.ndarray) -> TierNorms:
    """Mean squared norm of each tier, of :attr:`Tables.sums`."""
    return TierNorms(*worth.mean_squares(sums))
