# Copyright (c) mmib contributors. All rights reserved.
"""Plans of epochs, and how the images of a tier are pruned."""
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import Refusal

# The tier of each slot is an int16.
_MOST_TIERS = np.iinfo(np.int16).max


class Tier(NamedTuple):
    """A band of scores with one pruning ratio.

    Args:
        size (int): Number of images whose score lies in the band.
        kept (int): Number of these images that the plan keeps.
        upper (float, optional): Upper edge of the band: all scores in the band
            are lower. None for the last tier, and for tiers that aren't bands
            of scores. Defaults to None.
        weight (float, optional): Weight of each slot of the tier. None if the
            policy doesn't say. Defaults to None.
    """

    size: int
    kept: int
    upper: Optional[float] = None
    weight: Optional[float] = None

    def scaled(self, factor: float) -> 'Tier':
        """Return the tier with its weight multiplied by a factor."""
        return self if self.weight is None else self._replace(
            weight=float(np.float32(self.weight) * np.float32(factor)))


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """The ordered slots of one epoch.

    Args:
        indices (np.ndarray): Dataset index of each slot, integer of shape
            (K,).
        weights (np.ndarray): Weight of the gradient of each slot, float32 of
            shape (K,).
        threshold (float): The score from which on every image is kept.
            Defaults to 0, for plans without a threshold.
        tiers (tuple[Tier]): Tiers in increasing order of score. Defaults to
            ().
        note (str): A sentence that warns the user about this plan. The first
            one is shown, if the plan before had a note too. Defaults to ''.
        tier_of_slot (np.ndarray, optional): Tier of each slot, from 1,
            int16 of shape (K,). If None, all slots are of tier 1.
        is_full (bool): Whether the plan has each image once, with weight 1.
            The run then uses the order of the baseline in the place of
            ``indices``. Defaults to False.
        is_shuffled (bool): Whether the order is random. A run with
            ``shuffle=False`` then sorts the slots. Defaults to False.
    """

    indices: np.ndarray
    weights: np.ndarray
    threshold: float = 0.
    tiers: Tuple[Tier, ...] = ()
    note: str = ''
    tier_of_slot: np.ndarray = None  # type: ignore[assignment]
    is_full: bool = False
    is_shuffled: bool = False

    def __post_init__(self) -> None:
        if self.tier_of_slot is None:
            tiers = np.ones(np.shape(self.indices), np.int16)
            object.__setattr__(self, 'tier_of_slot', tiers)

    @classmethod
    def full(cls, indices: np.ndarray) -> 'EpochPlan':
        """Return a plan that prunes nothing: every weight is 1."""
        size = len(indices)
        return cls(
            indices,
            np.ones(size, np.float32),
            tiers=(Tier(size, size), ),
            tier_of_slot=np.zeros(size, np.int16),
            is_full=True)

    @cached_property
    def mean_weight(self) -> float:
        """float: Mean weight of the slots."""
        return float(self.weights.mean(dtype=np.float64))

    def normalized(self) -> 'EpochPlan':
        """Return the plan with weights divided by their mean."""
        mean = self.weights.mean()
        return replace(
            self,
            weights=self.weights / mean,
            tiers=tuple(tier.scaled(float(1 / mean)) for tier in self.tiers))

    def is_unbiased(self, pass_length: int) -> bool:
        """Return whether the sum of the weights is the number of images,
        within 0.1 % and 4 standard deviations of independent draws."""
        off = abs(self.weights.sum(dtype=np.float64) - pass_length)
        if off <= 1e-3 * pass_length:
            return True
        # If images are drawn independently, a slot of weight w adds w (w - 1)
        # to the variance of the sum.
        weights = self.weights.astype(np.float64)
        chance = np.sqrt(np.maximum(weights * (weights - 1), 0).sum())
        return bool(off <= 1e-3 * pass_length + 4 * chance)

    def _at(self, rows: Any) -> 'EpochPlan':
        """Return the plan with some of the slots."""
        slots = {
            name: getattr(self, name)[rows]
            for name in ('indices', 'weights', 'tier_of_slot')
        }
        return replace(self, **slots)

    def cut(self, limit: Optional[int]) -> 'EpochPlan':
        """Return the first ``limit`` slots of the plan, or all if None."""
        if limit is None or len(self) <= limit:
            return self
        return self._at(slice(limit))

    def sorted(self) -> 'EpochPlan':
        """Return the plan in the order of the dataset."""
        return self._at(np.argsort(self.indices))

    def without_tail(self, count: int,
                     rng: np.random.Generator) -> 'EpochPlan':
        """Return the plan without some slots: without the last slots if the
        order is random, or else without random slots.

        The weights of the other slots make up for these slots, so that each
        image has weight 1 on average. If the mean weight is 1, the weights
        stay: the plan doesn't rescale, or has as many slots as a full pass,
        of which the baseline leaves out its last slots too.

        Args:
            count (int): Number of slots to leave out.
            rng (np.random.Generator): Source of every random choice.
        """
        kept = len(self) - count
        rows = np.arange(kept)
        if not self.is_shuffled:
            rows = np.sort(rng.permutation(len(self))[:kept])
        scale = len(self) / kept if round(self.mean_weight, 6) != 1 else 1.
        plan = self._at(rows)
        counts = np.bincount(
            plan.tier_of_slot, minlength=len(self.tiers) + 1)[1:]
        return replace(
            plan,
            weights=plan.weights * np.float32(scale),
            tiers=tuple(
                tier._replace(kept=int(n)).scaled(scale)
                for tier, n in zip(self.tiers, counts)))

    def __len__(self) -> int:
        return len(self.indices)


def checked(plan: Any, pass_length: int) -> EpochPlan:
    """Return a plan with arrays and tiers of the right types, or refuse it.

    Args:
        plan (EpochPlan): What a policy has drawn.
        pass_length (int): Length of the scores that the policy was given.

    Raises:
        Refusal: If ``plan`` isn't a plan, if the plan is empty, or if an array
            has a wrong type or shape, or values out of range.
    """
    if not isinstance(plan, EpochPlan):
        raise Refusal(f'the policy must return an EpochPlan, but got {plan!r}')
    indices, weights = _checked_slots(plan, pass_length)
    try:
        # JSON has no infinite numbers.
        threshold = float(plan.threshold)
        threshold = threshold if math.isfinite(threshold) else 0.
    except (TypeError, ValueError):
        raise Refusal('`threshold` must be a number, but got '
                      f'{plan.threshold!r}') from None
    tier_of_slot, tiers = _checked_tiers(plan, indices.shape)
    if plan.is_full and (len(indices) != pass_length or (weights != 1).any() or
                         (np.bincount(indices) != 1).any()):
        raise Refusal('`EpochPlan.full` must have each image once and all '
                      f'weights 1, but has {len(np.unique(indices))} of '
                      f'{pass_length} images in {len(indices)} slots: return '
                      '`EpochPlan(indices, weights)` for a part of the images')
    return replace(
        plan,
        indices=indices,
        weights=weights,
        threshold=threshold,
        tier_of_slot=tier_of_slot,
        tiers=tiers)


def _checked_slots(plan: EpochPlan,
                   pass_length: int) -> Tuple[np.ndarray, np.ndarray]:
    """Return the indices and the weights of a plan."""
    indices, weights = np.asarray(plan.indices), np.asarray(plan.weights)
    if indices.size == 0:
        raise Refusal('the policy pruned every image')
    if indices.dtype.kind not in 'iu':
        raise Refusal('`indices` must be integers, but are '
                      f'{indices.dtype}: for a mask, give '
                      'rng.permutation(np.flatnonzero(mask))')
    if weights.dtype != np.float32:
        raise Refusal(f'`weights` must be float32, but are {weights.dtype}')
    if indices.ndim != 1 or indices.shape != weights.shape:
        raise Refusal('`indices` and `weights` must have one entry for '
                      'each slot, but their shapes are '
                      f'{indices.shape} and {weights.shape}')
    if indices.min() < 0 or indices.max() >= pass_length:
        raise Refusal(f'`indices` must be in [0, {pass_length}), but reach '
                      f'from {indices.min()} to {indices.max()}')
    # A NaN or an infinity makes the sum NaN or infinite.
    if not 0 < weights.sum() < np.inf or weights.min() < 0:
        raise Refusal('`weights` must be finite and not negative, and '
                      'not all of them 0')
    return indices.astype(np.int64, copy=False), weights


def _checked_tiers(
        plan: EpochPlan,
        shape: Tuple[int, ...]) -> Tuple[np.ndarray, Tuple[Tier, ...]]:
    """Return the tier of each slot, and the tiers of a plan."""
    tier_of_slot = np.asarray(plan.tier_of_slot)
    if tier_of_slot.dtype.kind not in 'iu' or tier_of_slot.shape != shape:
        raise Refusal('`tier_of_slot` must be integers and have one entry for '
                      'each slot')
    try:
        tiers = tuple(_checked_tier(*tier) for tier in plan.tiers)
    except (TypeError, ValueError):
        raise Refusal('`tiers` must be Tier(size, kept) for each tier, but '
                      f'got {plan.tiers!r}') from None
    if len(tiers) > _MOST_TIERS:
        raise Refusal(f'a plan can have {_MOST_TIERS} `tiers` at most, but '
                      f'has {len(tiers)}')
    lowest, highest = tier_of_slot.min(), tier_of_slot.max()
    if lowest < (0 if plan.is_full else 1) or highest > max(len(tiers), 1):
        raise Refusal(
            f'`tier_of_slot` must be in [1, {max(len(tiers), 1)}], because '
            f'`tiers` has {len(tiers)} entries')
    if lowest == highest == 1 and any(tier.kept for tier in tiers[1:]):
        raise Refusal('all slots are of the first of several `tiers`: give '
                      '`tier_of_slot`, the tier of each slot, from 1')
    return tier_of_slot.astype(np.int16, copy=False), tiers


def _checked_tier(size: Any,
                  kept: Any,
                  upper: Any = None,
                  weight: Any = None) -> Tier:
    return Tier(int(size), int(kept), _finite(upper), _finite(weight))


def _finite(number: Any) -> Optional[float]:
    # JSON has no infinite numbers.
    if number is None or not math.isfinite(number):
        return None
    return float(number)


def prune(scores: np.ndarray,
          thresholds: Sequence[float],
          ratios: Sequence[float],
          rng: np.random.Generator,
          rescale: bool = True) -> EpochPlan:
    """Draw a plan that prunes images with a low score.

    Tier ``i`` holds the images with ``thresholds[i - 1] <= score <
    thresholds[i]``. Of its ``n`` images ``floor(ratios[i] * n)`` are pruned at
    random. Kept images get the weight ``n / kept``. Therefore the weight of
    each image is 1 on average, even where counts are rounded, and no weight
    exceeds ``1 / (1 - r)`` of InfoBatch's Eq. 5 (Qin et al., ICLR 2024).
    Images at or above the last threshold are all kept, with weight 1.

    Args:
        scores (np.ndarray): Score of each image, float32 of shape (N,).
        thresholds (Sequence[float]): Upper edges of the tiers, increasing.
        ratios (Sequence[float]): Share to prune of each tier, in [0, 1).
        rng (np.random.Generator): Source of every random choice.
        rescale (bool): Whether weights make up for the pruned images. If not,
            all weights are 1, which is biased. Defaults to True.

    Returns:
        EpochPlan: Slots in random order.

    Raises:
        Refusal: If a threshold isn't finite, as for scores with NaN, or if
            thresholds and ratios don't fit together.
    """
    if not 0 < len(thresholds) == len(ratios):
        raise Refusal('`thresholds` and `ratios` need one entry for each tier,'
                      f' but got {len(thresholds)} and {len(ratios)}.')
    if (np.diff(thresholds) < 0).any() or not all(0 <= r < 1 for r in ratios):
        raise Refusal('`thresholds` must increase, and `ratios` must be in '
                      f'[0, 1), but got {list(thresholds)} and '
                      f'{list(ratios)}.')
    tier_of_image = divide(scores, thresholds)
    sizes = np.bincount(tier_of_image, minlength=len(thresholds) + 1)
    num_pruned = [int(ratio * n) for ratio, n in zip((*ratios, 0.), sizes)]
    return prune_tiers(
        tier_of_image,
        num_pruned,
        rng,
        thresholds,
        threshold=float(thresholds[-1]),
        rescale=rescale)


def divide(scores: np.ndarray, thresholds: Sequence[float]) -> np.ndarray:
    """Return the tier of each image, from 0, given the upper edges of all
    tiers except the last. A score at an edge belongs to the tier above."""
    if not np.isfinite(thresholds).all():
        raise Refusal(
            f'The scores give thresholds {list(thresholds)}: scores must be '
            'finite, of shape (N,) and N > 0.')
    # `~(score < threshold)` instead of `score >= threshold` puts NaN into the
    # last tier. With a Python float, numpy compares in float32.
    tier_of_image = np.zeros(len(scores), np.min_scalar_type(len(thresholds)))
    for threshold in thresholds:
        tier_of_image += ~(scores < float(threshold))
    return tier_of_image


def prune_tiers(tier_of_image: np.ndarray,
                num_pruned: Sequence[int],
                rng: np.random.Generator,
                uppers: Sequence[float],
                threshold: float = 0.,
                rescale: bool = True) -> EpochPlan:
    """Prune images of each tier at random.

    Args:
        tier_of_image (np.ndarray): Tier of each image, from 0, of shape (N,).
        num_pruned (Sequence[int]): How many images to prune of each tier.
        rng (np.random.Generator): Source of every random choice.
        uppers (Sequence[float]): Upper edge of each tier except the last.
        threshold (float): Threshold of the plan. Defaults to 0.
        rescale (bool): See :func:`prune`. Defaults to True.

    Returns:
        EpochPlan: Slots in random order; a full plan if nothing is pruned.
    """
    kept, tiers = [], []
    edges = [*map(float, uppers), None]
    for members, pruned, upper in zip(
            _members(tier_of_image, len(num_pruned)), num_pruned, edges):
        size = len(members)
        if pruned:
            members = rng.choice(
                members, size - pruned, replace=False, shuffle=False)
        kept.append(members)
        weight = np.float32(size / max(len(members), 1) if rescale else 1)
        tiers.append(Tier(size, len(members), upper, float(weight)))

    indices = np.concatenate(kept)
    rng.shuffle(indices)
    if len(indices) == len(tier_of_image):
        return EpochPlan.full(indices)
    tier_weights = np.array([tier.weight for tier in tiers], np.float32)
    tier_of_slot = tier_of_image[indices]
    return EpochPlan(
        indices,
        tier_weights[tier_of_slot],
        threshold,
        tuple(tiers),
        tier_of_slot=tier_of_slot.astype(np.int16) + np.int16(1),
        is_shuffled=True)


def _members(tier_of_image: np.ndarray, num_tiers: int) -> List[np.ndarray]:
    """Return the indices of the images of each tier, increasing."""
    sizes = np.bincount(tier_of_image, minlength=num_tiers)
    order = np.argsort(tier_of_image, kind='stable')
    # Slices are much faster than np.split.
    ends = np.cumsum(sizes).tolist()
    return [order[begin:end] for begin, end in zip([0, *ends], ends)]
