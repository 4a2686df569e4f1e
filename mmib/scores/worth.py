# Copyright (c) mmib contributors. All rights reserved.
"""What the choice of images is worth: pure functions.

A plan keeps image ``i`` with probability ``p_i`` and weight ``1 / p_i``.
Compared with pruning as many at random, the second moment of the noise in the
gradient is multiplied by

    V = mean(p) * mean(g^2 / p) / mean(g^2)

where ``g_i`` is the norm of the gradient of an image when the image is
visited. If the noise of the gradient limits the training, the choice of images
saves a share of about ``1 - V`` of the steps. V is 1 for pruning at random.
The least V is ``mean(g)^2 / mean(g^2)``, which ``p`` in proportion to ``g``
reaches.

A run keeps sums (:func:`tier_sums`), not visits. Visits are added to the sums
in their order, so that all ranks get the same bits.
"""
import math
from typing import Any, List, NamedTuple, Optional, Tuple

import numpy as np

MOMENTS = ((0, 0), (1, 0), (1, 1), (1, 2), (2, 2), (2, 0), (3, 2), (2, 4),
           (3, 4), (4, 4))
"""tuple: Exponents of the weight and of the norm in each of
:func:`moments`."""

# V is made of the sums of four moments. The variance of these sums is made of
# the products of each two, which are moments too.
_TERMS = ((0, 0), (1, 0), (1, 2), (2, 2))
_SUMS = [MOMENTS.index(term) for term in _TERMS]
_PRODUCTS = np.array([[MOMENTS.index((a + c, b + d)) for c, d in _TERMS]
                      for a, b in _TERMS])
_SIGNS = np.array([1, -1, -1, 1])  # Of the terms in log V.
_BLOCK = 2**13  # Visits whose moments fit into the cache.
_MORE = 2  # More visits with a large norm that the interval covers.


class VarianceRatio(NamedTuple):
    """V of some visits.

    Args:
        value (float): V. NaN where V is unknown.
        low (float): Lower end of the 95 % interval of V.
        high (float): Upper end of this interval.
        limit (float): The least V that a choice of these images can have.
    """

    value: float
    low: float
    high: float
    limit: float


class MeanRatio(NamedTuple):
    """Mean V of a run, weighted by visits.

    Args:
        visits (float): Visits until now.
        total (float): Sum of V over these visits.
        below (float): Variance of this sum, from the lower ends of the
            intervals of V.
        above (float): Variance of this sum, from the upper ends.
    """

    visits: float = 0.
    total: float = 0.
    below: float = 0.
    above: float = 0.

    def add(self,
            sums: np.ndarray,
            ratio: Optional[VarianceRatio] = None) -> 'MeanRatio':
        """Return the mean with V of more visits, given their :func:`tier_sums`
        and, if known, :func:`from_sums` of these."""
        ratio, visits = ratio or from_sums(sums), float(sums[:, 0].sum())
        if not math.isfinite(ratio.value):
            return self
        below, above = ((visits * (end - ratio.value) / 1.96)**2
                        for end in ratio[1:3])
        return MeanRatio(self.visits + visits,
                         self.total + visits * ratio.value, self.below + below,
                         self.above + above)

    def mean(self) -> VarianceRatio:
        """Return mean V and its 95 % interval, without a limit."""
        if self.visits == 0:
            return VarianceRatio(*[math.nan] * 4)
        below, above = (1.96 * math.sqrt(x) / self.visits for x in self[2:])
        value = self.total / self.visits
        return VarianceRatio(value, value - below, value + above, math.nan)


def moments(weights: Any, norms: Any) -> List[np.ndarray]:
    """Return the :data:`MOMENTS` of each visit, float64 of shape (K,) each.

    Args:
        weights (np.ndarray): Weight of each visit, of shape (K,): in
            proportion to ``1 / p``.
        norms (np.ndarray): Norm of the image, of shape (K,).
    """
    weights = np.asarray(weights, np.float64)
    first = weights * norms
    second = first * norms
    third = weights * second
    return [
        np.ones_like(weights), weights, first, second, third, weights**2,
        weights * third, second**2, second * third, third**2
    ]


def tier_sums(tiers: np.ndarray,
              weights: np.ndarray,
              norms: np.ndarray,
              num_tiers: int,
              before: Optional[np.ndarray] = None) -> np.ndarray:
    """Return sums over the visits to each tier. The sums have the same bits
    however the visits are split over several calls.

    Args:
        tiers (np.ndarray): Tier of each visit, from 1, integer of shape (K,).
        weights (np.ndarray): See :func:`moments`.
        norms (np.ndarray): See :func:`moments`.
        num_tiers (int): Number of tiers. Some may have no visit.
        before (np.ndarray, optional): Sums over earlier visits, to add to.
            Defaults to None.

    Returns:
        np.ndarray: Sums of :func:`moments`, and the largest norm as the last
        column, float64 of shape (num_tiers, 11), or as many rows as
        ``before`` has.
    """
    before = np.zeros((0, len(MOMENTS) + 1)) if before is None else before
    size = max(num_tiers, len(before))
    sums = np.zeros((size, len(MOMENTS) + 1))
    sums[:len(before)] = before
    for begin in range(0, len(tiers), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        rows = tiers[block].astype(np.int64) - 1
        values = np.asarray(norms[block], np.float64)
        np.maximum.at(sums[:, -1], rows, values)
        # One visit after the other.
        for column, moment in zip(sums.T, moments(weights[block], values)):
            np.add.at(column, rows, moment)
    return sums


def from_sums(sums: np.ndarray) -> VarianceRatio:
    """Return V from :func:`tier_sums`: NaN unless there are more than 5 visits
    and norms above 0.

    The interval follows from the delta method for ``log V`` with independent
    visits. A few large norms can make up most of V, and it is chance whether
    they were visited. So the interval also covers the V that two more visits
    would give, whichever tier they fall into. Their norm is the mean norm of
    the tier times the largest ratio of a norm to the mean of its tier that was
    seen.
    """
    totals = sums.sum(0)
    count, terms, products = totals[0], totals[_SUMS], totals[_PRODUCTS]
    if not (count > 5 and terms.min() > 0):
        return VarianceRatio(*[math.nan] * 4)
    limit = float(totals[2]**2 / (totals[1] * totals[3]))
    # Where all weights are equal, V is 1 whatever the norms are.
    if products[0, 0] * products[1, 1] < (1 + 1e-9) * products[0, 1]**2:
        return VarianceRatio(1., 1., 1., limit)
    seen = sums[sums[:, 2] > 0]
    visits, images, norms = seen[:, :3].T
    weight, mean = images / visits, norms / images
    square = (mean * (seen[:, -1] / mean).max())**2
    # Terms of one more visit to each tier. The first row is without any.
    more = np.zeros((1 + len(seen), 4))
    more[1:] = np.array(
        [np.ones_like(weight), weight, weight * square, weight**2 * square]).T
    terms = terms + _MORE * more
    products = products + _MORE * more[:, :, None] * more[:, None]
    counts = count + _MORE * more[:, 0]
    # How each term moves log V.
    slope = _SIGNS / terms
    variance = (slope[:, :, None] * products * slope[:, None]).sum((1, 2))
    error = np.sqrt(np.maximum(variance, 0) * counts / (counts - 5))
    values = terms[:, 0] * terms[:, 3] / (terms[:, 1] * terms[:, 2])
    return VarianceRatio(
        float(values[0]), float((values * np.exp(-1.96 * error)).min()),
        float((values * np.exp(1.96 * error)).max()), limit)


def variance_ratio(keep: np.ndarray, norms: np.ndarray) -> VarianceRatio:
    """Return V from the visits that followed a plan.

    Args:
        keep (np.ndarray): Keep probability of the image of each visit, of
            shape (K,).
        norms (np.ndarray): Norm of the image, of shape (K,).
    """
    keep = np.asarray(keep, np.float64)
    # Powers of 2 stand in for tiers.
    tiers = 1 + np.rint(-np.log2(keep)).clip(0, 9).astype(np.int64)
    return from_sums(tier_sums(tiers, 1 / keep, np.asarray(norms), 10))


def mean_squares(sums: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return the mean squared norm over the images of each tier, and its
    standard error, from :func:`tier_sums`. NaN where a tier has no visit.
    """
    _, images, _, squares, mixed, images_2, _, squares_2 = sums[:, :8].T
    with np.errstate(invalid='ignore', divide='ignore'):
        mean = squares / images
        variance = squares_2 - 2 * mean * mixed + mean**2 * images_2
        return mean, np.sqrt(np.maximum(variance, 0)) / images
