# Copyright (c) mmib contributors. All rights reserved.
"""A histogram of the scores that a plan keeps."""
from typing import List, NamedTuple

import numpy as np

from .plan import EpochPlan

NUM_BINS = 30
# A picture needs no more images.
_COUNTED = 1 << 16


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
        """Count the scores of all images, and of the slots of a plan. In a
        large dataset, every k-th image is counted, k times."""
        every = max(len(scores) // _COUNTED, 1)
        edges = np.histogram_bin_edges(
            np.array([scores.min(), scores.max()], np.float64), NUM_BINS)
        some, kept = (
            np.searchsorted(edges[1:-1], each, 'right')
            for each in (scores[::every], scores[plan.indices[::every]]))
        weights = plan.weights[::every]
        found = (np.bincount(some, minlength=NUM_BINS),
                 np.bincount(kept, minlength=NUM_BINS),
                 np.bincount(kept, weights, NUM_BINS))
        return cls(edges.tolist(),
                   *((every * each).tolist() for each in found))
