# Copyright (c) mmib contributors. All rights reserved.
"""The policies of the paper."""
from typing import Optional, Sequence

import numpy as np

from .plan import EpochPlan, prune
from .policy import Policy, Progress, check_argument, check_ratio


class MeanThreshold(Policy):
    """Prune a share of the images that score below the mean.

    The policy of InfoBatch (Qin et al., ICLR 2024, Eq. 3).

    Args:
        ratio (float): Share of the images below the mean that is pruned, in
            [0, 1). The paper keeps the accuracy up to 0.5. Defaults to 0.5.
        rescale (bool): Whether weights make up for the pruned images. If not,
            all weights are 1, which is biased, as in the ablation of the
            paper. Defaults to True.
    """

    default_ratio = 0.8  # As in the paper.

    def __init__(self, ratio: float = 0.5, rescale: bool = True) -> None:
        check_ratio(ratio)
        self.ratio = ratio
        self.rescale = rescale

    def expected_share(self, progress: Progress) -> Optional[float]:
        return None if self.ratio else 1.

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        # The mean of equal scores must be exact, or else ties would be pruned.
        # Sums of float32 are exact in float64 up to 2^29 images.
        mean = scores.mean(dtype=np.float64)
        return prune(scores, [mean], [self.ratio], rng, self.rescale)


class QuantileTiers(Policy):
    """Prune a share of each band of scores, between quantiles.

    The policy of InfoBatch for semantic segmentation (Qin et al., ICLR 2024,
    Sec. 4.4). With the defaults, 52.5 % of the images are kept.

    Args:
        quantiles (Sequence[float]): Upper edge of each tier as a quantile of
            all scores, increasing, in (0, 1]. Defaults to (0.2, 0.85).
        ratios (Sequence[float]): Share of each tier that is pruned, in
            [0, 1). Defaults to (0.75, 0.5).
        rescale (bool): See :class:`MeanThreshold`. Defaults to True.
    """

    def __init__(self,
                 quantiles: Sequence[float] = (0.2, 0.85),
                 ratios: Sequence[float] = (0.75, 0.5),
                 rescale: bool = True) -> None:
        check_argument('quantiles` and `ratios', (len(quantiles), len(ratios)),
                       0 < len(quantiles) == len(ratios),
                       'need one entry for each tier')
        check_argument(
            'quantiles', tuple(quantiles),
            all(np.diff(quantiles, prepend=0) > 0) and quantiles[-1] <= 1,
            'must increase and lie in (0, 1]')
        for ratio in ratios:
            check_ratio(ratio, 'ratios')
        self.quantiles = tuple(map(float, quantiles))
        self.ratios = tuple(map(float, ratios))
        self.rescale = rescale

    def expected_share(self, progress: Progress) -> float:
        sizes = np.diff(self.quantiles, prepend=0)
        return 1 - float(sizes @ np.array(self.ratios))

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        thresholds = np.quantile(scores, self.quantiles)
        return prune(scores, thresholds, self.ratios, rng, self.rescale)
