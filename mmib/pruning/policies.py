# Copyright (c) mmib contributors. All rights reserved.
"""The policies to train with."""
import math
from dataclasses import replace
from typing import Optional, Sequence, Tuple

import numpy as np

from .plan import EpochPlan, prune
from .policy import CHANGE_POLICY, Policy, Progress, check_ratio, is_count


def _check_quantiles(quantiles: Sequence[float]) -> None:
    edges = (0, *quantiles)
    if (not all(low < high for low, high in zip(edges, quantiles))
            or quantiles[-1] > 1):
        raise ValueError(
            '`quantiles` must increase and lie in (0, 1], but got '
            f'{tuple(quantiles)}: {CHANGE_POLICY}')


class MeanThreshold(Policy):
    """Prune a share of the images that score below the mean.

    The policy of InfoBatch (Qin et al., ICLR 2024, Eq. 3).

    Args:
        ratio (float): Share of the images below the mean that is pruned, in
            [0, 1). The paper keeps the accuracy up to 0.5. Defaults to 0.5.
        rescale (bool): Whether the weights of the kept images make up for
            the pruned ones. If not, every weight is 1, which is biased: the
            paper's ablation. Defaults to True.

    Raises:
        ValueError: If ``ratio`` is outside [0, 1).
    """

    def __init__(self, ratio: float = 0.5, rescale: bool = True) -> None:
        check_ratio(ratio, 'ratio')
        self.ratio = ratio
        self.rescale = rescale

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        # The mean of equal scores must be that score, or ties were pruned:
        # sums of float32 are exact in float64 up to 2^29 images.
        mean = scores.mean(dtype=np.float64)
        return prune(scores, [mean], [self.ratio], rng, self.rescale)


class QuantileTiers(Policy):
    """Prune more of the lowest scores than of those above them.

    The policy of InfoBatch's semantic segmentation (Qin et al., ICLR 2024,
    Sec. 4.4): the lowest 20 % are pruned harder than the rest below the
    threshold. With the defaults 52.5 % of the images are kept.

    Args:
        quantiles (Sequence[float]): Upper end of each tier as a quantile of
            all scores, increasing, in (0, 1]. Defaults to (0.2, 0.85).
        ratios (Sequence[float]): Share that is pruned of each tier, in
            [0, 1). Defaults to (0.75, 0.5).
        rescale (bool): Whether the weights of the kept images make up for
            the pruned ones. If not, every weight is 1, which is biased: the
            paper's ablation. Defaults to True.

    Raises:
        ValueError: If the quantiles don't increase or lie outside (0, 1], if
            a ratio is outside [0, 1), or if the counts differ.
    """

    def __init__(self,
                 quantiles: Sequence[float] = (0.2, 0.85),
                 ratios: Sequence[float] = (0.75, 0.5),
                 rescale: bool = True) -> None:
        if len(quantiles) == 0 or len(quantiles) != len(ratios):
            raise ValueError(
                '`quantiles` and `ratios` need one entry for each tier, but '
                f'got {len(quantiles)} and {len(ratios)}: {CHANGE_POLICY}')
        _check_quantiles(quantiles)
        for ratio in ratios:
            check_ratio(ratio, 'ratios')
        self.quantiles = tuple(quantiles)
        self.ratios = tuple(ratios)
        self.rescale = rescale

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        thresholds = np.quantile(scores, self.quantiles)
        return prune(scores, thresholds, self.ratios, rng, self.rescale)


class Budget(Policy):
    """Prune as much as the schedule needs.

    The training covers the passes of ``full_iters`` iterations of the
    baseline, whatever the losses look like. Each plan is drawn for what
    is still to cover until annealing, so that it corrects those before it.

    The tiers are those of :class:`QuantileTiers`, and so is the shape of the
    ratios: the lower tier is pruned 1.5 times as hard as the upper one, as
    0.75 to 0.5, until it reaches ``max_ratio``. Where tiers of these
    quantiles don't suffice, as with many equal scores, the upper one is
    extended.

    Args:
        full_iters (int): Iterations of the baseline whose passes are to be
            covered, so more than ``max_iters``.
        quantiles (Sequence[float]): Upper ends of the two tiers as quantiles
            of all scores, increasing, in (0, 1]. Defaults to (0.2, 0.85).
        max_ratio (float): Largest share that is pruned of a tier, in (0, 1).
            No weight exceeds ``1 / (1 - max_ratio)``. Defaults to
            0.75.

    Raises:
        ValueError: If ``full_iters`` isn't a positive integer, if there
            aren't two quantiles that increase in (0, 1], or if ``max_ratio``
            is outside (0, 1).
    """

    def __init__(self,
                 full_iters: int,
                 quantiles: Sequence[float] = (0.2, 0.85),
                 max_ratio: float = 0.75) -> None:
        if not is_count(full_iters):
            raise ValueError(
                '`full_iters` is the number of iterations of the baseline '
                'whose passes are to be covered and must be a '
                f'positive integer, but got {full_iters!r}: {CHANGE_POLICY}')
        if len(quantiles) != 2:
            raise ValueError(
                '`quantiles` needs one entry for each of two tiers, but got '
                f'{len(quantiles)}: {CHANGE_POLICY}')
        _check_quantiles(quantiles)
        if not 0 < max_ratio < 1:
            raise ValueError(
                '`max_ratio` is the largest share of images to prune of '
                f'a tier and must be in (0, 1), but got {max_ratio}: '
                f'{CHANGE_POLICY}')
        self.full_iters = full_iters
        self.quantiles = tuple(quantiles)
        self.max_ratio = max_ratio
        self._progress: Optional[Progress] = None

    def note_on_schedule(self, max_iters: int) -> str:
        if max_iters < self.full_iters:
            return ''
        return (f'`full_iters = {self.full_iters}` is no more than the '
                f'{max_iters} iterations of the training, so Budget prunes '
                'nothing: it is the length of the baseline. Raise it in the '
                '`policy` of InfoBatchHook in `custom_hooks`, or lower '
                '`train_cfg.max_iters`.')

    def begin_plan(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        share = self._kept_share()
        # Never more than the share is kept, or later plans had to prune harder
        # than this one. The share of a whole number may be a little less.
        num_pruned = len(scores) - math.floor(share * len(scores) + 1e-6)
        thresholds = np.quantile(scores, self.quantiles)
        sizes = self._sizes(scores, thresholds)
        if sum(map(self._most, sizes)) < num_pruned:
            thresholds[1] = self._raise_threshold(scores, sizes[0], num_pruned)
            sizes = self._sizes(scores, thresholds)
        counts = self._counts(sizes, num_pruned)
        # Half an image more: `prune` rounds down, also the rounding of this.
        ratios = [(n + 0.5) / max(size, 1) for n, size in zip(counts, sizes)]
        plan = prune(scores, thresholds, ratios, rng)
        if sum(counts) < num_pruned:
            plan = replace(
                plan,
                note=f'the budget needs a kept share of {share:.3f}, but at '
                f'most {100 * self.max_ratio:g} % of the images below the '
                'highest score can be pruned: kept share '
                f'{len(plan) / len(scores):.3f}. Run more iterations or '
                'lower `full_iters` in the `policy` of InfoBatchHook in '
                '`custom_hooks`.')
        return plan

    def _kept_share(self) -> float:
        """The share that covers the rest of the budget until annealing, in
        as many slots as if nothing were pruned."""
        if self._progress is None:
            raise RuntimeError(
                'Budget must know how far the training is: call its '
                '`begin_plan` before each plan, as InfoBatchHook does.')
        to_cover = ((self.full_iters - self._progress.full_equivalent) *
                    self._progress.slots_per_iter -
                    self._progress.annealing_slots)
        slots_left = self._progress.slots_left
        # This is right for the last plan too, of which annealing leaves a
        # part only: it is as large as if the rest of it still came.
        return 1. if to_cover <= slots_left else slots_left / to_cover

    @staticmethod
    def _sizes(scores: np.ndarray,
               thresholds: Sequence[float]) -> Tuple[int, int]:
        # As `prune` compares.
        below = [np.count_nonzero(scores < float(t)) for t in thresholds]
        return below[0], below[1] - below[0]

    def _most(self, size: int) -> int:
        """The most images that can be pruned of a tier."""
        return int(self.max_ratio * size)

    def _counts(self, sizes: Tuple[int, int],
                num_pruned: int) -> Tuple[int, int]:
        """How many images to prune of each tier.

        With the ratio ``t`` of the upper tier, ``low * min(max_ratio, 1.5 *
        t) + high * t`` images are pruned. This is solved for ``t``, first
        as if the lower tier weren't at its maximum.
        """
        low, high = sizes
        num_low = round(1.5 * low * num_pruned / max(1.5 * low + high, 1))
        # The upper tier takes what the lower one can't, and then the other
        # way round.
        num_low = min(num_low, self._most(low))
        num_high = min(num_pruned - num_low, self._most(high))
        return min(num_pruned - num_high, self._most(low)), num_high

    def _raise_threshold(self, scores: np.ndarray, low: int,
                         num_pruned: int) -> float:
        """The lowest upper threshold from which on the budget is met.

        At most the highest score: images that share it all stay.
        """
        rest = num_pruned - self._most(low)
        high = math.ceil(rest / self.max_ratio)
        high += self._most(high) < rest  # By the rounding of the division.
        # All images up to this rank must lie below the threshold.
        rank = min(low + high, len(scores)) - 1
        score = np.partition(scores, rank)[rank]
        above = scores[scores > score]
        return float(above.min() if len(above) else score)
