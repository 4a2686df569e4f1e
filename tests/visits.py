# Copyright (c) mmib contributors. All rights reserved.
"""BatchVisits that no training made."""
import numpy as np
import torch

from mmib.scores import BatchVisits


def make_visits(indices,
                scores,
                iteration=0,
                tiers=None,
                weights=None,
                norms=None):
    """Those of a batch: by default of a full pass, with weight 1 and the score
    as norm."""
    indices = np.asarray(indices)
    scores = torch.as_tensor(scores, dtype=torch.float32)
    size = indices.shape
    return BatchVisits(
        indices, scores, iteration,
        np.zeros(size, np.int16) if tiers is None else np.asarray(
            tiers, np.int16),
        np.ones(size, np.float32) if weights is None else np.asarray(
            weights, np.float32), scores if norms is None else torch.as_tensor(
                norms, dtype=torch.float32))
