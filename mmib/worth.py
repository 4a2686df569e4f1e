# Copyright (c) mmib contributors. All rights reserved.
"""What the choice of images is worth: pure functions.

A plan keeps image ``i`` with probability ``p_i`` and weight ``1 / p_i``.
Against pruning as many at random, the second moment of the noise in the
gradient is multiplied by

    V = mean(p) * mean(g^2 / p) / mean(g^2)

where ``g_i`` is the norm of the gradient of an image when the image is
visited. ``1 - V`` is about the share of the steps that the choice of images
saves where noise limits the training. V is 1 for pruning at random. The least
V is ``mean(g)^2 / mean(g^2)``, which ``p`` in proportion to ``g`` reaches.

A training keeps no visits, but sums of :func:`terms` over the visits, and sums
of products of terms.
"""
import math
from typing import Any, NamedTuple, Optional, Tuple

import numpy as np

NUM_TERMS = 5


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
    """Mean V of a training, weighted by visits.

    Args:
        visits (float): Visits until now.
        total (float): Sum of V over these visits.
        variance (float): Variance of this sum.
    """

    visits: float = 0.
    total: float = 0.
    variance: float = 0.

    def add(self, ratio: VarianceRatio, visits: float) -> 'MeanRatio':
        """The mean with V of more visits."""
        error = ratio.value * math.log(ratio.high / ratio.value) / 1.96
        return MeanRatio(self.visits + visits,
                         self.total + visits * ratio.value,
                         self.variance + (visits * error)**2)

    def mean(self) -> VarianceRatio:
        """Mean V and its 95 % interval, without a limit."""
        if self.visits == 0:
            return VarianceRatio(*[math.nan] * 4)
        value = self.total / self.visits
        half = 1.96 * math.sqrt(self.variance) / self.visits
        return VarianceRatio(value, value - half, value + half, math.nan)


def terms(keep: Any, norms: Any, weights: Any) -> Tuple[Any, ...]:
    """The :data:`NUM_TERMS` terms of each visit.

    Args:
        keep (np.ndarray or Tensor): Keep probability of the image of each
            visit, of shape (K,).
        norms (np.ndarray or Tensor): Norm of the image, of shape (K,).
        weights (np.ndarray or Tensor): Images that the visit stands for, of
            shape (K,).
    """
    moments = weights * norms
    squares = moments * norms
    return weights * keep, weights, moments, squares, squares / keep


def variance_ratio(keep: np.ndarray,
                   norms: np.ndarray,
                   weights: Optional[np.ndarray] = None) -> VarianceRatio:
    """V from the visits of kept images.

    Args:
        keep (np.ndarray): See :func:`terms`.
        norms (np.ndarray): See :func:`terms`.
        weights (np.ndarray, optional): See :func:`terms`. If None, ``1 /
            keep``, so that the visits of a plan tell V over all images. Give
            ones if all images are visited. Defaults to None.
    """
    keep = np.asarray(keep, np.float64)
    norms = np.asarray(norms, np.float64)
    weights = 1 / keep if weights is None else np.asarray(weights, np.float64)
    columns = np.stack(terms(keep, norms, weights))
    return from_sums(columns.sum(1), columns @ columns.T, len(keep))


def from_sums(sums: np.ndarray, products: np.ndarray,
              count: int) -> VarianceRatio:
    """V from sums over visits. NaN unless there are more visits than terms.

    The interval follows from the delta method for ``log V`` with independent
    visits, and holds for some dozens of visits or more.

    Args:
        sums (np.ndarray): Sums of :func:`terms`, float64 of shape
            (NUM_TERMS,).
        products (np.ndarray): Sums of the products of each two terms, float64
            of shape (NUM_TERMS, NUM_TERMS).
        count (int): Visits.
    """
    if count <= NUM_TERMS or not (sums > 0).all():
        return VarianceRatio(*[math.nan] * 4)
    kept, images, norms, squares, divided = sums
    value = kept * divided / (images * squares)
    # How each term moves log V.
    slope = np.array([1, -1, 0, -1, 1]) / sums
    variance = max(slope @ products @ slope, 0.)
    error = math.sqrt(variance * count / (count - NUM_TERMS))
    return VarianceRatio(
        float(value), float(value * math.exp(-1.96 * error)),
        float(value * math.exp(1.96 * error)),
        float(norms**2 / (images * squares)))


def gain(ratio: VarianceRatio, longer: float,
         differ: float) -> Optional[Tuple[float, float, float]]:
    """What a choice of images can have brought, and the ends of its interval,
    of V alone: as much as ``1 / V`` times the iterations would. None where
    that makes up for most of what the trainings differ by.

    Args:
        ratio (VarianceRatio): V of the choice.
        longer (float): Log of the iterations of a plain training over those of
            the training with the choice.
        differ (float): How much higher the quality of the plain one is.
    """
    # The mean of V may reach below 0.
    bring = [-math.log(max(v, 1e-9)) for v in ratio[:3]]
    if abs(longer) < 0.05 or min(1 - more / longer for more in bring) < 0.3:
        return None
    value, *ends = (more * differ / (longer - more) for more in bring)
    return value, min(ends), max(ends)


def mean_squares(products: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Mean squared norm in each tier, and its standard error.

    NaN where a tier has no visit. ``products`` are those of :func:`from_sums`
    for each tier, of shape (T, NUM_TERMS, NUM_TERMS).
    """
    with np.errstate(invalid='ignore', divide='ignore'):
        images = products[:, 0, 1]
        mean = products[:, 0, 3] / images
        variance = (
            products[:, 3, 3] - 2 * mean * products[:, 1, 3] +
            mean**2 * products[:, 1, 1])
        return mean, np.sqrt(np.maximum(variance, 0)) / images


def correlation(products: np.ndarray) -> float:
    """Correlation of x and y from sums of the products of (1, x, y), float64
    of shape (3, 3). NaN where it is unknown."""
    count = products[0, 0]
    if count < 2:
        return math.nan
    x, y = products[0, 1:] / count
    scale = (products[1, 1] / count - x * x) * (products[2, 2] / count - y * y)
    if not scale > 0:
        return math.nan
    return float((products[1, 2] / count - x * y) / math.sqrt(scale))
