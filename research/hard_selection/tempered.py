# Copyright (c) mmib contributors. All rights reserved.
"""Images are kept in proportion to a power of their score, and weights take
back more and more of the bias."""
from typing import Any, Dict, Optional

import numpy as np
from scipy.optimize import brentq

from mmib import POLICIES
from mmib.pruning import EpochPlan, Policy, Progress


def keep_probabilities(scores: np.ndarray, keep: float, power: float,
                       min_keep: float) -> np.ndarray:
    """Keep probability of each image, of mean ``keep``: in proportion to a
    power of the score, within ``[min_keep, 1]``."""
    wanted = np.maximum(scores.astype(np.float64), 1e-12)**power

    def kept(log_scale: float) -> np.ndarray:
        return np.clip(np.exp(log_scale) * wanted, min_keep, 1)

    ends = np.log([min_keep / wanted.max(), 1 / wanted.min()])
    return kept(brentq(lambda scale: kept(scale).mean() - keep, *ends))


@POLICIES.register_module()
class Tempered(Policy):
    """Select hard images, and end without bias.

    The weight of a kept image is ``1 / p`` to the power ``1 - b``. ``b`` falls
    in a line from ``bias`` at the first plan to 0 where annealing begins.

    Args:
        keep (float): Share of the images that is kept. Defaults to 0.525.
        power (float): The keep probability ``p`` is in proportion to this
            power of the score. Defaults to 1.
        bias (float): ``b`` at the first plan, in [0, 1]. 1 means no weights.
            Defaults to 1.
        min_keep (float): Least keep probability. Defaults to 0.1.
    """

    def __init__(self,
                 keep: float = 0.525,
                 power: float = 1.,
                 bias: float = 1.,
                 min_keep: float = 0.1) -> None:
        self.keep, self.power = keep, power
        self.bias, self.min_keep = bias, min_keep
        self._first: Optional[float] = None
        self._left = 1.

    def begin_plan(self, progress: Progress) -> None:
        done = progress.covered if progress.of_baseline else progress.spent
        left = progress.length - progress.annealing - done
        if self._first is None:
            self._first = left
        self._left = left / self._first

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        shares = keep_probabilities(scores, self.keep, self.power,
                                    self.min_keep)
        kept = rng.permutation(
            np.flatnonzero(rng.random(len(scores)) < shares))
        power = 1 - self.bias * np.clip(self._left, 0, 1)
        return EpochPlan(kept, (shares[kept]**-power).astype(np.float32))

    def state_dict(self) -> Dict[str, Any]:
        return dict(first=self._first)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._first = state_dict['first']
