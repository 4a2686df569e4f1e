# Copyright (c) mmib contributors. All rights reserved.
"""What the choice of images is worth: pure functions.

A plan keeps image ``i`` with probability ``p_i`` and weight ``1 / p_i``.
Against pruning as many at random, the second moment of the noise in the
gradient is multiplied by

    V = mean(p) * mean(g^2 / p) / mean(g^2)

with the norm ``g_i`` of the gradient of each image when it is visited. ``1 -
V`` is about the share of the steps that the choice of images saves where noise
limits the training. V is 1 for pruning at random, and never less than
``mean(g)^2 / mean(g^2)``, which ``p`` in proportion to ``g`` reaches.

Everything follows from sums of :func:`terms` over the visits, and of their
products. A training keeps these sums and no visits.
"""
import math
from typing import Any, NamedTuple, Optional, Tuple

import numpy as np

NUM_TERMS = 5


class VarianceRatio(NamedTuple):
    """V of some visits.

    Args:
        value (float): V. NaN where it can't be told.
        low (float): Lower end of its 95 % interval.
        high (float): Upper end of it.
        limit (float): The least V that a choice of these images could have.
    """

    value: float
    low: float
    high: float
    limit: float


class MeanRatio(NamedTuple):
    """Mean V of a training, weighted by visits.

    Args:
        visits (float): Visits until now.
        total (float): Sum of V over them.
        variance (float): Variance of this sum.
    """

    visits: float = 0.
    total: float = 0.
    variance: float = 0.

    def add(self, ratio: VarianceRatio, visits: float) -> 'MeanRatio':
        """Take in V of some more visits."""
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
    """Terms of each visit, whose sums are the means over all images.

    Args:
        keep (np.ndarray or Tensor): Keep probability of the image of each
            visit, of shape (K,).
        norms (np.ndarray or Tensor): Norm of its gradient, of shape (K,).
        weights (np.ndarray or Tensor): Images that the visit stands for, of
            shape (K,).

    Returns:
        tuple: :data:`NUM_TERMS` arrays or tensors of shape (K,).
    """
    moments = weights * norms
    squares = moments * norms
    return weights * keep, weights, moments, squares, squares / keep


def variance_ratio(keep: np.ndarray,
                   norms: np.ndarray,
                   weights: Optional[np.ndarray] = None) -> VarianceRatio:
    """V from the visits of kept images.

    Args:
        keep (np.ndarray): Keep probability of the image of each visit, of
            shape (K,).
        norms (np.ndarray): Norm of its gradient, of shape (K,).
        weights (np.ndarray, optional): Images that each visit stands for. If
            None they are ``1 / keep``, so that the visits of a plan tell V
            over all images; where ``keep`` and ``norms`` are of all images
            already, ones. Defaults to None.

    Returns:
        VarianceRatio: V, its 95 % interval and its lower limit.
    """
    keep = np.asarray(keep, np.float64)
    norms = np.asarray(norms, np.float64)
    weights = 1 / keep if weights is None else np.asarray(weights, np.float64)
    columns = np.stack(terms(keep, norms, weights))
    return from_sums(columns.sum(1), columns @ columns.T, len(keep))


def from_sums(sums: np.ndarray, products: np.ndarray,
              count: int) -> VarianceRatio:
    """V from sums over visits.

    The interval is that of the delta method for ``log V``, where visits are
    independent. It holds for some dozens of visits or more; few visits make it
    wider.

    Args:
        sums (np.ndarray): Sums of :func:`terms`, float64 of shape
            (NUM_TERMS,).
        products (np.ndarray): Sums of the products of each two terms, float64
            of shape (NUM_TERMS, NUM_TERMS).
        count (int): Visits.

    Returns:
        VarianceRatio: V, its 95 % interval and its lower limit. NaN of less
        visits than there are terms.
    """
    if count <= NUM_TERMS or not (sums > 0).all():
        return VarianceRatio(*[math.nan] * 4)
    kept, images, norms, squares, divided = sums
    value = kept * divided / (images * squares)
    # How a visit moves log V, which is nothing on average.
    slope = np.array([1, -1, 0, -1, 1]) / sums
    variance = max(slope @ products @ slope, 0.)
    error = math.sqrt(variance * count / (count - NUM_TERMS))
    return VarianceRatio(
        float(value), float(value * math.exp(-1.96 * error)),
        float(value * math.exp(1.96 * error)),
        float(norms**2 / (images * squares)))


def mean_squares(products: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Mean squared norm in each tier, and its standard error.

    Args:
        products (np.ndarray): Sums of the products of :func:`terms` over the
            visits to each tier, float64 of shape (T, NUM_TERMS, NUM_TERMS).

    Returns:
        tuple[np.ndarray, np.ndarray]: Both float64 of shape (T,). NaN where a
        tier has no visit.
    """
    with np.errstate(invalid='ignore', divide='ignore'):
        images = products[:, 0, 1]
        mean = products[:, 0, 3] / images
        variance = (
            products[:, 3, 3] - 2 * mean * products[:, 1, 3] +
            mean**2 * products[:, 1, 1])
        return mean, np.sqrt(np.maximum(variance, 0)) / images


def correlation(products: np.ndarray) -> float:
    """Correlation of two columns.

    Args:
        products (np.ndarray): Sums of the products of (1, x, y), float64 of
            shape (3, 3).

    Returns:
        float: It, or NaN where it can't be told.
    """
    count = products[0, 0]
    if count < 2:
        return math.nan
    x, y = products[0, 1:] / count
    scale = (products[1, 1] / count - x * x) * (products[2, 2] / count - y * y)
    if not scale > 0:
        return math.nan
    return float((products[1, 2] / count - x * y) / math.sqrt(scale))
