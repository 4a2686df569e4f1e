# Copyright (c) mmib contributors. All rights reserved.
"""What one virtual epoch trains on: pure functions of numpy arrays."""
from dataclasses import dataclass
from typing import NamedTuple, Sequence, Tuple

import numpy as np


class Tier(NamedTuple):
    """A band of scores with one pruning ratio.

    Args:
        size (int): Images whose score lies in the band.
        kept (int): Those of them in the plan.
    """

    size: int
    kept: int


@dataclass(frozen=True)
class EpochPlan:
    """The ordered slots of one virtual epoch.

    Args:
        indices (np.ndarray): Data set index of each slot, integer of shape
            (K,).
        weights (np.ndarray): Loss weight of each slot, float32 of shape (K,).
        threshold (float): Score from which on every image is kept, or up to
            which, by a policy that prunes high scores. Defaults to 0, where
            no score decides.
        tiers (tuple[Tier]): Tiers in increasing order of score; one of all
            images where no score decides. Defaults to ().
        note (str): What the user should know about this plan. Defaults to
            '', nothing.
    """

    indices: np.ndarray
    weights: np.ndarray
    threshold: float = 0.
    tiers: Tuple[Tier, ...] = ()
    note: str = ''

    @classmethod
    def full(cls, indices: np.ndarray) -> 'EpochPlan':
        """A plan that prunes nothing: every weight is 1."""
        size = len(indices)
        return cls(
            indices, np.ones(size, np.float32), tiers=(Tier(size, size), ))

    @property
    def is_full(self) -> bool:
        """bool: Whether it is known to prune nothing, with weight 1."""
        return (len(self.tiers) > 0
                and all(tier.kept == tier.size for tier in self.tiers)
                and bool((self.weights == 1).all()))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, slots: slice) -> 'EpochPlan':
        """The plan of some of the slots, as views."""
        return EpochPlan(self.indices[slots], self.weights[slots],
                         self.threshold, self.tiers, self.note)


def check_plan(plan: EpochPlan, pass_length: int) -> None:
    """Check that a plan can be trained on.

    Args:
        plan (EpochPlan): What a policy has drawn.
        pass_length (int): Length of the scores that it was given.

    Raises:
        TypeError: If it is no plan, or an array has another type.
        ValueError: If it is empty, or an array has another shape or values
            out of range.
    """
    if not isinstance(plan, EpochPlan):
        raise TypeError(f'it must return an EpochPlan, but got {plan!r}')
    indices, weights = plan.indices, plan.weights
    if not np.issubdtype(indices.dtype, np.integer):
        raise TypeError('`indices` must be integers, but are '
                        f'{indices.dtype}: np.flatnonzero gives those of a '
                        'mask')
    if weights.dtype != np.float32:
        raise TypeError(f'`weights` must be float32, but are {weights.dtype}')
    if indices.ndim != 1 or indices.shape != weights.shape:
        raise ValueError('`indices` and `weights` must have one entry for '
                         'each slot, but their shapes are '
                         f'{indices.shape} and {weights.shape}')
    if len(indices) == 0:
        raise ValueError('it pruned every image')
    if indices.min() < 0 or indices.max() >= pass_length:
        raise ValueError(f'`indices` must be in [0, {pass_length}), but reach '
                         f'from {indices.min()} to {indices.max()}')
    # One NaN makes the sum NaN, and one infinity at least infinite.
    if not np.isfinite(weights.sum()) or weights.min() < 0:
        raise ValueError('`weights` must be finite and not negative')


def prune(scores: np.ndarray,
          thresholds: Sequence[float],
          ratios: Sequence[float],
          rng: np.random.Generator,
          rescale: bool = True) -> EpochPlan:
    """Draw a plan that prunes images with a low score.

    Tier ``i`` holds the images with ``thresholds[i - 1] <= score <
    thresholds[i]``. Of its ``n`` images ``floor(ratios[i] * n)`` are pruned at
    random. Those that stay get the weight ``n / kept``: with it
    :math:`E[weight \\cdot kept] = 1` for each image, also where the count
    rounds, and no weight exceeds :math:`1 / (1 - r)` of InfoBatch's Eq. 5
    (Qin et al., ICLR 2024). Images at or above the last threshold all stay,
    with weight 1.

    Args:
        scores (np.ndarray): Score of each image, float32 of shape (N,).
        thresholds (Sequence[float]): Upper ends of the tiers, increasing.
        ratios (Sequence[float]): Share to prune of each tier, in [0, 1).
        rng (np.random.Generator): Source of every random choice.
        rescale (bool): Whether those that stay get this weight, or 1, which
            is biased. Defaults to True.

    Returns:
        EpochPlan: Slots in random order.

    Raises:
        ValueError: If a threshold isn't finite, as for scores with NaN.
    """
    if not np.isfinite(thresholds).all():
        raise ValueError(
            f'The scores give thresholds {list(thresholds)}: scores must be '
            'finite, of shape (N,) and N > 0.')
    # `not (score < threshold)` and not `score >= threshold`: what can't be
    # compared is never pruned. Python floats keep the comparison in float32.
    tier_of_image = np.zeros(len(scores), np.min_scalar_type(len(thresholds)))
    for threshold in thresholds:
        tier_of_image += ~(scores < float(threshold))

    kept, tiers = [], []
    for number, ratio in enumerate((*ratios, 0.)):
        members = np.flatnonzero(tier_of_image == number)
        size = len(members)
        num_pruned = int(ratio * size)
        if num_pruned:
            members = rng.choice(
                members, size - num_pruned, replace=False, shuffle=False)
        kept.append(members)
        tiers.append(Tier(size, len(members)))

    indices = np.concatenate(kept)
    rng.shuffle(indices)
    tier_weights = np.array(
        [t.size / max(t.kept, 1) if rescale else 1 for t in tiers], np.float32)
    return EpochPlan(indices, tier_weights[tier_of_image[indices]],
                     float(thresholds[-1]), tuple(tiers))
