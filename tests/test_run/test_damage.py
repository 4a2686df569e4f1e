# Copyright (c) mmib contributors. All rights reserved.
"""States that can't be gone on from are refused before the first step, with a
sentence that says what to do."""
import numpy as np
import pytest
import torch

from mmib.errors import Refusal
from mmib.pruning import Neyman, RandomPruning
from mmib.run.states import VERSION, what_changed
from mmib.stream.stream import Stream
from tests.helpers.runs import DrivenRun, state_of

WHAT_TO_DO = ('.*Resume from an earlier checkpoint, or without this state.*'
              'scores start at 1 again')


@pytest.mark.parametrize('version', [None, 1, 2, VERSION + 1])
def test_another_version(version):
    state = state_of(DrivenRun().train(30).run)
    state['version'] = version
    with pytest.raises(
            Refusal,
            match=f'is of version {version}, and this mmib reads '
            f'the versions 3 and {VERSION}: resume with the version of'):
        DrivenRun().run.load_state_dict(state)


def parts_of(state):
    """The names of all values that a state must have, on its way."""
    for key, value in state.items():
        if key != 'version':
            yield (key, )
        if isinstance(value, dict) and key not in ('rng', 'policy_state'):
            yield from ((key, name) for name in value)
    yield from (('records', 0, name) for name in ('kept', 'tiers', 'covered'))
    yield from (('stream', 'plans', 0, name)
                for name in state['stream']['plans'][0])


def test_what_is_missing_or_of_another_kind():
    """As where a loop of one's own saves without a seal."""
    state = state_of(DrivenRun(Neyman()).train(30).run)
    parts = [*parts_of(state)]
    assert len(parts) > 40
    for *way, last in parts:
        owner, where = state, '.'.join(map(str, (*way, last)))
        for name in way:
            owner = owner[name]
        value = owner.pop(last)
        run = DrivenRun(Neyman()).run
        with pytest.raises(
                Refusal, match=f'`{where}` is missing' + WHAT_TO_DO):
            run.load_state_dict(state)
        # Neither has a seal or a key another type.
        for other in ({}, {1}, torch.ones(2, 2, 2, dtype=torch.bool)):
            if isinstance(other, dict) and isinstance(value, dict):
                continue
            owner[last] = other
            with pytest.raises(Refusal, match=f'`{where}` is ' + '.*'):
                run.load_state_dict(state)
        owner[last] = value
    DrivenRun(Neyman()).run.load_state_dict(state)


def test_an_error_of_mmib_is_no_damage(monkeypatch):
    """The error is raised as it is."""
    state = state_of(DrivenRun().train(30).run)

    def fail(*args):
        raise TypeError('a fault of mmib')

    monkeypatch.setattr(Stream, 'load_state_dict', fail)
    with pytest.raises(TypeError, match='a fault of mmib'):
        DrivenRun().run.load_state_dict(state)


class Remembers(RandomPruning):
    """A policy with a state of its own."""

    def state_dict(self):
        return dict(numbers=[1, 2], array=np.arange(3))

    def load_state_dict(self, state_dict):
        self.numbers = [int(number) for number in state_dict['numbers']]
        self.array = state_dict['array']


def test_a_policy_of_ones_own():
    """Its state is its own matter. An error of the policy is shown, and the
    policy that refuses a state stays as it was."""
    state = state_of(DrivenRun(Remembers()).train(30).run)
    rest = DrivenRun(Remembers())
    assert what_changed(state, rest.run.state_dict()) == []
    rest.run.load_state_dict(state)
    assert rest.run.policy.numbers == [1, 2]
    assert rest.run.policy.array.tolist() == [0, 1, 2]
    state['policy_state'] = dict(numbers=['x'])
    run = DrivenRun(Remembers()).run
    run.policy.numbers = run.policy.array = None
    with pytest.raises(
            Refusal, match='`policy_state` .*invalid literal.*' + WHAT_TO_DO):
        run.load_state_dict(state)
    assert run.policy.numbers is None
    del state['policy_state']['numbers']
    state['policy_state'].update(numbers=[3], array=None)
    run.load_state_dict(state)
    assert run.policy.numbers == [3]
