# Copyright (c) mmib contributors. All rights reserved.
"""Policies to compare with: controls of InfoBatch and other methods."""
from dataclasses import replace
from typing import Any, Dict, Optional

import numpy as np

from .plan import EpochPlan, Tier, prune
from .policies import QuantileTiers
from .policy import Policy, Progress, check_argument, check_ratio, is_count


class ScoreOnly(Policy):
    """Prune nothing: train as the baseline, and score the images."""

    prunes = False
    default_ratio = 1.

    def expected_share(self, progress: Progress) -> float:
        return 1.

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        return EpochPlan.full(np.arange(len(scores)))


class RandomPruning(Policy):
    """Prune a share of all images, whatever their score.

    The control of every policy: what a policy reaches beyond random pruning at
    the same cost, scores bring. Kept images get the weight ``N / kept``, which
    is unbiased. Without weights this is RS2, repeated sampling of random
    subsets (Okanovic et al., ICLR 2024).

    Args:
        ratio (float): Share of the images that is pruned, in [0, 1).
            Defaults to 0.475, which keeps as many as ``QuantileTiers``.
    """

    def __init__(self, ratio: float = 0.475) -> None:
        check_ratio(ratio, 'ratio')
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
            tiers=(Tier(size, kept), ),
            is_shuffled=True)


class AboveMean(Policy):
    """Prune a share of the images that score above the mean.

    ``MeanThreshold`` the other way round, as unbiased (an ablation of Qin et
    al., ICLR 2024). Images at the mean are never pruned.

    Args:
        ratio (float): Share of the images above the mean that is pruned, in
            [0, 1). Defaults to 0.5.
    """

    default_ratio = 0.8

    def __init__(self, ratio: float = 0.5) -> None:
        check_ratio(ratio, 'ratio')
        self.ratio = ratio

    def expected_share(self, progress: Progress) -> Optional[float]:
        return None if self.ratio else 1.

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        mean = scores.mean(dtype=np.float64)
        # What lies above the mean lies below it with the sign reversed.
        plan = prune(-scores, [-mean], [self.ratio], rng)
        if plan.is_full:
            return plan
        # Images at the mean belong to the lower tier.
        edge = float(np.nextafter(np.float32(mean), np.float32(np.inf)))
        above, below = plan.tiers
        return replace(
            plan,
            threshold=-plan.threshold,
            tiers=(below._replace(upper=edge), above._replace(upper=None)),
            tier_of_slot=len(plan.tiers) + 1 - plan.tier_of_slot)


class ShuffledTiers(QuantileTiers):
    """``QuantileTiers`` with the scores dealt to the images at random.

    The control of what scores tell: the weights are those of
    ``QuantileTiers``, and as unbiased, but nothing is known of the images.
    """

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        plan = super().__call__(rng.permutation(scores), rng)
        # No band of the scores that images have.
        return replace(
            plan,
            tiers=tuple(tier._replace(upper=None) for tier in plan.tiers))


class _Selection(Policy):
    """Keep the same selected images for some plans, then select again.

    Args:
        keep (float): Share of the images that is selected, in (0, 1].
        period (int): Plans from one selection to the next, at least 1.
    """

    rescale = False

    def __init__(self, keep: float, period: int) -> None:
        check_argument('keep', keep, 0 < keep <= 1,
                       'is the share of images to keep and must be in (0, 1]')
        check_argument(
            'period', period, is_count(period),
            'is the number of plans from one selection to the next and must '
            'be a positive integer')
        self.keep = keep
        self.period = period
        self._num_plans = 0
        # Replaced and never written to, as checkpoints share their memory.
        self._arrays: Dict[str, np.ndarray] = {}

    def expected_share(self, progress: Progress) -> float:
        return self.keep

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        values = self._values(scores)
        if self._num_plans % self.period == 0:
            self._arrays['selected'] = self._select(
                values, round(self.keep * len(values)), rng)
        self._num_plans += 1
        indices = rng.permutation(self._arrays['selected'])
        if len(indices) == len(scores):
            return EpochPlan.full(indices)
        return EpochPlan(
            indices,
            np.ones(len(indices), np.float32),
            tiers=(Tier(len(scores), len(indices)), ),
            is_shuffled=True)

    def _values(self, scores: np.ndarray) -> np.ndarray:
        """Value of each image: the highest values are selected."""
        return scores

    def _select(self, values: np.ndarray, count: int,
                rng: np.random.Generator) -> np.ndarray:
        """Indices of ``count`` images."""
        return descending(values, rng)[:count]

    def state_dict(self) -> Dict[str, Any]:
        return dict(num_plans=self._num_plans, arrays=dict(self._arrays))

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._num_plans = state_dict['num_plans']
        self._arrays = dict(state_dict['arrays'])


class EpsilonGreedy(_Selection):
    """Keep the images with the highest scores, and some others at random.

    Epsilon-greedy of Raju, Daruwalla and Lipasti, "Accelerating Deep Learning
    with Dynamic Data Pruning", 2021. Every weight is 1, which is biased
    towards images with a high score.

    Args:
        keep (float): Share of the images that is kept, in (0, 1]. Defaults to
            0.6.
        epsilon (float): Share of the kept images that is drawn at random from
            those without the highest scores, in [0, 1]. Defaults to 0.1.
        period (int): Plans from one selection to the next. Plans between have
            the same images in a new order. Defaults to 1.
    """

    def __init__(self,
                 keep: float = 0.6,
                 epsilon: float = 0.1,
                 period: int = 1) -> None:
        super().__init__(keep, period)
        check_argument(
            'epsilon', epsilon, 0 <= epsilon <= 1,
            'is the share of the kept images that is drawn at random and must '
            'be in [0, 1]')
        self.epsilon = epsilon

    def _select(self, values: np.ndarray, count: int,
                rng: np.random.Generator) -> np.ndarray:
        order = descending(values, rng)
        num_highest = count - round(self.epsilon * count)
        order[num_highest:] = rng.permutation(order[num_highest:])
        return order[:count]


class UpperConfidenceBound(_Selection):
    """Keep the images whose scores are high on average, or vary.

    UCB of Raju, Daruwalla and Lipasti, "Accelerating Deep Learning with
    Dynamic Data Pruning", 2021. The images with the highest ``mean + c *
    variance`` are kept. Both are moving averages over the visits that plans
    see: an image was visited if its score has changed since the last plan.
    Every weight is 1, which is biased towards images with a high score.

    Args:
        keep (float): Share of the images that is kept, in (0, 1]. Defaults to
            0.6.
        c (float): Weight of the variance, at least 0. Defaults to 1.
        alpha (float): Share of the new score in the averages, in (0, 1].
            Defaults to 0.2.
        period (int): As of :class:`EpsilonGreedy`. Defaults to 1.
    """

    def __init__(self,
                 keep: float = 0.6,
                 c: float = 1.,
                 alpha: float = 0.2,
                 period: int = 1) -> None:
        super().__init__(keep, period)
        check_argument('c', c, 0 <= c < np.inf,
                       'is the weight of the variance and must be at least 0')
        check_argument(
            'alpha', alpha, 0 < alpha <= 1,
            'is the share of the new score in the averages and must be in '
            '(0, 1]')
        self.c = c
        self.alpha = alpha

    def _values(self, scores: np.ndarray) -> np.ndarray:
        if not self._arrays:
            # What a score table has before the first visit.
            self._arrays = dict(
                scores=np.ones_like(scores),
                visited=np.zeros(len(scores), bool),
                mean=np.ones(len(scores)),
                variance=np.zeros(len(scores)))
        last = self._arrays
        visited = scores != last['scores']
        # The first visit sets the mean.
        rate = visited * np.where(last['visited'], self.alpha, 1.)
        change = scores - last['mean']
        mean = last['mean'] + rate * change
        variance = (1 - rate) * (last['variance'] + rate * change * change)
        self._arrays = dict(
            last,
            scores=scores.copy(),
            visited=last['visited'] | visited,
            mean=mean,
            variance=variance)
        return mean + self.c * variance


def descending(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Indices of values from the highest to the lowest, ties at random."""
    return np.lexsort((rng.random(len(values)), -values))
