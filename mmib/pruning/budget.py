# Copyright (c) mmib contributors. All rights reserved.
"""Two tiers that are pruned as much as a budget of iterations needs."""
import math
from typing import Sequence, Tuple

import numpy as np

from .plan import EpochPlan, divide, prune_tiers
from .policies import check_quantiles
from .policy import Policy, ToBudget, check_argument


class Budget(ToBudget):
    """Prune two tiers as hard as the budget needs, whatever the losses are.

    :class:`QuantileTiers` has the same tiers by default. The lower tier is
    pruned 1.5 times as hard as the upper one, as 0.75 to 0.5, until its ratio
    reaches ``max_ratio``. Where two tiers of these quantiles don't suffice, as
    with many equal scores, the upper one is extended.

    Args:
        quantiles (Sequence[float]): Upper ends of the two tiers as quantiles
            of all scores, increasing, in (0, 1]. Defaults to (0.2, 0.85).
        max_ratio (float): Largest share that is pruned of a tier, in (0, 1).
            No weight exceeds ``1 / (1 - max_ratio)``. Defaults to 0.75.
        ratio (float): See :class:`ToBudget`. Defaults to 0.6.
    """

    def __init__(self,
                 quantiles: Sequence[float] = (0.2, 0.85),
                 max_ratio: float = 0.75,
                 ratio: float = Policy.default_ratio) -> None:
        super().__init__(ratio)
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
        plan = prune_tiers(
            divide(scores, thresholds), (*counts, 0),
            rng,
            thresholds,
            threshold=float(thresholds[-1]))
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
