# Copyright (c) mmib contributors. All rights reserved.
"""Loops of one's own, whose every call of `weigh` is compared with the truth.
"""
import bisect
import contextlib
import copy
import math
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from mmib import Session
from mmib.errors import Refusal
from mmib.ranks import world_of_process
from tests.helpers.runs import state_of

EPOCHS = 6
SIZE = 120
# A user of a Session has none of these.
OF_MMENGINE = 'train_dataloader', 'runner', 'custom_hooks', 'hook'


class Samples(Dataset):
    """Points of three classes, each with its true index."""

    def __init__(self, size=SIZE, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(size, 8, generator=generator)
        noise = torch.randn(size, 3, generator=generator)
        mixed = self.inputs @ torch.randn(8, 3, generator=generator)
        self.labels = (mixed + noise).argmax(1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.inputs[index], self.labels[index], index


def network(*layers):
    """Return a small network, always the same one."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 8), *layers, torch.nn.Tanh(), torch.nn.Linear(8, 3))


class Plan(NamedTuple):
    """What the observers of a run were told of a plan."""

    first_slot: int
    weights: dict  # of each image, in the order of the plan
    mean: float
    annealing: bool


def assert_same(one, other):
    """Compare states: no bit may differ."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for values in zip(one, other):
            assert_same(*values)
    elif torch.is_tensor(one):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    else:
        assert one == other or math.isnan(one) and math.isnan(other)


class Facts(NamedTuple):
    """What a rank has weighed, and what its Session makes of it."""

    images: dict  # of each slot that was weighed
    losses: dict  # (slot, loss) of the last visit of each image with a score
    plans: list
    state: dict

    @property
    def scores(self):
        return self.state['tables']['scores'].numpy()

    @property
    def visits(self):
        return self.state['tables']['visits'].numpy()


class Audit:
    """A Session whose calls of :meth:`Session.weigh` are compared with what
    the plans say and with what autograd does.

    A policy must draw an image at most once in a plan.

    Args:
        dataset (Dataset or int): The dataset, or the size of
            :class:`Samples`.
        policy (Policy, optional): See :class:`Session`. Defaults to None.
        **kwargs: Other arguments of :class:`Session`.
    """

    def __init__(self, dataset=SIZE, policy=None, **kwargs):
        if isinstance(dataset, int):
            dataset = Samples(dataset)
        arguments = {'epochs': EPOCHS, 'seed': 0, **kwargs}
        self._make = lambda: Session(dataset, policy, **arguments)
        self.calls = 0
        """int: Calls of `weigh` for training."""
        self.images = {}
        """dict: Image of each slot that was weighed."""
        self.given_up = set()
        """set: Slots that fill no batch, of loaders with `drop_last`."""
        self.losses = {}
        self.plans = []
        """list[Plan]: The plans."""
        self._scales = []
        # The cut of a rest of which nothing was weighed yet.
        self._waiting = None
        self._begin()

    def _begin(self):
        self.session = self._make()
        self.run = self.session._run
        self.run._observers = [self._note_plan]

    def _note_plan(self, record, plan):
        weights = dict(zip(plan.indices.tolist(), plan.weights.tolist()))
        assert len(weights) == len(plan)
        self.plans.append(
            Plan(record.first_slot, weights, record.mean_weight,
                 record.annealing))

    def _note_waiting(self):
        """Note the cut of the rest that the run has taken over."""
        if self._waiting and self._waiting[0] is self.run.stream.numbering:
            self._note_cut(*self._waiting[1:])
            self._waiting = None

    def _note_cut(self, begin, left, cut):
        # The mean weight of a plan stays 1.
        if cut and not self.run.normalize:
            self._scales.append((begin, left / (left - cut)))

    @property
    def planned(self):
        """int: Slots of all plans."""
        return sum(len(plan.weights) for plan in self.plans)

    def resume(self):
        """Go on with a Session that has loaded the state of this one."""
        state = state_of(self.session)
        self._begin()
        self.session.load_state_dict(state)
        return state

    def follow(self, other):
        """Know what another audit has seen, whose state will be loaded."""
        self.plans, self.images = other.plans, other.images
        self.losses, self.calls = other.losses, other.calls

    def go_on(self, facts):
        """Go on where others have stopped, on other ranks."""
        self.session.load_state_dict(facts.state)
        self.plans = [*facts.plans]
        if world_of_process().rank == 0:
            self.images, self.losses = facts.images, facts.losses

    def loader(self, *args, **kwargs):
        return _Loader(self, self.session.loader(*args, **kwargs))

    def weigh(self, losses, slots, images, predictions=None):
        """Weigh losses, and check what comes of it.

        Args:
            losses (Tensor): See :meth:`Session.weigh`.
            slots (Slots): See :meth:`Session.weigh`.
            images (Tensor): True index of each sample.
            predictions (Tensor, optional): See :meth:`Session.weigh`.
        """
        weighed = self.session.weigh(losses, slots, predictions)
        self._note_waiting()
        self.calls += 1
        images = images.tolist()
        assert slots.indices.tolist() == images
        plans = [self._plan_at(number) for number in slots.numbers]
        weights = [plan.weights[image] for plan, image in zip(plans, images)]
        relative = np.divide(weights, [plan.mean for plan in plans])
        scales = [self._scale_at(number) for number in slots.numbers]
        np.testing.assert_allclose(slots.weights, np.multiply(weights, scales),
                                   1e-6)
        values = losses.detach().cpu().numpy()
        # The mean weight in a record has 6 decimals.
        np.testing.assert_allclose(weighed.detach().cpu(), relative * values,
                                   2e-6)
        gradient, = torch.autograd.grad(
            weighed.sum(), losses, retain_graph=True)
        assert gradient.tolist() == slots.weights.tolist()
        for number, image, loss, plan in zip(slots.numbers.tolist(), images,
                                             values.tolist(), plans):
            assert self.images.setdefault(number, image) == image
            # Of two slots the later one counts, of two calls the second one.
            assert plan.annealing or not slots.annealing
            if not slots.annealing and (number >= self.losses.get(
                    image, (-1, ))[0]):
                self.losses[image] = number, loss
        return weighed

    def _plan_at(self, number):
        return self.plans[bisect.bisect_right(
            self.plans, number, key=lambda plan: plan.first_slot) - 1]

    def _scale_at(self, number):
        """Return by what a slot makes up for tails that were given up when a
        rest of its plan was dealt in other steps."""
        first_slot = self._plan_at(number).first_slot
        return np.prod([
            scale for begin, scale in self._scales
            if first_slot <= begin <= number
        ])

    def facts(self):
        """Return what has happened. Call this on all ranks."""
        return Facts({**self.images}, {**self.losses}, [*self.plans],
                     copy.deepcopy(self.session.state_dict()))

    def check(self, expected=None):
        """Check the tables, and how many slots were weighed."""
        check_facts([self.facts()])
        if expected is not None:
            assert len(self.images) == expected


class _Loader:
    """A loader whose iterators tell an audit what they leave out."""

    def __init__(self, audit, loader):
        self._audit, self._loader = audit, loader

    def __iter__(self):
        audit, run = self._audit, self._audit.run
        dealer = audit.session._dealer
        before, position = run.stream.newest, None
        reached = run.stream.position
        for slots, batch in self._loader:
            rank, world_size = run.world
            begin = int(slots.numbers[0]) - rank
            rest = dealer._cursor and dealer._cursor.rest
            stream = rest.stream if rest else run.stream
            newest = stream.newest
            # Slots that were repeated for two ranks may go first.
            if (position is None and before
                    and before.first_slot == newest.first_slot):
                own = before.first_slot + before.kept - begin
                audit._note_waiting()
                audit._waiting = (slots.numbering, begin, own,
                                  before.kept - newest.kept)
            assert slots.annealing == audit._plan_at(begin).annealing
            position = int(slots.numbers[-1]) - rank + world_size
            # What fills no batch goes with the last one.
            self._note_tail(position, slots.end)
            yield slots, batch
        reader = dealer._cursor
        if reader.gives_up:
            audit.given_up |= {*range(reached, reader.begin)}
        self._note_tail(position or reader.begin, run.stream.end)

    def _note_tail(self, begin, end):
        loader, run = self._loader, self._audit.run
        size = loader._batch_size if loader._drop_last else 1
        assert 0 <= end - begin < size * run.world.size
        self._audit.given_up |= {*range(begin, end)}


def check_facts(of_ranks):
    """Check what all ranks have weighed.

    Args:
        of_ranks (list[Facts]): The facts of each rank.

    Returns:
        Facts: What all ranks together have weighed.
    """
    images, losses, first = {}, {}, of_ranks[0]
    for facts in of_ranks:
        assert not images.keys() & facts.images.keys()
        images |= facts.images
        for image, visit in facts.losses.items():
            losses[image] = max(losses.get(image, visit), visit)
        assert facts.plans == first.plans
        assert_same(facts.state, first.state)
    scores = np.ones_like(first.scores)
    for image, (_, loss) in losses.items():
        scores[image] = loss
    np.testing.assert_array_equal(first.scores, scores)
    visits = np.bincount([*images.values()], minlength=len(scores))
    np.testing.assert_array_equal(first.visits, visits)
    return first._replace(images=images, losses=losses)


class Trainer:
    """A network that is trained in a loop of one's own.

    Args:
        audit (Audit): The Session.
        model (Module, optional): The network. If None, :func:`network`.
            Defaults to None.
    """

    def __init__(self, audit, model=None):
        self.audit = audit
        self.model = model or network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    @property
    def session(self):
        return self.audit.session

    def weigh(self, slots, batch, part=slice(None), scale=1.):
        """Return the weighed losses of a part of a batch."""
        inputs, labels, images = (each[part] for each in batch)
        logits = self.model(inputs)
        losses = scale * F.cross_entropy(logits, labels, reduction='none')
        return self.audit.weigh(losses, slots[part], images, logits)

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def step(self, slots, batch):
        self.update(self.weigh(slots, batch).mean())

    def train(self, loader, each=None):
        """Train until the end. Batches for which ``each(epoch, number, slots,
        batch)`` returns True are skipped."""
        for epoch in self.iterators():
            for number, (slots, batch) in enumerate(loader):
                if each is None or not each(epoch, number, slots, batch):
                    self.step(slots, batch)
        return self

    def iterators(self):
        """Yield the epoch for each iterator that the run needs."""
        if not self.audit.run.schedule.by_epoch:
            yield from [0] * (self.session.progress < 1)
            return
        while self.session.epoch < self.session.epochs:
            yield self.session.epoch

    def parameters(self):
        return torch.cat(
            [p.detach().flatten() for p in self.model.parameters()])


@contextlib.contextmanager
def refused(match):
    """Expect a Refusal that speaks of nothing but the Session."""
    with pytest.raises(Refusal, match=match) as caught:
        yield
    check_words(str(caught.value))


@contextlib.contextmanager
def said(*keywords):
    """Expect warnings with these keywords, in this order and no others, which
    speak of nothing but the Session."""
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter('always')
        yield
    texts = [str(record.message) for record in records]
    texts = [text for text in texts if text.startswith('InfoBatch')]
    assert len(texts) == len(keywords), texts
    for text, keyword in zip(texts, keywords):
        assert keyword in text, text
        check_words(text)


def check_words(text):
    """Check that a text speaks of nothing but the Session."""
    assert not [word for word in OF_MMENGINE if word in text], text
