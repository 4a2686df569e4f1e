# Copyright (c) mmib contributors. All rights reserved.
"""Looks at batches, and passes in which nothing is weighed."""
import functools
import warnings

import numpy as np
import pytest
import torch

from mmib import Session
from mmib.pruning import MeanThreshold, RandomPruning
from tests.helpers.audit import assert_same, refused, said
from tests.helpers.processes import run_ranks
from tests.helpers.runs import state_of

SIZE = 99


class Numbers(torch.utils.data.Dataset):
    """The samples are their own indices."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index


def session_of(policy=RandomPruning(0.4), **kwargs):
    return Session(Numbers(), policy, epochs=6, seed=0, **kwargs)


def weigh(session, slots, batch):
    """Weigh losses that follow from the images. Return the images."""
    assert slots.indices.tolist() == batch.tolist()
    weight = torch.ones(1, requires_grad=True)
    losses = weight * (batch.float() + 1)
    session.weigh(losses, slots).mean().backward()
    return batch.tolist()


def train(session, loader, stop=None):
    """Weigh the batches of an iterator, at most so many. Return the images and
    the weights."""
    found = []
    for number, (slots, batch) in enumerate(loader):
        if number == stop:
            break
        found += zip(weigh(session, slots, batch), slots.weights.tolist())
    return found


def epochs_with_looks(look, num_workers=0, **kwargs):
    """A run in which each epoch is interrupted by a look. Return all that was
    trained on, and the state at the end."""
    session = session_of(**kwargs)
    loader = session.loader(10, num_workers=num_workers)
    found = train(session, loader)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='.* goes on with the')
        while session.epoch < 6:
            found += train(session, loader, 2)
            look(session)
            found += train(session, loader)
    return found, state_of(session)


@pytest.mark.parametrize('policy, batch_size, num_workers',
                         [(RandomPruning(0.4), 7, 0),
                          (RandomPruning(0.4), 33, 2),
                          (MeanThreshold(), 33, 0)])
def test_a_look_changes_nothing(policy, batch_size, num_workers):
    """Of a batch of another size, within a pruned epoch: the same images come
    with the same weights."""

    def look(session):
        for _ in range(2):
            next(iter(session.loader(batch_size)))

    found, state = epochs_with_looks(look, num_workers, policy=policy)
    expected, expected_state = epochs_with_looks(
        lambda session: None, num_workers, policy=policy)
    assert found == expected
    assert_same(state, expected_state)


def within_an_epoch(batch_size=10, **kwargs):
    """A Session after two batches of a pruned epoch of 60 images, and the
    iterator of these batches."""
    session = session_of(**kwargs)
    loader = session.loader(batch_size)
    train(session, loader)
    batches = iter(loader)
    for _ in range(2):
        weigh(session, *next(batches))
    return session, batches


@pytest.mark.filterwarnings('ignore:.* goes on with the')
def test_older_slots_may_be_weighed_until_newer_ones_are():
    """Slots that are left out of the rest for another batch size would have
    two fates otherwise."""
    session, batches = within_an_epoch()
    older = [next(batches) for _ in range(2)]
    newer = iter(session.loader(33))
    slots, batch = next(newer)
    weigh(session, *older[0])
    # The older batch moved the position, so the rest is another one.
    with refused('older iterator'):
        next(newer)
    with refused('`slots`'):
        weigh(session, slots, batch)
    weigh(session, *older[1])
    newer = iter(session.loader(15))
    weigh(session, *next(newer))
    with refused('`slots`'):
        weigh(session, *older[1])


@pytest.mark.filterwarnings('ignore:.* goes on with the')
@pytest.mark.parametrize('batch_size, given_up', [(10, 40), (33, 33)])
def test_a_pass_without_weigh_says_what_it_gives_up(batch_size, given_up):
    """The epoch is over, as something of its plan was weighed before."""
    session, _ = within_an_epoch()
    assert session.epoch == 1
    count = sum(len(slots) for slots, _ in session.loader(batch_size))
    assert count == given_up and session.epoch == 2
    # A framework may hold the batches, and weigh them later.
    with said(f'{given_up} images'):
        train(session, session.loader(10))
    assert session.epoch == 3


@pytest.mark.filterwarnings('ignore:.* goes on with the')
def test_a_pass_that_breaks_gives_up_nothing():
    session, _ = within_an_epoch()
    loader, epoch = session.loader(10), session.epoch
    for number, _ in enumerate(loader):
        if number == 2:
            break
    assert len(train(session, loader)) == 40 and session.epoch == epoch + 1


@pytest.mark.filterwarnings('ignore:.* goes on with the')
@pytest.mark.parametrize('stream', [False, True])
def test_a_rest_that_fills_no_batch_is_given_up(stream):
    """With `drop_last`, when the iterator begins, which then is empty. The
    number of images is in the warning."""
    session = session_of(stream=stream)
    loader = session.loader(10)
    if not stream:
        train(session, loader)
        train(session, loader, 4)
    else:
        train(session, loader, (session.num_samples - 20) // 10)
    left = 20 if not stream else session.num_samples % 10 + 20
    epoch = None if stream else session.epoch
    with said(*['epoch 2'] * (not stream), f' {left} images'):
        assert list(session.loader(50, drop_last=True)) == []
    if stream:
        assert session.progress == 1
        # A loop may begin one iterator more.
        assert list(loader) == []
        with refused('is over'):
            next(iter(loader))
    else:
        assert session.epoch == epoch + 1


def look_on_ranks(rank, results):
    """States of runs on two ranks, of which one looks alone, skips all of the
    newest batches alone, or weighs them with the other."""
    states = []
    for who in ((), (0, ), (0, 1)):
        session = session_of()
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            train(session, session.loader(5))
            train(session, session.loader(5), 2)
            for slots, batch in session.loader(17):
                if rank in who:
                    weigh(session, slots, batch)
                break
            state = state_of(session)
            rest = train(session, session.loader(5))
        states.append((state, len(rest)))
    results[rank] = states


def test_ranks_go_on_with_one_rest():
    """All ranks go on with a cut rest if one of them has weighed its slots."""
    one, other = run_ranks(functools.partial(look_on_ranks), 2)
    for (state, count), (other_state, other_count) in zip(one, other):
        assert_same(state, other_state)
        assert count == other_count
    # 60 images, 20 of which were weighed; a step of 34 slots leaves 6 out.
    assert [count for _, count in one] == [20, 30, 30]
    assert np.mean([state['stream']['position'] for state, _ in one[1:]]) > 99
