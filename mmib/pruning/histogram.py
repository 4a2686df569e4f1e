# Copyright (c) mmib contributors. All rights reserved.
"""Which scores a plan keeps, as a histogram."""
from typing import List, NamedTuple

import numpy as np

from .plan import EpochPlan

NUM_BINS = 30


class ScoreHistogram(NamedTuple):
    """Images by score, before and after pruning (Figure 6 of the paper).

    Args:
        edges (list[float]): Edges of the bins.
        all (list[int]): Images in each bin.
        kept (list[int]): Images of the plan in each bin.
        weighted (list[float]): Sum of their weights in each bin.
    """

    edges: List[float]
    all: List[int]
    kept: List[int]
    weighted: List[float]

    @classmethod
    def of(cls, scores: np.ndarray, plan: EpochPlan) -> 'ScoreHistogram':
        """Count the scores of all images, and of those in a plan."""
        try:
            counts, edges = np.histogram(scores, NUM_BINS)
        except ValueError:
            # float32 has too few numbers between scores that are nearly equal.
            scores = scores.astype(np.float64)
            counts, edges = np.histogram(scores, NUM_BINS)
        kept, limits = scores[plan.indices], (edges[0], edges[-1])
        return cls(
            edges.tolist(), counts.tolist(),
            np.histogram(kept, NUM_BINS, limits)[0].tolist(),
            np.histogram(kept, NUM_BINS, limits,
                         weights=plan.weights)[0].tolist())
