# Copyright (c) mmib contributors. All rights reserved.
"""Runs of a second with neither MMEngine nor a network: the losses follow from
image and step."""
import functools
import io
import itertools
import json

import numpy as np
import torch
from hypothesis import strategies as st

from mmib.pruning import (EpochPlan, EpsilonGreedy, MeanThreshold, Neyman,
                          QuantileTiers, RandomPruning, ScoreOnly, Tier,
                          as_policy)
from mmib.run.run import Run
from mmib.scores.log import Entry
from mmib.scores.stretch import weights_of
from mmib.stream.schedule import Schedule, StepSize

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


def losses_of(images, step):
    """Losses whose gradients at the first column of the predictions have their
    roots as norms."""
    predictions = torch.ones(len(images), 2, requires_grad=True)
    losses = (torch.as_tensor(images) + 1) / (2. + step)
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


def baseline_epoch(size, epoch=0, seed=3):
    """The indices of an epoch of the baseline, as MMEngine's DefaultSampler
    shuffles them."""
    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(size, generator=generator).tolist()


def baseline_stream(size, count, seed=3):
    """The first indices of pass after pass of the baseline, as MMEngine's
    InfiniteSampler shuffles them."""
    generator = torch.Generator().manual_seed(seed)
    passes = [
        torch.randperm(size, generator=generator).tolist()
        for _ in range(-(-count // size))
    ]
    return [*itertools.chain(*passes)][:count]


class DrivenRun:
    """A run driven as the hook drives one, with so many batches in flight.

    Args:
        policy (Policy or Callable): Draws the plans.
        batch_size (int): Slots of a step.
        lookahead (int): Batches in flight.
        max_steps (int): Steps of the run, by epochs epochs.
        annealing_step (int): The step, by epochs the epoch, with which
            annealing begins.
        start (float): See :class:`Schedule`.
        images (np.ndarray, optional): See :class:`Run`. If None, ``size``
            images.
        size (int): Slots of a full pass.
        by_epoch (bool): Whether the run counts epochs.
        drop_last (bool): Whether slots that fill no step are given up.
        **kwargs: Other arguments of :class:`Run`.
    """

    def __init__(self,
                 policy=MeanThreshold(),
                 batch_size=2,
                 lookahead=0,
                 max_steps=60,
                 annealing_step=51,
                 start=0.,
                 images=None,
                 size=SIZE,
                 by_epoch=False,
                 drop_last=False,
                 **kwargs):
        images = np.arange(size) if images is None else images
        self.batch_size, self.lookahead = batch_size, lookahead
        self.step = StepSize(batch_size, drop_last)
        self.num_steps = 0
        self.warnings, self.records, self.slots = [], [], []
        schedule = self.schedule_of(size, max_steps,
                                    annealing_step / max_steps, start,
                                    len(images), by_epoch)
        self.run = Run(
            images,
            as_policy(policy),
            schedule,
            self.warnings.append,
            seed=3,
            every_rank_trains=True,
            **self.more_arguments(),
            **kwargs)
        self.table = self.run.table
        self.plans = plans_of(self.run)

    def schedule_of(self, size, max_steps, delta, start, first_pass, by_epoch):
        return Schedule(
            size,
            max_steps,
            size if by_epoch else self.batch_size,
            delta,
            start,
            by_epoch=by_epoch,
            first_pass=first_pass,
            min_gap=self.lookahead * self.batch_size)

    def more_arguments(self):
        return {}

    def train(self, until=None):
        """Train until a step, by epochs at most until the end."""
        run = self.run
        if not run.schedule.by_epoch:
            while self.num_steps < until:
                ahead = (self.lookahead + 1) * self.batch_size
                while run.stream.left < ahead:
                    run.next_plan()
                self._train_on(self.batch_size)
            return self
        while self.num_steps != until and self._begins_epoch():
            while self.num_steps != until and self._next_size():
                self._train_on(self._next_size())
        return self

    def _begins_epoch(self):
        """Begin an epoch, or what is left of one, unless the last is over."""
        run = self.run
        if not self._next_size():
            schedule = run.schedule
            if run.epoch == schedule.length // schedule.pass_length:
                return False
            run.stream.advance(run.stream.end)
            run.next_plan(self.step)
        run.go_on_with(run.rest_for(self.step))
        return True

    def _next_size(self):
        size = min(self.batch_size, self.run.stream.left)
        return 0 if self.step.drop_last and size < self.batch_size else size

    def _train_on(self, size):
        """A step with the next slots."""
        run, begin = self.run, self.run.stream.position
        slots = run.stream.batch(begin, size, run.world)
        self.records += [
            plan.record for plan in run.stream.begun(begin, slots.end)
        ]
        self.slots += zip(slots.indices.tolist(), slots.weights.tolist())
        if slots.annealing:
            numbers = np.arange(begin, slots.end)
            run.table.count_visits(run.stream.at(numbers).indices)
        run.stream.advance(slots.end)
        if not slots.annealing:
            losses, predictions = losses_of(slots.indices, self.num_steps)
            entry = Entry(
                slots.numbers,
                torch.empty(len(losses)),
                weights=weights_of(slots, losses.device))
            entry.awaits_norms = True
            predictions.register_hook(entry.note_gradient)
            entry.weigh(losses).mean().backward()
            run.log.record(entry)
        self.num_steps += 1

    @property
    def saved(self):
        """Slots that were saved."""
        place = self.run.stream.place
        return place.covered - place.spent

    def resumed_by(self, other):
        """Another run, just set up, that goes on."""
        other.changes = other.run.load_state_dict(state_of(self.run))
        other.num_steps = self.num_steps
        return other


def loop(session, batch_size, stop=None, save=False, **loader):
    """A loop of one's own, until so many batches: what each step was."""
    loader, steps = session.loader(batch_size, **loader), []
    schedule = session._run.schedule
    while len(steps) != stop and (not schedule.by_epoch
                                  or session.epoch < session.epochs):
        for slots, batch in loader:
            images = slots.indices.tolist()
            assert not torch.is_tensor(batch) or batch.tolist() == images
            position = session._run.stream.position
            losses, predictions = losses_of(images, position)
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
