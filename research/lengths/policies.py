# Copyright (c) mmib contributors. All rights reserved.
"""Rivals of mmib's policies, as policies to the same budget."""
import numpy as np
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

import mmib
from mmib.hook import InfoBatchHook
from mmib.pruning import EpochPlan, Neyman, Tier
from mmib.pruning.policy import ToBudget


@mmib.POLICIES.register_module()
class OrderDP(ToBudget):
    """Of a random share of the images those of the highest scores
    (github.com/shengze-xu/OrderDP, ICLR 2026). Biased: all weights are 1, as
    in the released code."""

    rescale = False

    def __init__(self, drawn=0.8, ratio=0.6):
        super().__init__(ratio)
        self.drawn = drawn

    def __call__(self, scores, rng):
        size, share = len(scores), self._kept_share()
        kept = max(self._num_kept(share, size), 1)
        if kept == size:
            return EpochPlan.full(rng.permutation(size))
        drawn = rng.permutation(size)[:max(kept, int(self.drawn * size))]
        indices = drawn[np.argsort(-scores[drawn], kind='stable')[:kept]]
        rng.shuffle(indices)
        return EpochPlan(
            indices,
            np.ones(kept, np.float32),
            tiers=(Tier(size, kept), ),
            is_shuffled=True)


@mmib.POLICIES.register_module()
class Oscillating(Neyman):
    """``Neyman`` whose kept share goes up and down from plan to plan, with the
    same budget (PODS, arXiv 2605.14773). With one stratum pruning is at
    random."""

    def __init__(self, swing=0.4, num_strata=10, min_keep=0.1, ratio=0.6):
        super().__init__(num_strata, min_keep, ratio)
        self.swing = swing
        self._low = False

    def begin_plan(self, progress):
        super().begin_plan(progress)
        self._low = not self._low

    def _kept_share(self):
        # Each plan is drawn for what is still to cover, so a high one makes
        # up for the low one before it.
        factor = 1 - self.swing if self._low else 1 + self.swing
        return min(factor * super()._kept_share(), 1.)

    def state_dict(self):
        return dict(super().state_dict(), low=self._low)

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self._low = state_dict['low']


@mmib.POLICIES.register_module()
class BatchNeyman(Neyman):
    """``Neyman`` on scores of :class:`BatchLosses`."""


@HOOKS.register_module()
class BatchLosses(Hook):
    """Gives each image the mean loss of its batch as score, of which ``ema``
    makes a moving average (BLS, github.com/mrazhou/BLS, CVPR 2026)."""

    priority = 'HIGH'  # Before InfoBatchHook.

    def after_train_iter(self, runner, *args, **kwargs):
        for hook in runner.hooks:
            if (isinstance(hook, InfoBatchHook)
                    and isinstance(hook.policy, BatchNeyman)
                    and hook.batch.scores is not None):
                scores = hook.batch.scores
                hook.batch._total = scores.mean().expand_as(scores).clone()
