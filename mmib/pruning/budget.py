# Copyright (c) mmib contributors. All rights reserved.
"""Policies that prune as much as a budget of iterations needs."""
import math
from dataclasses import replace
from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np

from ..errors import RuntimeRefusal, ValueRefusal
from .plan import EpochPlan, divide, draw, prune
from .policies import check_quantiles
from .policy import Policy, Progress, check_argument, is_count

DEFAULT_RATIO = 0.6
"""float: Share of the iterations of the baseline that a training runs."""


class ToBudget(Policy):
    """Cover the passes of the baseline in ``ratio`` of its iterations.

    Each plan is drawn for what is still to cover until annealing, so that a
    plan makes up for those before it. A training by iterations has its
    schedule shortened already: the baseline runs ``1 / ratio`` times as many
    iterations. A training by epochs has the schedule of the baseline.

    Args:
        full_iters (int, optional): Iterations of the baseline, by which older
            configs tell the ratio. Defaults to None.
        ratio (float, optional): Iterations of the training over those of the
            baseline, in (0, 1]. If None, 0.6. Defaults to None.
    """

    _least_share = 0.
    """float: Least kept share, however small the budget is."""

    def __init__(self,
                 full_iters: Optional[int] = None,
                 ratio: Optional[float] = None) -> None:
        check_argument(
            'ratio', ratio, ratio is None or 0 < ratio <= 1,
            'is the share of the iterations of the baseline to run and must '
            'be in (0, 1]')
        check_argument('full_iters', full_iters, full_iters is None
                       or is_count(full_iters), 'must be a positive integer')
        if None not in (full_iters, ratio):
            raise ValueRefusal(
                f'`full_iters = {full_iters}` and `ratio = {ratio}` both tell '
                'how much to prune: remove `full_iters` from the `policy` of '
                'InfoBatchHook in `custom_hooks`.')
        self.full_iters = full_iters
        self.ratio = ratio
        self._progress: Optional[Progress] = None

    @property
    def budget(self) -> float:  # type: ignore[override]
        return DEFAULT_RATIO if self.ratio is None else self.ratio

    def note_on_schedule(self, max_iters: int) -> str:
        if self.full_iters is None:
            return ''
        return (f'`full_iters = {self.full_iters}` is how older configs say '
                f'`ratio = {max_iters / self.full_iters:.4g}`, for '
                f'{max_iters} iterations: write `ratio` into the `policy` of '
                'InfoBatchHook in `custom_hooks`, which fits a shorter trial '
                'run too.')

    def begin_plan(self, progress: Progress) -> None:
        self._progress = progress

    def expected_share(self, progress: Progress) -> float:
        return max(self._needed_share(progress), self._least_share)

    @staticmethod
    def _needed_share(progress: Progress) -> float:
        if progress.full_slots <= progress.slots_left:
            return 1.
        return max(progress.slots_left / progress.full_slots, 0.)

    def _kept_share(self) -> float:
        if self._progress is None:
            raise RuntimeRefusal(
                f'{type(self).__name__} must know how far the training is: '
                'call its `begin_plan` before each plan, as InfoBatchHook '
                'does.')
        return self._needed_share(self._progress)

    @staticmethod
    def _num_kept(share: float, size: int) -> int:
        # Rounds down, or later plans had to prune harder than this one.
        return math.floor(share * size + 1e-6)

    def _note(self, share: float, plan: EpochPlan, size: int,
              of: str) -> EpochPlan:
        """The plan, with a note that it keeps more than the budget needs."""
        return replace(
            plan,
            note=f'the budget needs a kept share of {share:.3f}, but at most '
            f'{100 * (1 - self._least_share):g} % of {of} can be pruned: kept '
            f'share {len(plan) / size:.3f}. Raise `ratio` in the `policy` '
            'of InfoBatchHook in `custom_hooks`.')


class Budget(ToBudget):
    """Prune two tiers as hard as the budget needs, whatever the losses are.

    :class:`QuantileTiers` has the same tiers by default. The lower tier is
    pruned 1.5 times as hard as the upper one, as 0.75 to 0.5, until its ratio
    reaches ``max_ratio``. Where two tiers of these quantiles don't suffice, as
    with many equal scores, the upper one is extended.

    Args:
        full_iters (int, optional): See :class:`ToBudget`. Defaults to None.
        quantiles (Sequence[float]): Upper ends of the two tiers as quantiles
            of all scores, increasing, in (0, 1]. Defaults to (0.2, 0.85).
        max_ratio (float): Largest share that is pruned of a tier, in (0, 1).
            No weight exceeds ``1 / (1 - max_ratio)``. Defaults to 0.75.
        ratio (float, optional): See :class:`ToBudget`. Defaults to None.
    """

    def __init__(self,
                 full_iters: Optional[int] = None,
                 quantiles: Sequence[float] = (0.2, 0.85),
                 max_ratio: float = 0.75,
                 ratio: Optional[float] = None) -> None:
        super().__init__(full_iters, ratio)
        check_argument('quantiles', tuple(quantiles),
                       len(quantiles) == 2,
                       'needs one entry for each of two tiers')
        check_quantiles(quantiles)
        check_argument(
            'max_ratio', max_ratio, 0 < max_ratio < 1,
            'is the largest share of images to prune of a tier and must be in '
            '(0, 1)')
        self.quantiles = tuple(quantiles)
        self.max_ratio = max_ratio
        self._least_share = 1 - max_ratio

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        share = self._kept_share()
        num_pruned = len(scores) - self._num_kept(share, len(scores))
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
            plan = self._note(share, plan, len(scores),
                              'the images below the highest score')
        return plan

    @staticmethod
    def _sizes(scores: np.ndarray,
               thresholds: Sequence[float]) -> Tuple[int, int]:
        below = [int(np.count_nonzero(scores < float(t))) for t in thresholds]
        return below[0], below[1] - below[0]

    def _most(self, size: int) -> int:
        """The most images that can be pruned of a tier."""
        return int(self.max_ratio * size)

    def _counts(self, sizes: Tuple[int, int],
                num_pruned: int) -> Tuple[int, int]:
        """How many images to prune of each tier.

        ``low * min(max_ratio, 1.5 * t) + high * t`` images are pruned, with
        the ratio ``t`` of the upper tier. This is solved for ``t``.
        """
        low, high = sizes
        num_low = round(1.5 * low * num_pruned / max(1.5 * low + high, 1))
        # Each tier takes what the other one can't.
        num_low = min(num_low, self._most(low))
        num_high = min(num_pruned - num_low, self._most(high))
        return min(num_pruned - num_high, self._most(low)), num_high

    def _raise_threshold(self, scores: np.ndarray, low: int,
                         num_pruned: int) -> float:
        """The lowest upper threshold that meets the budget, or the highest
        score: images at the highest score all stay."""
        rest = num_pruned - self._most(low)
        high = math.ceil(rest / self.max_ratio)
        high += self._most(high) < rest  # By the rounding of the division.
        # All images up to this rank must lie below the threshold.
        rank = min(low + high, len(scores)) - 1
        score = np.partition(scores, rank)[rank]
        above = scores[scores > score]
        return float(above.min() if len(above) else score)


class Neyman(ToBudget):
    """Prune most where the gradients were found to be small.

    The images are divided into strata of similar score. The kept share of a
    stratum is in proportion to the root of its mean squared gradient norm
    (Neyman's allocation), which makes the noise of the gradient as small as
    these strata allow, see :mod:`mmib.worth`. The norms are those of the
    visits that followed the last plans. Pruning is random until norms are
    known, and where scores tell nothing of the norms.

    Args:
        full_iters (int, optional): See :class:`ToBudget`. Defaults to None.
        num_strata (int): Strata, of equal size where scores differ. Few
            images have fewer strata: each has ``1 / min_keep`` images or
            more. Defaults to 10.
        min_keep (float): Least share that is kept of a stratum, in (0, 1). No
            weight exceeds ``1 / min_keep``, but for the rounding of small
            strata. Defaults to 0.1.
        ratio (float, optional): See :class:`ToBudget`. Defaults to None.
    """

    _MEMORY = 5  # Plans that the moving averages remember.

    def __init__(self,
                 full_iters: Optional[int] = None,
                 num_strata: int = 10,
                 min_keep: float = 0.1,
                 ratio: Optional[float] = None) -> None:
        super().__init__(full_iters, ratio)
        check_argument('num_strata', num_strata, is_count(num_strata),
                       'must be a positive integer')
        check_argument(
            'min_keep', min_keep, 0 < min_keep < 1,
            'is the least share of images to keep of a stratum and must be in '
            '(0, 1)')
        self.num_strata = num_strata
        self.min_keep = self._least_share = min_keep
        self._begin_anew(num_strata)

    def _begin_anew(self, num_strata: int) -> None:
        # Replaced and never written to, as checkpoints share their memory.
        self._means = np.ones(num_strata)
        self._variances = np.zeros(num_strata)
        self._num_plans = np.zeros(num_strata, np.int64)

    def begin_plan(self, progress: Progress) -> None:
        super().begin_plan(progress)
        if progress.norms is not None:
            self._learn(*progress.norms)

    def _learn(self, mean_squares: np.ndarray, errors: np.ndarray) -> None:
        """Take norms that followed the last plan into the moving averages."""
        num_strata = len(self._means)
        # A checkpoint may be of plans with another number of strata.
        if (len(errors) < num_strata
                or np.isfinite(mean_squares[num_strata:]).any()):
            return
        mean_squares, errors = mean_squares[:num_strata], errors[:num_strata]
        # One visit alone has no error, but for rounding.
        seen = errors > 1e-6 * mean_squares
        if not seen.any():
            return
        # Relative to all strata, as gradients shrink while a network trains.
        means = np.where(seen, mean_squares / mean_squares[seen].mean(), 1)
        # Few visits tell their own error badly: one relative error for all.
        relative = np.mean((errors[seen] / mean_squares[seen])**2)
        # The mean of the first plans, then a moving average.
        share = seen / np.minimum(self._num_plans + 1, self._MEMORY)
        self._means = self._means + share * (means - self._means)
        self._variances = ((1 - share)**2 * self._variances +
                           share**2 * relative * means**2)
        self._num_plans = self._num_plans + seen

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        share = self._kept_share()
        num_kept = self._num_kept(share, len(scores))
        # `min_keep` of a stratum is an image or more.
        num_strata = min(
            max(int(self.min_keep * len(scores)), 1), self.num_strata)
        if num_strata != len(self._means):
            self._begin_anew(num_strata)
        # Sorting is faster than np.quantile.
        edges = np.arange(1, num_strata) * len(scores) // num_strata
        stratum_of_image = divide(scores, np.sort(scores)[edges].tolist())
        sizes = np.bincount(stratum_of_image, minlength=num_strata)
        kept = allocate(sizes, self._roots(), num_kept, self.min_keep)
        # Half an image more, as `draw` rounds down.
        ratios = (sizes - kept + 0.5) / np.maximum(sizes, 1)
        plan = draw(stratum_of_image, ratios, rng, threshold=0.)
        if len(plan) > max(num_kept, 1):
            plan = self._note(share, plan, len(scores), 'the images')
        return plan

    def _roots(self) -> np.ndarray:
        """Root of the mean squared norm of each stratum.

        Means of few visits differ by chance. As far as this explains their
        spread they are drawn to 1, their own mean (empirical Bayes).
        """
        spread = max(self._means.var() - self._variances.mean(), 0.)
        trust = spread / np.maximum(spread + self._variances, 1e-12)
        return np.sqrt(np.maximum(1 + trust * (self._means - 1), 1e-12))

    def state_dict(self) -> Dict[str, Any]:
        return dict(
            means=self._means,
            variances=self._variances,
            num_plans=self._num_plans)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        # The next plan begins anew if it has another number of strata.
        self._means = state_dict['means']
        self._variances = state_dict['variances']
        self._num_plans = state_dict['num_plans']


def allocate(sizes: np.ndarray, roots: np.ndarray, num_kept: int,
             min_keep: float) -> np.ndarray:
    """How many images of each stratum to keep for the least noise.

    The kept share of a stratum is in proportion to its entry of ``roots``, in
    ``[min_keep, 1]``, and at least one image. The sum is ``num_kept``, or more
    where these lower limits need it.

    Args:
        sizes (np.ndarray): Images of each stratum, integer of shape (S,).
        roots (np.ndarray): Root of the mean squared norm of each stratum,
            positive, of shape (S,).
        num_kept (int): Images to keep in all.
        min_keep (float): Least share to keep of a stratum, in (0, 1).

    Returns:
        np.ndarray: Integers of shape (S,).
    """
    least = np.maximum(min_keep, 1 / np.maximum(sizes, 1))

    def shares(scales: np.ndarray) -> np.ndarray:
        return np.clip(np.multiply.outer(scales, roots), least, 1)

    # Between these scales the sum grows linearly.
    scales = np.sort(np.concatenate([least / roots, 1 / roots]))
    scale = np.interp(num_kept, shares(scales) @ sizes, scales)
    exact = shares(scale) * sizes
    kept = np.floor(exact + 1e-6).astype(np.int64)
    # The largest remainders round up.
    least_in_all = math.ceil(min_keep * sizes.sum() - 1e-6)
    missing = max(max(num_kept, least_in_all) - kept.sum(), 0)
    kept[np.argsort(kept - exact, kind='stable')[:missing]] += 1
    return np.minimum(kept, sizes)
