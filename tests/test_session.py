# Copyright (c) mmib contributors. All rights reserved.
"""Loops of one's own."""
import functools
import itertools
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.utils import apply_to
from torch.utils.data import DataLoader

from mmib import Session
from mmib.errors import Refusal
from mmib.pruning import Budget, EpochPlan, Neyman, RandomPruning, ScoreOnly
from tests.system.processes import run_ranks
from tests.training import (POLICIES, SIZE, dealt, loop, losses_of, plans_of,
                            state_of)


def own(policy=None, stream=False, **kwargs):
    arguments = dict(epochs=6, delta=0.7, seed=3, stream=stream)
    return Session(range(SIZE), policy, **{**arguments, **kwargs})


def slots_of(steps):
    return [slot for step in steps for slot in zip(*step[:2])]


@pytest.mark.parametrize('stream', [False, True])
def test_a_loop_of_ones_own(stream):
    """A first pass of the baseline, pruned ones, and annealing, in 0.6 times
    the slots of the baseline."""
    session = own(stream=stream, epochs=10)
    plans = plans_of(session)
    steps = loop(session, 4)
    assert slots_of(steps) == dealt(plans)
    images = [image for image, _ in slots_of(steps)]
    sampler = (InfiniteSampler if stream else DefaultSampler)(
        range(SIZE), seed=3)
    assert images[:SIZE] == list(itertools.islice(sampler, SIZE))
    assert len(images) == pytest.approx(0.6 * 10 * SIZE, abs=2)
    progress = [step[2] for step in steps]
    assert progress == sorted(progress)
    assert progress[-1] == 1 and progress[0] < 0.1
    full = [plan.is_full for _, plan in plans]
    assert full[:2] == [True, False] and full[-1] and sum(full) < len(full) / 2
    # All that was seen is in the tables.
    assert session.tables.visits.tolist() == np.bincount(images).tolist()


@given(POLICIES, st.booleans(), st.booleans(), st.integers(1, 5), st.data())
@settings(max_examples=25)
def test_going_on_is_exact(policy, stream, drop_last, batch_size, data):
    """At any batch, also at the last of an epoch, before the first one and
    after the end. Saving changes nothing, nor what the session that goes on
    was trained on before."""
    one, two, three = (
        own(policy(), stream, drop_last=drop_last) for _ in range(3))
    whole = loop(one, batch_size, save=True, drop_last=drop_last)
    at = data.draw(st.integers(0, len(whole)))
    part = loop(two, batch_size, at, drop_last=drop_last)
    if data.draw(st.booleans()):
        given_up = data.draw(st.integers(0, len(whole)))
        loop(three, batch_size, given_up, drop_last=drop_last)
    assert not three.load_state_dict(state_of(two))
    rest = loop(three, batch_size, drop_last=drop_last)
    assert part + rest == whole
    for session in (one, three):
        session.merge()
    assert str(three.tables.state_dict()) == str(one.tables.state_dict())


@pytest.mark.parametrize('stream, persistent', [(False, True), (True, False)])
def test_going_on_with_workers(stream, persistent):
    """What was in flight is drawn again."""
    kwargs = dict(drop_last=True)
    workers = dict(kwargs, num_workers=2, persistent_workers=persistent)
    whole = loop(own(Neyman(), stream, **kwargs), 2, **workers)
    if not stream:
        # By epochs nothing is in flight when a plan is drawn.
        assert whole == loop(own(Neyman(), **kwargs), 2, **kwargs)
    for at in (len(whole) // 2, len(whole) - 3):
        part, rest = (own(Neyman(), stream, **kwargs) for _ in range(2))
        steps = loop(part, 2, at, **workers)
        rest.load_state_dict(state_of(part))
        assert steps + loop(rest, 2, **workers) == whole


class OnDevice(torch.Tensor):
    """A tensor that numpy can't read, as on a GPU."""

    def numpy(self):
        raise TypeError

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_a_state_that_was_loaded_to_the_device():
    part, rest = own(), own()
    steps = loop(part, 4, 6)
    rest.load_state_dict(
        apply_to(
            state_of(part), torch.is_tensor,
            lambda tensor: tensor.as_subclass(OnDevice)))
    assert steps + loop(rest, 4) == loop(own(), 4)


@given(POLICIES, st.booleans(), st.integers(1, 5), st.integers(1, 5),
       st.integers(1, 12))
@settings(max_examples=25)
def test_a_loop_with_another_batch_size(policy, stream, before, after, at):
    """Each slot of each plan comes once."""
    part, rest = own(policy(), stream), own(policy(), stream)
    plans = plans_of(part)
    steps = loop(part, before, at)
    rest.load_state_dict(state_of(part))
    rest.planner.observers = part.planner.observers
    assert slots_of(steps + loop(rest, after)) == dealt(plans)
    assert rest.progress == 1


@pytest.mark.parametrize('epoch', range(7))
def test_a_loop_that_begins_afresh(epoch):
    """A full epoch of the baseline, then pruned ones, but in annealing."""
    session, whole = own(), own()
    session.start_afresh(7 * epoch, epoch, 2)
    plans, of_whole = plans_of(session), plans_of(whole)
    loop(session, 2)
    loop(whole, 2)
    assert len(plans) == 6 - epoch
    assert session.clock.first_pruned == epoch + 1
    for number, (record, plan) in enumerate(plans, epoch):
        assert record.covered == number
        assert plan.is_full is (number == epoch or number >= 4)
        if of_whole[number][1].is_full:
            assert dealt([of_whole[number]]) == dealt([(record, plan)])


@pytest.mark.parametrize('stream', [False, True])
def test_what_only_scores(stream):
    """The baseline to the last bit, and a score for each image."""
    session = own(ScoreOnly(), stream)
    for images in DataLoader(range(SIZE), 4, sampler=session.sampler):
        losses, predictions = losses_of(images, session.iteration)
        value = session.mean(losses, predictions)
        assert torch.equal(value, losses.mean())
        value.backward()
        if session.iteration == SIZE:
            break
    session.state_dict()
    assert session.tables.last_visit.all()


def train_on_ranks(rank, results, states):
    """Go on from a state of one rank, and once more from one's own."""
    results[rank] = []
    for stream, state in zip((False, True), states):
        plans, steps, states = [], [], []
        for stop in (2, None):
            session = own(stream=stream)
            session.load_state_dict(state)
            drawn = plans_of(session)
            steps += loop(session, 2, stop)
            plans += [plan.indices.tolist() for _, plan in drawn]
            state = state_of(session)
            states.append(state)
        assert session.progress == 1
        results[rank].append(([step[0] for step in steps], plans, states[0]))


def test_other_ranks():
    """One rank, then two, then one: all draw the same plans, and deal each of
    their slots once, but for those that fill a step by epochs."""
    states = []
    for stream in (False, True):
        part = own(stream=stream)
        loop(part, 2, 9)
        states.append(state_of(part))
    results = run_ranks(functools.partial(train_on_ranks, states=states), 2)
    for stream, state, of_ranks in zip((False, True), states, zip(*results)):
        steps, plans, saved = zip(*of_ranks)
        assert plans[0] == plans[1] and str(saved[0]) == str(saved[1])
        expected = []
        for plan in (state['sampler']['slots']['indices'].tolist(), *plans[0]):
            expected += plan if stream else plan + plan[:len(plan) % 2]
        dealt = [
            index for batches in zip(*steps) for slots in zip(*batches)
            for index in slots
        ]
        assert dealt == expected[:len(dealt)]
        assert 0 <= len(expected) - len(dealt) <= stream
        alone = own(stream=stream)
        alone.load_state_dict(saved[0])
        left = saved[0]['sampler']['slots']['indices'].tolist()
        indices = [index for step in loop(alone, 2) for index in step[0]]
        assert left and indices[:len(left)] == left


def test_validation_is_left_alone():
    """Losses without a gradient get their mean, anywhere in an epoch."""
    plain, session = own(Neyman()), own(Neyman())
    expected = loop(plain, 4)

    mean = session.mean

    def mean_and_validate(losses, predictions):
        value = mean(losses, predictions)
        with torch.no_grad():
            assert mean(losses * 2).item() == (2 * losses).mean().item()
        assert mean(torch.ones(7, 2)) == 1
        return value

    session.mean = mean_and_validate
    assert loop(session, 4) == expected
    assert str(state_of(session)) == str(state_of(plain))


def step(session, images, scale=1., with_norms=True):
    """A step of a loop of one's own."""
    predictions = torch.ones(len(images), 1, requires_grad=True)
    losses = scale * predictions[:, 0] * (images + 1)
    session.mean(losses, predictions if with_norms else None).backward()


@pytest.mark.parametrize('score', ['loss', 'gradient'])
def test_weight_0_has_a_loss_and_no_gradient(score):
    """The score stays, and this is no loss that isn't finite."""

    def policy(scores, rng):
        return EpochPlan(np.arange(SIZE), np.float32([2, 0, *11 * [1]]))

    session = own(policy)
    session.tables.score = score
    for scale in (1., 2.):
        for images in DataLoader(range(SIZE), 4, sampler=session.sampler):
            step(session, images, scale)
    session.state_dict()
    expected = 2 * np.arange(1., SIZE + 1)
    if score == 'gradient':
        expected[1] = 2.  # Of the first pass.
    np.testing.assert_allclose(session.tables.scores, expected, rtol=1e-5)
    assert session.tables.non_finite == 0


@pytest.mark.parametrize('scale', [1., -1.])
def test_losses_stand_in_for_norms(scale):
    """If the first batch has none, said once. Any loss is a score, also -1."""
    session = own(RandomPruning(0.5))
    loader = DataLoader(range(SIZE), 4, sampler=session.sampler)
    with mock.patch('mmib.training.print_log') as said:
        for images in itertools.chain(loader, loader, loader):
            step(session, images, scale, with_norms=False)
    session.merge()
    scores = [scale * (i + 1) for i in range(SIZE)]
    assert session.tables.scores.tolist() == scores
    assert session.worth.value == 1
    said.assert_called_once()
    assert "can't be seen" in said.call_args.args[0]
    rest = own(RandomPruning(0.5))
    rest.load_state_dict(state_of(session))
    assert rest.lacks_norms
    session = own()
    session.tables.score = 'gradient'
    images = next(iter(DataLoader(range(SIZE), 4, sampler=session.sampler)))
    step(session, images, with_norms=False)
    with pytest.raises(Refusal, match='score of an image is the norm of the'):
        session.end_batch()


def test_a_batch_without_norms_does_not_count():
    session = own(RandomPruning(0.5))
    loader = DataLoader(range(SIZE), SIZE, sampler=session.sampler)
    for epoch in range(3):
        step(session, next(iter(loader)), with_norms=epoch < 2)
    session.state_dict()
    assert session.tables.last_visit.max() == session.iteration
    assert not session.lacks_norms and not session.tables.sums.any()


def test_epochs_without_a_batch():
    """With `drop_last` an epoch whose plan fills no batch is over, which is
    said."""
    session = own(RandomPruning(0.5), drop_last=True)
    loader = DataLoader(
        range(SIZE), 8, sampler=session.sampler, drop_last=True)
    sizes = []
    with mock.patch('mmib.session.print_log') as said:
        for epoch in range(session.epoch, 6):
            assert session.epoch == epoch
            sizes.append(0)
            for images in loader:
                step(session, images)
                sizes[-1] += len(images)
    # 13, 7, 7, 7 and 13 images, of which 7 are none.
    assert sizes == [8, 0, 0, 0, 8, 8] and session.epoch == 6
    assert [call.args[0].split()[2:8] for call in said.call_args_list] == [
        f'{epoch} ended with 7 images of'.split() for epoch in (2, 3, 4)
    ]


@pytest.mark.parametrize(
    'before, after, epoch, images',
    [
        # 12 of 20 are left: two ranks take 4 each, and leave the rest.
        ((1, 8, 1), (2, 4), 0, 4),
        # 4 of 20 are left, which are no batch of two ranks: the epoch is over.
        ((2, 4, 2), (1, 8), 1, 16),
    ])
def test_drop_last_on_other_ranks(before, after, epoch, images):
    """Whether an epoch is over is kept, whatever the next batches are."""

    def on_ranks(ranks, batch_size):
        session = Session(
            range(20), RandomPruning(0.2), 3, drop_last=True, seed=0)
        session.sampler.world_size = ranks
        return session, DataLoader(
            range(20), batch_size, sampler=session.sampler, drop_last=True)

    *before, steps = before
    session, loader = on_ranks(*before)
    for batch in itertools.islice(loader, steps):
        step(session, batch)
    state = session.state_dict(merge=False)
    session, loader = on_ranks(*after)
    session.load_state_dict(state)
    assert session.epoch == epoch
    assert sum(map(len, loader)) == images


def test_a_loop_without_a_loss():
    """Nothing counts, which is said where all was delivered."""
    session = own()
    loader = DataLoader(range(SIZE), 4, sampler=session.sampler)
    for repeat in range(3):
        with mock.patch('mmib.session.print_log') as said:
            for images in loader:
                continue
    assert 'epoch 1 begins again with 13 images' in said.call_args.args[0]
    assert len(loop(session, 4)) == len(loop(own(), 4))


def test_a_loop_that_breaks():
    """A new iterator ends the epoch that is open, up to the last one, and says
    what was left."""
    session = own(RandomPruning(0.5))
    loader = DataLoader(range(SIZE), 2, sampler=session.sampler)
    for epoch in range(6):
        with mock.patch('mmib.session.print_log') as said:
            step(session, next(iter(loader)))
        assert session.clock.epoch == epoch
    assert 'epoch 5 ended with 11 images' in said.call_args.args[0]
    assert session.sampler.position == 13 + 3 * 7 + 13 + 2
    assert session.epoch == 5
    with pytest.raises(Refusal, match='The 6 `epochs` of the Session are ov'):
        next(iter(loader))


@pytest.mark.parametrize('wrong, match', [
    *((dict(epochs=epochs), '`epochs` of a Session must be 2 or more')
      for epochs in (None, 1, 2.5)),
    *((dict(arguments), '`delta` of a Session must be in .* less than `delta`')
      for arguments in (dict(delta=1.2), dict(start=-0.1), dict(start=0.7))),
    (dict(delta=0.1), 'Nothing would be pruned: annealing begins at epoch 1 '
     'of 6'),
    (dict(stream=True, delta=0.2), 'begins at iteration 9 of 47'),
    (dict(stream=True, epochs=3), r'0.6 of 3 `epochs` are 1.77 passes .* '
     'at least 4 `epochs`'),
])
def test_arguments_that_are_refused(wrong, match):
    with pytest.raises(Refusal, match=match):
        own(**wrong)


def test_a_stream_has_no_epochs():
    with pytest.raises(Refusal, match='counts no epochs: take one iterator'):
        assert own(stream=True).epoch


def test_a_budget_that_cannot_be_met():
    """The first plan may know too few scores, so this is said once, later."""
    session = own(Budget(ratio=0.3))
    with mock.patch('mmib.training.print_log') as said:
        steps = loop(session, 4)
    assert said.call_args.args[0].startswith('InfoBatch: the budget needs')
    assert said.call_count == 1 and len(steps) > 0.3 * 6 * SIZE / 4


def test_batches_that_are_refused():
    """Before anything is trained."""
    for stream in (False, True):
        session = own(stream=stream)
        images = iter(DataLoader(range(SIZE), 4, sampler=session.sampler))
        with pytest.raises(Refusal, match=r"shape \(4, 2\).*reduction='none'"):
            session.mean(losses_of(next(images), 0)[0][:, None].repeat(1, 2))
        step(session, torch.arange(4))
        next(images)
        with pytest.raises(
                Refusal, match='got 3 losses where 4 are due: call'):
            step(session, torch.arange(3))
    with pytest.raises(Refusal, match='Something else than the training loop'):
        next(iter(DataLoader(range(SIZE), 4, sampler=session.sampler)))
