# Copyright (c) mmib contributors. All rights reserved.
"""States that can't be gone on from are refused before the first step, with a
sentence that says what to do."""
import math

import numpy as np
import pytest
import torch

from mmib.errors import Refusal
from mmib.ledger import Ledger
from mmib.openmmlab.runner.checkpoint import seal, unsealed
from mmib.pruning import Neyman, RandomPruning
from mmib.states import VERSION, what_changed
from tests.training import DrivenTraining, state_of

WHAT_TO_DO = ('.*Resume from an earlier checkpoint, or without this state.*'
              'scores start at 1 again')


def owners(value):
    """All dicts and lists in a state, each with one of its keys."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from owners(value[key])


def damages(value):
    """What may become of a value."""
    yield 'x'
    if torch.is_tensor(value):
        yield from (value[:-1], value[None], value.double(), value + 1)
    elif isinstance(value, (list, tuple)):
        yield from (value[:-1], [*value, 0])
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)):
        yield from (math.nan, -1 - value, value + 1)
    elif value is None:
        yield 0


def test_each_damage_is_told():
    """And nothing else."""
    state = seal(state_of(DrivenTraining(Neyman()).train(30).run))
    assert unsealed(state) is state
    number = 0
    for owner, key in owners(state):
        if key == 'checksum' and owner is state:
            continue
        value = owner[key]
        for new in damages(value):
            if torch.is_tensor(new) and new.dtype == value.dtype and (
                    torch.equal(new, value)):
                continue
            owner[key] = new
            number += 1
            with pytest.raises(
                    Refusal,
                    match='`infobatch` is not what mmib has '
                    'written' + WHAT_TO_DO):
                unsealed(state)
        owner[key] = value
    assert number > 150
    with pytest.raises(Refusal, match='`infobatch` is not a dict'):
        unsealed([state])


def test_what_has_no_text_of_its_own_is_not_sealed():
    """A set is in another order in another process, and numpy 2 prints numbers
    in another way."""
    sums = [
        seal(dict(of_policy=[value], number=1))['checksum']
        for value in (np.float64(1), np.float64(2))
    ]
    assert sums[0] == sums[1]
    seal(dict(tensor=torch.ones(2, dtype=torch.bfloat16)))


@pytest.mark.parametrize('version', [None, 1, VERSION + 1])
def test_another_version(version):
    state = state_of(DrivenTraining().train(30).run)
    state['version'] = version
    with pytest.raises(
            Refusal,
            match=f'is of version {version}, and this mmib reads '
            f'the versions 2 and {VERSION}: resume with the version of'):
        DrivenTraining().run.load_state_dict(state)


def parts_of(state):
    """The names of all values that a state must have, on its way."""
    for key, value in state.items():
        if key != 'version':
            yield (key, )
        if isinstance(value, dict) and key not in ('rng', 'policy_state'):
            yield from ((key, name) for name in value)
    yield from (('plans', 0, name) for name in ('kept', 'tiers', 'covered'))


def test_what_is_missing_or_of_another_kind():
    """As where a loop of one's own saves without a seal."""
    state = state_of(DrivenTraining(Neyman()).train(30).run)
    parts = [*parts_of(state)]
    assert len(parts) > 40
    for *way, last in parts:
        owner, where = state, '.'.join(map(str, (*way, last)))
        for name in way:
            owner = owner[name]
        value = owner.pop(last)
        run = DrivenTraining(Neyman()).run
        # The first states have none.
        if where != 'schedule.unspent':
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
    DrivenTraining(Neyman()).run.load_state_dict(state)


def test_an_error_of_mmib_is_no_damage(monkeypatch):
    """It is told as it is."""
    state = state_of(DrivenTraining().train(30).run)

    def fail(*args):
        raise TypeError('a fault of mmib')

    monkeypatch.setattr(Ledger, 'load_state_dict', fail)
    with pytest.raises(TypeError, match='a fault of mmib'):
        DrivenTraining().run.load_state_dict(state)


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
    state = state_of(DrivenTraining(Remembers()).train(30).run)
    rest = DrivenTraining(Remembers())
    assert what_changed(state, rest.run.state_dict()) == []
    rest.run.load_state_dict(state)
    assert rest.run.policy.numbers == [1, 2]
    assert rest.run.policy.array.tolist() == [0, 1, 2]
    state['policy_state'] = dict(numbers=['x'])
    run = DrivenTraining(Remembers()).run
    run.policy.numbers = run.policy.array = None
    with pytest.raises(
            Refusal, match='`policy_state` .*invalid literal.*' + WHAT_TO_DO):
        run.load_state_dict(state)
    assert run.policy.numbers is None
    del state['policy_state']['numbers']
    state['policy_state'].update(numbers=[3], array=None)
    run.load_state_dict(state)
    assert run.policy.numbers == [3]
