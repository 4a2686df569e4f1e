# Copyright (c) mmib contributors. All rights reserved.
"""The default policy: prunes most where gradients were found to be small."""
import math
from dataclasses import replace
from typing import Any, Dict, Optional

import numpy as np

from ..errors import Refusal
from .plan import EpochPlan, divide, prune_tiers
from .policy import Policy, Progress, check_argument, is_count


class Neyman(Policy):
    """Prune most where the gradients were found to be small.

    The run makes as many passes as the baseline, in ``ratio`` times the steps.
    Each plan spreads the rest of this budget evenly over the remaining epochs,
    so later plans make up for earlier plans. A run by epochs has as many
    epochs as the baseline. Any other run is short already: the baseline has
    ``1 / ratio`` times as many steps.

    The images are divided into tiers of similar score, the strata of survey
    sampling. The kept share of a tier is proportional to the root of the mean
    squared gradient norm of its images (Neyman's allocation). This makes the
    noise of the gradient as small as these tiers allow, see :mod:`mmib.worth`.
    The norms come from the visits that followed the last plans. Pruning is
    random until norms are known, and where scores don't predict norms.

    Args:
        ratio (float): Steps of the run over steps of the baseline,
            in (0, 1]. Defaults to 0.6.
        num_tiers (int): Number of tiers, of equal size where scores differ. A
            small dataset has fewer tiers: each tier has at least
            ``1 / min_keep`` images. Defaults to 10.
        min_keep (float): Smallest share to keep of a tier, in (0, 1). No
            weight exceeds ``1 / min_keep``, except where small tiers are
            rounded. Defaults to 0.1.
    """

    _MEMORY = 5  # Number of plans in the moving averages.

    def __init__(self,
                 ratio: float = Policy.default_ratio,
                 num_tiers: int = 10,
                 min_keep: float = 0.1) -> None:
        check_argument('num_tiers', num_tiers, is_count(num_tiers),
                       'must be a positive integer')
        check_argument(
            'min_keep', min_keep, 0 < min_keep < 1,
            'is the least share of images to keep of a tier and must be in '
            '(0, 1)')
        check_argument(
            'ratio', ratio, 0 < ratio <= 1,
            'is the share of the steps of the baseline to run and must '
            'be in (0, 1]')
        self.num_tiers = num_tiers
        self.min_keep = min_keep
        self.ratio = self.default_ratio = ratio
        self._progress: Optional[Progress] = None
        self._begin_anew(num_tiers)

    def _begin_anew(self, num_tiers: int) -> None:
        # Replaced and never written to: `state_dict` returns these arrays.
        self._means = np.ones(num_tiers)
        self._variances = np.zeros(num_tiers)
        self._num_plans = np.zeros(num_tiers, np.int64)

    def begin_plan(self, progress: Progress) -> None:
        self._progress = progress
        if progress.norms is not None:
            self._learn(*progress.norms)

    def expected_share(self, progress: Progress) -> float:
        return max(progress.kept_share(self.ratio), self.min_keep)

    def _learn(self, mean_squares: np.ndarray, errors: np.ndarray) -> None:
        """Add the norms since scores were last read to the moving averages."""
        num_tiers = len(self._means)
        # A checkpoint may be of plans with another number of tiers.
        if (len(errors) < num_tiers
                or np.isfinite(mean_squares[num_tiers:]).any()):
            return
        mean_squares, errors = mean_squares[:num_tiers], errors[:num_tiers]
        # A tier with a single visit has the error 0, except for rounding, and
        # counts as not seen.
        seen = errors > 1e-6 * mean_squares
        if not seen.any():
            return
        # Relative to all tiers, because gradients shrink while a network
        # trains.
        means = np.where(seen, mean_squares / mean_squares[seen].mean(), 1)
        # A few visits are too few to estimate their own error, so all tiers
        # share one relative error.
        relative = np.mean((errors[seen] / mean_squares[seen])**2)
        # The mean over the first plans, and then a moving average.
        share = seen / np.minimum(self._num_plans + 1, self._MEMORY)
        self._means = self._means + share * (means - self._means)
        self._variances = ((1 - share)**2 * self._variances +
                           share**2 * relative * means**2)
        self._num_plans = self._num_plans + seen

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        if self._progress is None:
            raise Refusal('Neyman must know how far the run is: call '
                          '`begin_plan` of the policy before each plan.')
        share = self._progress.kept_share(self.ratio)
        # Round down, so that the budget is never exceeded.
        num_kept = math.floor(share * len(scores) + 1e-6)
        # `min_keep` of a tier is at least one image.
        num_tiers = min(
            max(int(self.min_keep * len(scores)), 1), self.num_tiers)
        if num_tiers != len(self._means):
            self._begin_anew(num_tiers)
        # Sorting is faster than np.quantile.
        edges = np.arange(1, num_tiers) * len(scores) // num_tiers
        uppers = np.sort(scores)[edges].tolist()
        tier_of_image = divide(scores, uppers)
        sizes = np.bincount(tier_of_image, minlength=num_tiers)
        kept = allocate(sizes, self._roots(), num_kept, self.min_keep)
        plan = prune_tiers(tier_of_image, sizes - kept, rng, uppers)
        if share < self.min_keep and len(plan) > max(num_kept, 1):
            plan = replace(
                plan,
                note=f'the budget needs a kept share of {share:.3f}, but '
                f'`min_keep={self.min_keep:g}` keeps {len(plan)} of '
                f'{len(scores)} images: raise `ratio` of the policy, or lower '
                '`min_keep`.')
        return plan

    def _roots(self) -> np.ndarray:
        """Return the root of the mean squared norm of each tier.

        Means over few visits differ by chance. The more of their spread is
        explained by chance, the further the means are shrunk towards 1, their
        common mean (empirical Bayes).
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
        # If the next plan has another number of tiers, it begins anew.
        self._means = state_dict['means']
        self._variances = state_dict['variances']
        self._num_plans = state_dict['num_plans']


def allocate(sizes: np.ndarray, roots: np.ndarray, num_kept: int,
             min_keep: float) -> np.ndarray:
    """Return how many images of each tier to keep for the least noise.

    The kept share of a tier is proportional to its entry of ``roots``, within
    ``[min_keep, 1]``, and at least one image is kept. The sum is ``num_kept``,
    or more where these lower limits require more.

    Args:
        sizes (np.ndarray): Number of images of each tier, integer of shape
            (T,).
        roots (np.ndarray): Root of the mean squared norm of each tier,
            positive, of shape (T,).
        num_kept (int): Number of images to keep in total.
        min_keep (float): Smallest share to keep of a tier, in (0, 1).

    Returns:
        np.ndarray: Integers of shape (T,).
    """
    least = np.maximum(min_keep, 1 / np.maximum(sizes, 1))

    def shares(scales: np.ndarray) -> np.ndarray:
        return np.clip(np.multiply.outer(scales, roots), least, 1)

    # The number of kept images is linear between these scales.
    scales = np.sort(np.concatenate([least / roots, 1 / roots]))
    scale = np.interp(num_kept, shares(scales) @ sizes, scales)
    exact = shares(scale) * sizes
    kept = np.floor(exact + 1e-6).astype(np.int64)
    # The largest remainders are rounded up.
    least_in_all = math.ceil(min_keep * sizes.sum() - 1e-6)
    missing = max(max(num_kept, least_in_all) - kept.sum(), 0)
    kept[np.argsort(kept - exact, kind='stable')[:missing]] += 1
    return np.minimum(kept, sizes)
