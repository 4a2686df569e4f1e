# Copyright (c) mmib contributors. All rights reserved.
"""States that mmib 1.0.0 wrote, of version 2, go on as they did there."""
from pathlib import Path

import pytest
import torch

from mmib import Session
from mmib.pruning import Neyman
from tests.training import SIZE, DrivenTraining, loop, state_of

STATES = torch.load(
    Path(__file__).parent / 'data/version2.pth', weights_only=True)
"""dict: State of each run below at some place, and the images and weights of
all slots from there to the end, with which mmib 1.0.0 went on. The losses are
those of :func:`tests.training.losses_of`. Equal tensors share their memory in
the file.

By epochs the batch size is 1. With larger ones an epoch ends in a smaller step
today only where the baseline's does, and mmib 1.0.0 had others there."""


def policy():
    return Neyman(num_tiers=3, min_keep=0.3)


def session(stream=False):
    return Session(
        range(SIZE), policy(), epochs=6, delta=5 / 6, seed=3, stream=stream)


def expected(name):
    state = STATES[name]
    return list(zip(state['images'].tolist(), state['weights'].tolist()))


def slots_of(steps):
    return [slot for step in steps for slot in zip(*step[:2])]


def by_iterations():
    """With 3 plans at once, as so many batches are in flight."""
    return DrivenTraining(policy(), 2, 7)


def by_epochs():
    return DrivenTraining(
        policy(), 1, max_iters=6, annealing_iter=5, by_epoch=True)


@pytest.mark.parametrize('name, make, until', [
    ('iterations', by_iterations, 60),
    ('epochs', by_epochs, None),
])
def test_a_run_goes_on(name, make, until):
    """In MMEngine's loops."""
    training = make()
    training.run.load_state_dict(STATES[name]['state'])
    training.train(until)
    assert training.slots == expected(name)
    # What is there of the plans and images goes on too.
    whole = make().train(until)
    state, of_whole = state_of(training.run), state_of(whole.run)
    assert facts_of(state) == pytest.approx(facts_of(of_whole), rel=1e-6)


@pytest.mark.parametrize('name', ['num_strata', 'num_tiers'])
def test_a_state_with_older_arguments(name):
    """The first states of version 3 have other arguments of Neyman, and lack
    what a run that has started afresh didn't spend."""
    one, two = (session() for _ in range(2))
    loop(one, 1, 40)
    state = state_of(one)
    del state['schedule']['unspent']
    state['policy'] = f'Neyman({name}=3, min_keep=0.3, ratio=0.6)'
    assert two._run.load_state_dict(state) == []
    two._dealer.reset()
    assert slots_of(loop(one, 1)) == slots_of(loop(two, 1))


def facts_of(state):
    tables, memory = state['tables'], state['memory']
    return [
        state['iteration'], state['epoch'], state['saved_iters'],
        state['ledger']['position'], memory['mean_score'],
        *memory['mean_ratio'], *tables['scores'].tolist(),
        *tables['averages'].tolist(), *tables['last_visit'].tolist(),
        *tables['visits'].tolist(), *tables['pruned'].tolist(),
        *tables['sums'].flatten().tolist()
    ]


@pytest.mark.parametrize('name, epoch', [
    ('session_open', 3),
    ('session_over', 3),
    ('session_closed', 3),
    ('session_left', 2),
    ('session_stream', None),
])
def test_a_session_goes_on(name, epoch):
    """Within an epoch; where one is over and the next one hasn't begun, before
    the state was loaded once and after; where `drop_last` left an image of an
    epoch; and in a stream."""
    one = session(stream=epoch is None)
    one.load_state_dict(STATES[name]['state'])
    assert epoch is None or one.epoch == epoch
    begin = one.progress
    steps = loop(one, 1)
    assert slots_of(steps) == expected(name)
    assert 0.3 < begin < steps[0][2] and one.progress == 1
    # Saved in between, in today's version.
    two, three = (session(stream=epoch is None) for _ in range(2))
    two.load_state_dict(STATES[name]['state'])
    first = loop(two, 1, 9)
    three.load_state_dict(state_of(two))
    assert slots_of(first + loop(three, 1)) == expected(name)


def test_an_explanation_of_its_plan_has_counts_alone():
    """And the score. Which images the plan left out isn't known, nor are the
    edges of its tiers."""
    one = session()
    one.load_state_dict(STATES['session_open']['state'])
    explanations = [one.explain(index) for index in range(SIZE)]
    memory = STATES['session_open']['state']['planner']['scores']
    assert [each.score for each in explanations] == memory.tolist()
    assert {each.kept for each in explanations} == {None}
    assert {each.tier for each in explanations} == {None}
    assert sum(each.visits for each in explanations) == 26
    assert 'may keep image 0. Its score was' in str(explanations[0])
