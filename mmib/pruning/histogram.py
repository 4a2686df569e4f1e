# Copyright (c) mmib contributors. All rights reserved.
"""Which scores a plan keeps, in numbers that are easily stored."""
from typing import List, NamedTuple

import numpy as np

from .plan import EpochPlan

NUM_BINS = 30


class ScoreHistogram(NamedTuple):
    """Images by their scores, before and after pruning, and after weighting
    (Figure 6 of the paper).

    Args:
        edges (list[float]): Edges of the bins, one more than these.
        all (list[int]): Images in each bin.
        kept (list[int]): Those of them in the plan.
        weighted (list[float]): Sum of their weights.
    """

    edges: List[float]
    all: List[int]
    kept: List[int]
    weighted: List[float]

    @classmethod
    def of(cls, scores: np.ndarray, plan: EpochPlan) -> 'ScoreHistogram':
        """Count the scores of a plan.

        Args:
            scores (np.ndarray): Score of each index, of shape (pass_length,).
            plan (EpochPlan): Drawn from them.

        Returns:
            ScoreHistogram: With bins of equal width over all scores.
        """
        try:
            edges = np.histogram_bin_edges(scores, NUM_BINS)
        except ValueError:
            # float32 has too few numbers between scores that are nearly equal.
            scores = scores.astype(np.float64)
            edges = np.histogram_bin_edges(scores, NUM_BINS)
        kept = scores[plan.indices]
        return cls(edges.tolist(),
                   np.histogram(scores, edges)[0].tolist(),
                   np.histogram(kept, edges)[0].tolist(),
                   np.histogram(kept, edges, weights=plan.weights)[0].tolist())
