# Copyright (c) mmib contributors. All rights reserved.
"""Policies to compare with: controls of InfoBatch and other methods."""
from typing import Any, Dict

import numpy as np

from .plan import EpochPlan, Tier
from .policy import Policy, Progress, check_argument, check_ratio, is_count


class ScoreOnly(Policy):
    """Prune nothing: train like the baseline, and score the images."""

    prunes = False
    default_ratio = 1.

    def expected_share(self, progress: Progress) -> float:
        return 1.

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        return EpochPlan.full(np.arange(len(scores)))


class RandomPruning(Policy):
    """Prune a share of all images, whatever their score.

    This is the control of every policy: scores help only if a policy beats
    random pruning at the same cost. Kept images get the weight ``N / kept``,
    which is unbiased. Without weights this is RS2, repeated sampling of random
    subsets (Okanovic et al., ICLR 2024).

    Args:
        ratio (float): Share of the images that is pruned, in [0, 1).
            Defaults to 0.475, which keeps as many as ``QuantileTiers``.
    """

    def __init__(self, ratio: float = 0.475) -> None:
        check_ratio(ratio)
        self.ratio = ratio

    def expected_share(self, progress: Progress) -> float:
        return 1 - self.ratio

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        size = len(scores)
        kept = size - int(self.ratio * size)
        indices = rng.permutation(size)[:kept]
        if kept == size:
            return EpochPlan.full(indices)
        return EpochPlan(
            indices,
            np.full(kept, size / kept, np.float32),
            tiers=(Tier(size, kept, None, float(np.float32(size / kept))), ),
            is_shuffled=True)


class EpsilonGreedy(Policy):
    """Keep the images with the highest scores, and some others at random.

    Epsilon-greedy of Raju, Daruwalla and Lipasti, "Accelerating Deep Learning
    with Dynamic Data Pruning", 2021. Every weight is 1, which is biased
    towards images with a high score.

    Args:
        keep (float): Share of the images that is kept, in (0, 1]. Defaults to
            0.6.
        epsilon (float): Share of the kept images that is drawn at random from
            those without the highest scores, in [0, 1]. Defaults to 0.1.
        period (int): Number of plans from one selection to the next. The
            plans in between have the same images in a new order. Defaults to
            1.
    """

    rescale = False

    def __init__(self,
                 keep: float = 0.6,
                 epsilon: float = 0.1,
                 period: int = 1) -> None:
        check_argument('keep', keep, 0 < keep <= 1,
                       'is the share of images to keep and must be in (0, 1]')
        check_argument(
            'epsilon', epsilon, 0 <= epsilon <= 1,
            'is the share of the kept images that is drawn at random and must '
            'be in [0, 1]')
        check_argument(
            'period', period, is_count(period),
            'is the number of plans from one selection to the next and must '
            'be a positive integer')
        self.keep = keep
        self.epsilon = epsilon
        self.period = period
        self._num_plans = 0
        # Replaced and never written to: `state_dict` returns the array itself.
        self._selected = np.empty(0, np.int64)

    def expected_share(self, progress: Progress) -> float:
        return self.keep

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        if self._num_plans % self.period == 0:
            self._selected = self._select(scores, rng)
        self._num_plans += 1
        indices = rng.permutation(self._selected)
        if len(indices) == len(scores):
            return EpochPlan.full(indices)
        return EpochPlan(
            indices,
            np.ones(len(indices), np.float32),
            tiers=(Tier(len(scores), len(indices)), ),
            is_shuffled=True)

    def _select(self, scores: np.ndarray,
                rng: np.random.Generator) -> np.ndarray:
        """Return the indices of the images to keep."""
        # From the highest score to the lowest, ties at random.
        order = np.lexsort((rng.random(len(scores)), -scores))
        count = round(self.keep * len(scores))
        num_highest = count - round(self.epsilon * count)
        order[num_highest:] = rng.permutation(order[num_highest:])
        return order[:count]

    def state_dict(self) -> Dict[str, Any]:
        return dict(num_plans=self._num_plans, selected=self._selected)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._num_plans = state_dict['num_plans']
        self._selected = state_dict['selected']
