# Copyright (c) mmib contributors. All rights reserved.
"""States that can't be gone on from are refused before the first step, with a
sentence that says what to do."""
import math

import numpy as np
import pytest
import torch

from mmib.errors import Refusal
from mmib.openmmlab.runner.checkpoint import opened, seal
from mmib.pruning import Neyman, RandomPruning
from mmib.training import VERSION
from tests.training import DrivenTraining, state_of

WHAT_TO_DO = ('.*resume from an earlier checkpoint, or delete the key '
              '`infobatch`.*scores start at 1 again')


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
    state = seal(state_of(DrivenTraining(Neyman()).train(30).core))
    assert opened(state) is state
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
                    match='`infobatch` .* is not what mmib has '
                    'written' + WHAT_TO_DO):
                opened(state)
        owner[key] = value
    assert number > 150
    with pytest.raises(Refusal, match='`infobatch` .* is no dict'):
        opened([state])


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
    state = state_of(DrivenTraining().train(30).core)
    state['version'] = version
    with pytest.raises(
            Refusal,
            match=f'is of version {version}, and this mmib reads '
            f'version {VERSION}: go on with the mmib that wrote the'):
        DrivenTraining().core.load_state_dict(state)


@pytest.mark.parametrize('path, change', [(path, change) for change, paths in (
    ('missing',
     'version clock.unit clock.pass_length sampler.plans_rng tables '
     'tables.scores tables.ema planner.plans planner.starts iteration'),
    ('None', 'clock sampler.slots.indices tables.pairs planner'))
                                          for path in paths.split()])
def test_what_is_missing_or_of_another_kind(path, change):
    """As where a loop of one's own saves without a seal."""
    state = owner = state_of(DrivenTraining().train(30).core)
    *names, last = path.split('.')
    for name in names:
        owner = owner[name]
    if change == 'missing':
        del owner[last]
    else:
        owner[last] = None
    with pytest.raises(Refusal, match='`infobatch` in the checkpoint'):
        DrivenTraining().core.load_state_dict(state)


class Remembers(RandomPruning):
    """A policy with a state of its own."""

    def state_dict(self):
        return dict(numbers=[1, 2], array=np.arange(3))

    def load_state_dict(self, state_dict):
        self.numbers = [int(number) for number in state_dict['numbers']]
        self.array = state_dict['array']


def test_a_policy_of_ones_own():
    """Its state is its own matter, and an error of it is told alike."""
    state = state_of(DrivenTraining(Remembers()).train(30).core)
    rest = DrivenTraining(Remembers())
    assert rest.core.load_state_dict(state) == []
    assert rest.planner.policy.numbers == [1, 2]
    assert rest.planner.policy.array.tolist() == [0, 1, 2]
    state['planner']['policy_state'] = dict(numbers=['x'])
    with pytest.raises(
            Refusal,
            match='policy_state` in .*invalid literal.*' + WHAT_TO_DO):
        DrivenTraining(Remembers()).core.load_state_dict(state)
