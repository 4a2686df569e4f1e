# Copyright (c) mmib contributors. All rights reserved.
"""Sums over the visits that followed the plans, kept where the training runs.
"""
import math
from dataclasses import dataclass
from typing import List, Optional

import numpy as np
import torch
from mmengine.dist import get_dist_info
from torch import Tensor

from . import worth
from .batch import BatchContext, to_device
from .pruning import EpochPlan, TierNorms
from .scores import BatchVisits, ScoreTable

# Each visit has the terms of V, the score that the image had and the one it
# has. The products of each two of these columns are summed. The first term is
# 1.
_NUM_COLUMNS = worth.NUM_TERMS + 2
_PAIR = [0, worth.NUM_TERMS, worth.NUM_TERMS + 1]


@dataclass(frozen=True)
class VisitSums:
    """Sums over visits, on the host.

    Args:
        by_tier (np.ndarray): Sums of the products of
            :func:`~mmib.worth.terms` over the visits to each tier, float64 of
            shape (T, NUM_TERMS, NUM_TERMS).
        pairs (np.ndarray): Sums of the products of (1, the score before, the
            score now) over these visits, float64 of shape (3, 3).
    """

    by_tier: np.ndarray
    pairs: np.ndarray

    @property
    def ratio(self) -> Optional[worth.VarianceRatio]:
        """VarianceRatio, optional: V of these visits, None where it can't be
        told."""
        products = self.by_tier.sum(0)
        ratio = worth.from_sums(products[0], products, self.count)
        return ratio if math.isfinite(ratio.value) else None

    @property
    def reliability(self) -> Optional[float]:
        """float, optional: Correlation of the score that an image had with its
        next one, None where it can't be told."""
        correlation = worth.correlation(self.pairs)
        return correlation if math.isfinite(correlation) else None

    @property
    def norms(self) -> TierNorms:
        """TierNorms: Mean squared norm of each tier."""
        return TierNorms(*worth.mean_squares(self.by_tier))

    @property
    def count(self) -> int:
        """int: Visits that count for V."""
        return round(self.by_tier[:, 0, 0].sum())


class VisitCounter:
    """Adds up what is seen of images that plans have chosen, until it is
    taken for the next plan.

    Each rank adds what it trains on. The rows of all ranks travel in the
    collective of the scores. Only :meth:`merge` and :meth:`take` wait for the
    device.

    Args:
        scores (ScoreTable): Score of each image.
        score (str): What the score of a visit is, ``'loss'`` or
            ``'gradient'``. Defaults to ``'loss'``.
    """

    def __init__(self, scores: ScoreTable, score: str = 'loss') -> None:
        self.scores = scores
        self.score = score
        self.lacks_norms: Optional[bool] = None
        """bool, optional: Whether losses stand in for norms, which can't be
        seen. None before the first batch."""
        self._rank, world_size = get_dist_info()
        # Sums of products of each rank, by tier. (MPS has no float64.)
        device = scores.device
        self._sums = torch.zeros(
            world_size,
            0,
            dtype=torch.float32 if device.type == 'mps' else torch.float64,
            device=device)
        scores.on_write = self.add
        self.expect(1)

    def expect(self, num_tiers: int) -> None:
        """Make room for the tiers of a plan, on all ranks alike."""
        missing = num_tiers * _NUM_COLUMNS**2 - self._sums.shape[1]
        if missing > 0:
            self._sums = torch.nn.functional.pad(self._sums, (0, missing))

    def record(self, slots: EpochPlan, batch: BatchContext,
               delivered: np.ndarray, mean_weight: float,
               iteration: int) -> None:
        """Take in a batch after its backward pass.

        Args:
            slots (EpochPlan): Slots of the batch, of shape (B,).
            batch (BatchContext): Weights, scores and norms.
            delivered (np.ndarray): Whether the data set delivered the image
                of each slot and no other one, bool of shape (B,).
            mean_weight (float): Mean weight of the plan of these slots.
            iteration (int): The current iteration, from 0.
        """
        norms, scores = batch.norms, batch.scores
        if self.lacks_norms is None:
            self.lacks_norms = norms is None
        if self.lacks_norms:
            norms = scores
        elif norms is None:
            # This batch alone has no norms, and doesn't count.
            norms = torch.full_like(scores, torch.nan)
        if self.score == 'gradient':
            scores = norms
            # With weight 0 nothing flows back, so the norm isn't known, and
            # the image keeps its score as if another one was delivered.
            delivered = delivered & (slots.weights > 0)
        if not delivered.all():
            slots = slots[delivered]
            where = to_device(np.flatnonzero(delivered), scores.device)
            scores, norms = scores[where], norms[where]
        self.scores.record(
            BatchVisits(slots.indices, scores, iteration, slots.tier_of_slot,
                        slots.weights / np.float32(mean_weight), norms))

    def add(self, visits: List[BatchVisits], before: Tensor) -> None:
        """Add visits to the sums. A visit of which something isn't known, such
        as the score before, doesn't count.

        Args:
            visits (list[BatchVisits]): Visits of some batches.
            before (Tensor): Score that each image had, NaN before its first
                visit, float32 of the length of all.
        """
        device, dtype = before.device, self._sums.dtype
        tiers = to_device(
            np.concatenate([v.tiers for v in visits]).astype(np.int64), device)
        weights = to_device(
            np.concatenate([v.weights for v in visits]), device)
        norms = torch.cat([v.norms for v in visits])
        scores = torch.cat([v.scores for v in visits])
        weights, norms, before, scores = torch.stack(
            [weights, norms, before, scores]).to(dtype)
        columns = torch.stack(
            [*worth.terms(1 / weights, norms, weights), before, scores])
        # One that isn't finite makes the sum so.
        rows = self._sums[self._rank].view(-1, _NUM_COLUMNS**2)
        # A state may lack the room of the plan that it goes on with.
        counts = ((columns.sum(0) * 0 == 0) & (tiers > 0) &
                  (tiers <= len(rows)))
        columns = torch.where(counts, columns, 0.)
        products = (columns[:, None] * columns).flatten(0, 1)
        # One visit after the other, so that on the CPU it doesn't matter which
        # batches are summed at once.
        tiers = (tiers - 1).clamp(0, len(rows) - 1)
        if rows.is_cuda:
            # It sorts the indices; `index_add_` has no fixed order there.
            rows.index_put_((tiers, ), products.T, accumulate=True)
        else:
            rows.index_add_(0, tiers, products.T)

    def merge(self, checksum: int) -> bool:
        """Make scores and sums of all ranks equal, in one collective. It takes
        none if nothing was recorded since the last one.

        Args:
            checksum (int): A number that should be the same on all ranks,
                less than 2^53.

        Returns:
            bool: Whether it is. True if there was no collective.
        """
        self.scores.write()
        row = self._sums[self._rank]
        rows = self.scores.merge(torch.cat([row.new_tensor([checksum]), row]))
        if rows is None:
            return True
        self._sums = rows[:, 1:].contiguous()
        return bool((rows[:, 0] == checksum).all())

    def take(self) -> VisitSums:
        """Sums of all ranks, as of the last merge, and begin anew."""
        self.scores.write()
        total = self._sums.cpu().numpy().sum(0)
        self._sums = torch.zeros_like(self._sums)
        by_tier = total.reshape(-1, _NUM_COLUMNS, _NUM_COLUMNS)
        return VisitSums(by_tier[:, :worth.NUM_TERMS, :worth.NUM_TERMS],
                         by_tier.sum(0)[np.ix_(_PAIR, _PAIR)])

    def state_dict(self) -> dict:
        """Merged sums as tensors and plain Python values."""
        self.scores.write()
        return dict(rows=self._sums.cpu().clone(), score=self.score)

    def load_state_dict(self, state_dict: dict, same_tiers: bool) -> None:
        """Go on from :meth:`state_dict`, on any number of ranks.

        Args:
            state_dict (dict): What :meth:`state_dict` returned.
            same_tiers (bool): Whether the next plans have tiers like those
                until now; else the sums begin anew.
        """
        self._sums.zero_()
        rows = state_dict['rows']
        if rows is None or not same_tiers:
            return
        self.expect(rows.shape[1] // _NUM_COLUMNS**2)
        if len(rows) == len(self._sums):
            self._sums.copy_(rows)
        else:
            self._sums[0] = rows.sum(0)
