# Copyright (c) mmib contributors. All rights reserved.
"""Runs of a second with neither a Runner nor a network: the losses follow from
image and iteration."""
import functools
import io
import json
from collections import deque
from itertools import islice

import numpy as np
import torch
from hypothesis import strategies as st

from mmib import InfoBatchSampler
from mmib.openmmlab.batch import BatchContext
from mmib.openmmlab.data.datasets import image_numbers
from mmib.pruning import (EpochPlan, EpsilonGreedy, MeanThreshold, Neyman,
                          QuantileTiers, RandomPruning, ScoreOnly, Tier,
                          as_policy)
from mmib.run import Run
from mmib.schedule import Schedule, StepSize
from mmib.states import to_current, what_changed
from mmib.visits import Entry

SIZE = 13


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
    ScoreOnly,
    functools.partial(Neyman, num_tiers=2, min_keep=0.4, ratio=0.7),
    functools.partial(EpsilonGreedy, epsilon=0.3, period=2),
    functools.partial(Neyman, num_tiers=3, min_keep=0.3),
    lambda: of_any_size,
])


def losses_of(images, iteration):
    """Losses whose gradients at the first column of the predictions have their
    roots as norms."""
    predictions = torch.ones(len(images), 2, requires_grad=True)
    losses = (torch.as_tensor(images) + 1) / (2. + iteration)
    return losses + (predictions[:, 0] - 1) * losses.sqrt(), predictions


def state_of(run):
    """The state of a run or a session as a checkpoint has it."""
    buffer = io.BytesIO()
    torch.save(run.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def facts(records):
    """Records as a file has them, without NaN, which differs from itself."""
    return json.loads(
        json.dumps([record.to_dict() for record in records], allow_nan=False))


def plans_of(run):
    """A list that gets each plan that a run or a session draws, with its
    record."""
    run = getattr(run, '_run', run)
    plans = []
    run._observers = [*run._observers, lambda *plan: plans.append(plan)]
    return plans


def dealt(plans):
    """Index and weight of each slot of plans."""
    return [
        slot for _, plan in plans
        for slot in zip(plan.indices.tolist(), plan.weights.tolist())
    ]


class DrivenTraining:
    """A run driven as the hook drives it, with so many batches in flight. By
    epochs, ``max_iters`` and ``annealing_iter`` count epochs."""

    def __init__(self,
                 policy=MeanThreshold(),
                 batch_size=2,
                 lookahead=0,
                 max_iters=60,
                 annealing_iter=51,
                 start=0.,
                 dataset=range(SIZE),
                 by_epoch=False,
                 drop_last=False,
                 **kwargs):
        policy = as_policy(policy)
        self.batch_size, self.lookahead = batch_size, lookahead
        self.sampler = InfoBatchSampler(dataset, seed=3)
        self.step = StepSize(batch_size, drop_last)
        delta = annealing_iter / max_iters
        if by_epoch:
            size = self.sampler.num_indices
            schedule = Schedule(
                size,
                batch_size,
                max_iters,
                delta,
                start,
                iters_per_epoch=-(-size // batch_size))
        else:
            schedule = Schedule(
                self.sampler.num_images,
                batch_size,
                max_iters,
                delta,
                start,
                first_pass=self.sampler.num_indices,
                lookahead=lookahead * batch_size)
        self.warnings, self.records, self.slots = [], [], []
        self.run = Run(
            image_numbers(dataset),
            policy,
            schedule,
            self.warnings.append,
            seed=self.sampler.seed,
            lockstep=True,
            **kwargs)
        self.batch = BatchContext(only_scores=not policy.prunes)
        self.tables = self.run.tables
        self.plans = plans_of(self.run)

    def train(self, until=None):
        """Train until an iteration, by epochs at most until the end."""
        run, sampler = self.run, self.sampler
        sampler.connect(run)
        if not run.schedule.by_epoch:
            issued = iter(sampler)
            in_flight = deque(islice(issued, self.lookahead * self.batch_size))
            while run.iteration < until:
                in_flight.extend(islice(issued, self.batch_size))
                self._train_on(
                    [in_flight.popleft() for _ in range(self.batch_size)])
            return self
        while run.iteration != until and self._begins_epoch():
            issued = iter(sampler)
            while run.iteration != until and self._next_size():
                self._train_on([*islice(issued, self._next_size())])
            if not self._next_size():
                sampler.end_epoch()
        return self

    def _begins_epoch(self):
        """Begin an epoch, or what is left of one, unless the last is over."""
        run = self.run
        if not self._next_size():
            if run.epoch + 1 == run.schedule.length:
                return False
            run.give_up_rest()
            run.next_plan(run.epoch + 1, self.step)
        self.sampler.set_epoch(run.epoch)
        run.prepare_rest(self.step)
        self.sampler.begin_epoch()
        return True

    def _next_size(self):
        size = self.sampler.batch_size(self.batch_size)
        return 0 if self.step.drop_last and size < self.batch_size else size

    def _train_on(self, indices):
        """A step with the images of these indices."""
        run, begin = self.run, self.run.ledger.position
        slots = run.ledger.batch(begin, len(indices), run.rank, run.world_size,
                                 run.plans.is_annealing(begin))
        assert slots.indices.tolist() == indices
        self.records += run.advance(slots.end)
        self.slots += zip(indices, slots.weights.tolist())
        if slots.annealing:
            run.count_visits(begin)
            return
        weights = np.stack([slots.relative_weights, slots.weights])
        self.batch.set_weights(*torch.from_numpy(weights))
        losses, predictions = losses_of(slots.indices, run.iteration - 1)
        self.batch.watch(predictions)
        loss = self.batch.mean(losses)
        self.batch.watch_total(loss)
        loss.backward()
        run.log.record(
            Entry(slots.numbers, self.batch.scores, self.batch.norms))
        self.batch.clear()

    @property
    def saved(self):
        return self.run.saved_iters()

    def resumed_by(self, other, iteration=None):
        """Another run, just set up, that goes on. A Runner may count more
        iterations."""
        state = state_of(self.run)
        other.changes = what_changed(
            to_current(state), other.run.state_dict(merge=False))
        other.run.load_state_dict(state)
        other.run.count_from(iteration or self.run.iteration)
        return other


def loop(session, batch_size, stop=None, save=False, **loader):
    """A loop of one's own, until so many batches: what each step was."""
    loader, steps = session.loader(batch_size, **loader), []
    schedule = session._run.schedule
    while len(steps) != stop and (not schedule.by_epoch
                                  or session.epoch < schedule.length):
        for slots, batch in loader:
            images = slots.indices.tolist()
            assert not torch.is_tensor(batch) or batch.tolist() == images
            losses, predictions = losses_of(images, session._run.iteration)
            value = session.weigh(losses, slots, predictions).mean()
            value.backward()
            np.testing.assert_allclose(value.item(),
                                       (slots.relative_weights *
                                        losses.detach().numpy()).mean(), 1e-5)
            steps.append((images, slots.weights.tolist(), session.progress))
            if save:
                state_of(session)
            if len(steps) == stop:
                return steps
        if not schedule.by_epoch:
            break
    return steps
