# Copyright (c) mmib contributors. All rights reserved.
"""What one virtual epoch trains on: pure functions of numpy arrays."""
from dataclasses import dataclass, replace
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ..errors import Refusal


class Tier(NamedTuple):
    """A band of scores with one pruning ratio.

    Args:
        size (int): Images whose score lies in the band.
        kept (int): Those of them in the plan.
    """

    size: int
    kept: int


@dataclass(frozen=True)
class Slots:
    """Slots of one plan or of several, in the order of the stream.

    Args:
        indices (np.ndarray): Data set index of each slot, int64 of shape (K,).
        weights (np.ndarray): Loss weight of each slot, float32 of shape (K,).
        tiers (np.ndarray): Tier of each slot in its plan, from 1, int16 of
            shape (K,). 0 for slots of a full pass, of which nothing is
            learned.
        means (np.ndarray): Mean weight of the plan of each slot, float32 of
            shape (K,).
    """

    indices: np.ndarray
    weights: np.ndarray
    tiers: np.ndarray
    means: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, slots: Union[slice, np.ndarray]) -> 'Slots':
        """Some of the slots. A slice gives views."""
        return Slots(*(array[slots] for array in vars(self).values()))

    @staticmethod
    def join(parts: Sequence['Slots']) -> 'Slots':
        """Slots one after the other."""
        columns = zip(*(vars(part).values() for part in parts))
        return Slots(*map(np.concatenate, columns))


@dataclass(frozen=True)
class EpochPlan:
    """The ordered slots of one virtual epoch.

    Args:
        indices (np.ndarray): Data set index of each slot, integer of shape
            (K,).
        weights (np.ndarray): Loss weight of each slot, float32 of shape (K,).
        threshold (float): Score from which on every image is kept (for a
            policy that prunes high scores: up to which). Defaults to 0, for
            plans without a threshold.
        tiers (tuple[Tier]): Tiers in increasing order of score. Defaults to
            ().
        note (str): What the user should know about this plan. Defaults to ''.
        tier_of_slot (np.ndarray, optional): Tier of each slot, from 1,
            int16 of shape (K,). 0 for slots of which nothing is learned. If
            None, all slots are of tier 1.
        is_full (bool): Whether this is a pass of the baseline, whose images
            then come in the baseline's order. Defaults to False.
        is_shuffled (bool): Whether the order is random and means nothing, so
            that a sampler with ``shuffle=False`` sorts it. Defaults to False.
        whole_mean (float, optional): Mean weight of the plan that this one was
            cut from. Defaults to None.
    """

    indices: np.ndarray
    weights: np.ndarray
    threshold: float = 0.
    tiers: Tuple[Tier, ...] = ()
    note: str = ''
    tier_of_slot: np.ndarray = None  # type: ignore[assignment]
    is_full: bool = False
    is_shuffled: bool = False
    whole_mean: Optional[float] = None

    def __post_init__(self) -> None:
        if self.tier_of_slot is None:
            tiers = np.ones(np.shape(self.indices), np.int16)
            object.__setattr__(self, 'tier_of_slot', tiers)

    @classmethod
    def full(cls, indices: np.ndarray) -> 'EpochPlan':
        """A plan that prunes nothing: every weight is 1."""
        size = len(indices)
        return cls(
            indices,
            np.ones(size, np.float32),
            tiers=(Tier(size, size), ),
            tier_of_slot=np.zeros(size, np.int16),
            is_full=True)

    @property
    def mean_weight(self) -> float:
        """float: Mean of the weights; of a plan that was cut, that of the
        whole plan."""
        if self.whole_mean is not None:
            return self.whole_mean
        return float(self.weights.mean(dtype=np.float64))

    def normalized(self) -> 'EpochPlan':
        """The plan with weights over their mean."""
        return replace(self, weights=self.weights / self.weights.mean())

    def is_unbiased(self, pass_length: int) -> bool:
        """Whether the weights make up for the pruned images, up to chance."""
        off = abs(self.weights.sum(dtype=np.float64) - pass_length)
        if off <= 1e-3 * pass_length:
            return True
        # The weight of a slot that was drawn by itself varies by w (w - 1).
        weights = self.weights.astype(np.float64)
        chance = np.sqrt(np.maximum(weights * (weights - 1), 0).sum())
        return bool(off <= 1e-3 * pass_length + 4 * chance)

    def cut(self, limit: Optional[int]) -> 'EpochPlan':
        """The plan of the first slots, at most ``limit``. None is no limit."""
        return self if limit is None or len(self) <= limit else replace(
            self,
            indices=self.indices[:limit],
            weights=self.weights[:limit],
            tier_of_slot=self.tier_of_slot[:limit],
            whole_mean=self.mean_weight)

    def slots(self) -> Slots:
        """The slots, as a stream of several plans has them."""
        means = np.full(len(self), self.mean_weight, np.float32)
        return Slots(self.indices, self.weights, self.tier_of_slot, means)

    def __len__(self) -> int:
        return len(self.indices)


def checked(plan: Any, pass_length: int) -> EpochPlan:
    """Check that a plan can be trained on, and give its arrays and tiers the
    types that they have to have.

    Args:
        plan (EpochPlan): What a policy has drawn.
        pass_length (int): Length of the scores that the policy was given.

    Raises:
        Refusal: If ``plan`` is no plan, if the plan is empty, or if an array
            has a wrong type or shape, or values out of range.
    """
    if not isinstance(plan, EpochPlan):
        raise Refusal(f'it must return an EpochPlan, but got {plan!r}')
    indices, weights = np.asarray(plan.indices), np.asarray(plan.weights)
    tier_of_slot = np.asarray(plan.tier_of_slot)
    if indices.size == 0:
        raise Refusal('it pruned every image')
    if not np.issubdtype(indices.dtype, np.integer):
        raise Refusal('`indices` must be integers, but are '
                      f'{indices.dtype}: np.flatnonzero makes indices of a '
                      'mask')
    if weights.dtype != np.float32:
        raise Refusal(f'`weights` must be float32, but are {weights.dtype}')
    if indices.ndim != 1 or indices.shape != weights.shape:
        raise Refusal('`indices` and `weights` must have one entry for '
                      'each slot, but their shapes are '
                      f'{indices.shape} and {weights.shape}')
    if indices.min() < 0 or indices.max() >= pass_length:
        raise Refusal(f'`indices` must be in [0, {pass_length}), but reach '
                      f'from {indices.min()} to {indices.max()}')
    # One NaN makes the sum NaN, and one infinity at least infinite.
    if not 0 < weights.sum() < np.inf or weights.min() < 0:
        raise Refusal('`weights` must be finite and not negative, and '
                      'not all of them 0')
    if (not np.issubdtype(tier_of_slot.dtype, np.integer)
            or tier_of_slot.shape != indices.shape):
        raise Refusal('`tier_of_slot` must be integers and have one entry for '
                      'each slot')
    try:
        threshold = float(plan.threshold)
    except (TypeError, ValueError):
        raise Refusal('`threshold` must be a number, but got '
                      f'{plan.threshold!r}') from None
    try:
        tiers = tuple(Tier(*map(int, tier)) for tier in plan.tiers)
    except (TypeError, ValueError):
        raise Refusal('`tiers` must be Tier(size, kept) for each tier, but '
                      f'got {plan.tiers!r}') from None
    if tier_of_slot.min() < 0 or tier_of_slot.max() > max(len(tiers), 1):
        raise Refusal(
            f'`tier_of_slot` must be in [0, {max(len(tiers), 1)}], where '
            f'`tiers` has {len(tiers)}')
    return replace(
        plan,
        indices=indices.astype(np.int64, copy=False),
        weights=weights,
        threshold=threshold,
        tier_of_slot=tier_of_slot.astype(np.int16, copy=False),
        tiers=tiers)


def prune(scores: np.ndarray,
          thresholds: Sequence[float],
          ratios: Sequence[float],
          rng: np.random.Generator,
          rescale: bool = True) -> EpochPlan:
    """Draw a plan that prunes images with a low score.

    Tier ``i`` holds the images with ``thresholds[i - 1] <= score <
    thresholds[i]``. Of its ``n`` images ``floor(ratios[i] * n)`` are pruned at
    random. Kept images get the weight ``n / kept``. So the weight of each
    image is 1 on average, also where counts round, and no weight exceeds
    ``1 / (1 - r)`` of InfoBatch's Eq. 5 (Qin et al., ICLR 2024). Images at or
    above the last threshold are all kept, with weight 1.

    Args:
        scores (np.ndarray): Score of each image, float32 of shape (N,).
        thresholds (Sequence[float]): Upper ends of the tiers, increasing.
        ratios (Sequence[float]): Share to prune of each tier, in [0, 1).
        rng (np.random.Generator): Source of every random choice.
        rescale (bool): Whether weights make up for the pruned images. If not,
            all weights are 1, which is biased. Defaults to True.

    Returns:
        EpochPlan: Slots in random order.

    Raises:
        Refusal: If a threshold isn't finite, as for scores with NaN.
    """
    tier_of_image = divide(scores, thresholds)
    sizes = np.bincount(tier_of_image, minlength=len(thresholds) + 1)
    num_pruned = [int(ratio * n) for ratio, n in zip((*ratios, 0.), sizes)]
    return prune_tiers(tier_of_image, num_pruned, rng, float(thresholds[-1]),
                       rescale)


def divide(scores: np.ndarray, thresholds: Sequence[float]) -> np.ndarray:
    """Tier of each image, from 0, by the upper ends of all tiers but the
    last. A score at a threshold lies above the threshold."""
    if not np.isfinite(thresholds).all():
        raise Refusal(
            f'The scores give thresholds {list(thresholds)}: scores must be '
            'finite, of shape (N,) and N > 0.')
    # `not (score < threshold)` and not `score >= threshold`: what can't be
    # compared is never pruned. Python floats keep the comparison in float32.
    tier_of_image = np.zeros(len(scores), np.min_scalar_type(len(thresholds)))
    for threshold in thresholds:
        tier_of_image += ~(scores < float(threshold))
    return tier_of_image


def prune_tiers(tier_of_image: np.ndarray,
                num_pruned: Sequence[int],
                rng: np.random.Generator,
                threshold: float,
                rescale: bool = True) -> EpochPlan:
    """Prune images of each tier at random.

    Args:
        tier_of_image (np.ndarray): Tier of each image, from 0, of shape (N,).
        num_pruned (Sequence[int]): How many images to prune of each tier.
        rng (np.random.Generator): Source of every random choice.
        threshold (float): Threshold of the plan.
        rescale (bool): See :func:`prune`. Defaults to True.

    Returns:
        EpochPlan: Slots in random order; a full plan if nothing is pruned.
    """
    kept, tiers = [], []
    for members, pruned in zip(
            _members(tier_of_image, len(num_pruned)), num_pruned):
        size = len(members)
        if pruned:
            members = rng.choice(
                members, size - pruned, replace=False, shuffle=False)
        kept.append(members)
        tiers.append(Tier(size, len(members)))

    indices = np.concatenate(kept)
    rng.shuffle(indices)
    if len(indices) == len(tier_of_image):
        return EpochPlan.full(indices)
    tier_weights = np.array(
        [t.size / max(t.kept, 1) if rescale else 1 for t in tiers], np.float32)
    tier_of_slot = tier_of_image[indices]
    return EpochPlan(
        indices,
        tier_weights[tier_of_slot],
        threshold,
        tuple(tiers),
        tier_of_slot=tier_of_slot.astype(np.int16) + np.int16(1),
        is_shuffled=True)


def _members(tier_of_image: np.ndarray, num_tiers: int) -> List[np.ndarray]:
    """Increasing indices of the images of each tier."""
    sizes = np.bincount(tier_of_image, minlength=num_tiers)
    order = np.argsort(tier_of_image, kind='stable')
    return np.split(order, np.cumsum(sizes)[:-1])
