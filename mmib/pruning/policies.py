# Copyright (c) mmib contributors. All rights reserved.
"""Policies: which images a virtual epoch leaves out, by their scores."""
from typing import Sequence

import numpy as np

from ..registry import POLICIES
from .plan import EpochPlan, prune


def _check_ratio(ratio: float, name: str) -> None:
    if not 0 <= ratio < 1:
        raise ValueError(
            f'`{name}` is the share of images to leave out and must be in '
            f'[0, 1), but got {ratio}: change it in the `policy` of '
            'InfoBatchHook in `custom_hooks`.')


@POLICIES.register_module()
class MeanThreshold:
    """Leave out a share of the images that score below the mean.

    The policy of InfoBatch (Qin et al., ICLR 2024, Eq. 3).

    Args:
        ratio (float): Share of the images below the mean that is left out, in
            [0, 1). The paper keeps the accuracy up to 0.5. Defaults to 0.5.

    Raises:
        ValueError: If ``ratio`` is outside [0, 1).
    """

    def __init__(self, ratio: float = 0.5) -> None:
        _check_ratio(ratio, 'ratio')
        self.ratio = ratio

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        """Draw the plan of a virtual epoch.

        Args:
            scores (np.ndarray): Score of each image, float32 of shape (N,).
            rng (np.random.Generator): Source of every random choice.

        Returns:
            EpochPlan: The plan, in random order.
        """
        # The mean of equal scores must be that score, or ties were pruned:
        # sums of float32 are exact in float64 up to 2^29 images.
        mean = scores.mean(dtype=np.float64)
        return prune(scores, [mean], [self.ratio], rng)

    def __repr__(self) -> str:
        return f'MeanThreshold(ratio={self.ratio})'


@POLICIES.register_module()
class QuantileTiers:
    """Leave out more of the lowest scores than of those above them.

    The policy of InfoBatch's semantic segmentation (Qin et al., ICLR 2024,
    Sec. 4.4): the lowest 20 % are pruned harder than the rest below the
    threshold. With the defaults 52.5 % of the images are kept.

    Args:
        quantiles (Sequence[float]): Upper end of each tier as a quantile of
            all scores, increasing, in (0, 1]. Defaults to (0.2, 0.85).
        ratios (Sequence[float]): Share that is left out of each tier, in
            [0, 1). Defaults to (0.75, 0.5).

    Raises:
        ValueError: If the quantiles don't increase or lie outside (0, 1], if
            a ratio is outside [0, 1), or if the counts differ.
    """

    def __init__(
        self,
        quantiles: Sequence[float] = (0.2, 0.85),
        ratios: Sequence[float] = (0.75, 0.5)
    ) -> None:
        where = 'change it in the `policy` of InfoBatchHook in `custom_hooks`.'
        if len(quantiles) == 0 or len(quantiles) != len(ratios):
            raise ValueError(
                '`quantiles` and `ratios` need one entry for each tier, but '
                f'got {len(quantiles)} and {len(ratios)}: {where}')
        edges = (0, *quantiles)
        if (not all(low < high for low, high in zip(edges, quantiles))
                or quantiles[-1] > 1):
            raise ValueError(
                '`quantiles` must increase and lie in (0, 1], but got '
                f'{tuple(quantiles)}: {where}')
        for ratio in ratios:
            _check_ratio(ratio, 'ratios')
        self.quantiles = tuple(quantiles)
        self.ratios = tuple(ratios)

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        """Draw the plan of a virtual epoch.

        Args:
            scores (np.ndarray): Score of each image, float32 of shape (N,).
            rng (np.random.Generator): Source of every random choice.

        Returns:
            EpochPlan: The plan, in random order.
        """
        thresholds = np.quantile(scores, self.quantiles)
        return prune(scores, thresholds, self.ratios, rng)

    def __repr__(self) -> str:
        return (f'QuantileTiers(quantiles={self.quantiles}, '
                f'ratios={self.ratios})')
