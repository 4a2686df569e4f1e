# Copyright (c) mmib contributors. All rights reserved.
"""Trainings of a second with neither a Runner nor a network: the losses follow
from image and iteration."""
import functools
import io
import json

import numpy as np
import torch
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from mmib import InfoBatchSampler
from mmib.clock import EpochClock, IterationClock
from mmib.pruning import (AboveMean, Budget, EpochPlan, EpsilonGreedy,
                          MeanThreshold, Neyman, QuantileTiers, RandomPruning,
                          ScoreOnly, Tier, UpperConfidenceBound, as_policy)
from mmib.training import Training

SIZE = 13
CPU = torch.device('cpu')


def of_any_size(scores, rng):
    """Plans of a user, with repeats, weights of 0 and numbers of numpy."""
    indices = rng.integers(0, len(scores), rng.integers(1, 2 * len(scores)))
    weights = rng.permutation(np.linspace(0, 2, len(indices), dtype='f'))
    return EpochPlan(indices, weights + np.float32(len(indices) == 1),
                     np.float32(rng.choice([0.5, np.nan, np.inf])),
                     (Tier(np.int64(SIZE), np.int64(len(indices))), ))


POLICIES = st.sampled_from([
    MeanThreshold,
    QuantileTiers,
    RandomPruning,
    AboveMean,
    ScoreOnly,
    functools.partial(Budget, max_ratio=0.6, ratio=0.7),
    functools.partial(EpsilonGreedy, epsilon=0.3, period=2),
    functools.partial(UpperConfidenceBound, period=3),
    functools.partial(Neyman, num_strata=3, min_keep=0.3),
    lambda: of_any_size,
])


def losses_of(images, iteration):
    """Losses whose gradients at the first column of the predictions have their
    roots as norms."""
    predictions = torch.ones(len(images), 2, requires_grad=True)
    losses = (torch.as_tensor(images) + 1) / (2. + iteration)
    return losses + (predictions[:, 0] - 1) * losses.sqrt(), predictions


def state_of(session):
    """The state as a checkpoint has it."""
    buffer = io.BytesIO()
    torch.save(session.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def facts(records):
    """Records as a file has them, without NaN, which differs from itself."""
    return json.loads(
        json.dumps([record.to_dict() for record in records], allow_nan=False))


def plans_of(session):
    """A list that gets each plan that is drawn, with its record."""
    plans = []
    session.planner.observers = [lambda *plan: plans.append(plan)]
    return plans


def dealt(plans):
    """Index and weight of each slot of plans."""
    return [
        slot for _, plan in plans
        for slot in zip(plan.indices.tolist(), plan.weights.tolist())
    ]


class DrivenTraining:
    """A training by iterations driven as the hook does it,
    with so many batches in flight."""

    def __init__(self,
                 policy=MeanThreshold(),
                 batch_size=2,
                 lookahead=0,
                 max_iters=60,
                 annealing_iter=51,
                 start=0.,
                 dataset=range(SIZE),
                 **kwargs):
        self.batch_size, self.lookahead = batch_size, lookahead
        self.sampler = InfoBatchSampler(dataset, seed=3)
        self.sampler.by_epoch = False
        clock = IterationClock(self.sampler.num_images, batch_size, max_iters,
                               annealing_iter / max_iters, start,
                               self.sampler.num_indices,
                               lookahead * batch_size)
        self.core = Training(dataset, as_policy(policy), self.sampler, clock,
                             **kwargs)
        self.planner, self.tables = self.core.planner, self.core.tables
        self.records, self.slots = [], []
        self.plans = plans_of(self.core)

    def train(self, until):
        """Train until an iteration."""
        core = self.core
        self.sampler.connect(core.draw)
        indices = iter(self.sampler)
        for _ in range(self.lookahead * self.batch_size):
            next(indices)
        while core.iteration < until:
            for _ in range(self.batch_size):
                next(indices)
            self.records += core.begin_batch(self.batch_size, CPU)
            slots = core.own_slots
            self.slots += zip(slots.indices.tolist(), slots.weights.tolist())
            if core.batch.weights is not None:
                losses, predictions = losses_of(slots.indices,
                                                core.iteration - 1)
                core.batch.watch(predictions)
                core.batch.mean(losses).backward()
                core.end_batch()
        return self

    @property
    def saved(self):
        return self.planner.saved_iters(self.sampler.position,
                                        self.core.iteration)

    def resumed_by(self, other):
        """Another training, just set up, that goes on."""
        other.changes = other.core.load_state_dict(
            state_of(self.core), self.core.iteration)
        return other


def loop(session, batch_size, stop=None, save=False, **loader):
    """A loop of one's own, until so many batches: what each step was."""
    loader = DataLoader(
        session.tables.images, batch_size, sampler=session.sampler, **loader)
    by_epoch = isinstance(session.clock, EpochClock)
    steps = []
    if stop == 0:
        return steps
    for _ in range(session.epoch, session.clock.length) if by_epoch else [0]:
        for images in loader:
            losses, predictions = losses_of(images, session.iteration)
            value = session.mean(losses, predictions)
            value.backward()
            weights = session.own_slots.weights
            np.testing.assert_allclose(
                value.item(), (weights * losses.detach().numpy()).mean(), 1e-5)
            steps.append((images.tolist(), weights.tolist(), session.progress))
            if save:
                state_of(session)
            if len(steps) == stop:
                return steps
    return steps
