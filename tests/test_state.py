# Copyright (c) mmib contributors. All rights reserved.
"""Damaged states are refused, and states of older versions go on. Real
checkpoints of one are in tests/system/test_older_checkpoints.py."""
import copy
import math
import os.path as osp

import numpy as np
import pytest
import torch

from mmib.pruning import Neyman, RandomPruning
from mmib.state import VERSION, seal, upgrade
from tests.test_resume import PATHS, Parts

# Of a training by epochs.
CHECKPOINT = osp.join(
    osp.dirname(__file__), 'checkpoints', 'epochs_1_tiers.pth')


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
    """Before the first step, and what to do."""
    state = trained(policy=Neyman(60, 3)).state()
    number = 0
    for owner, key in owners(state):
        if key == 'checksum':  # Without it a state is an older one.
            continue
        value = owner[key]
        for new in damages(value):
            if torch.is_tensor(new) and torch.is_tensor(value) and (
                    new.dtype == value.dtype and torch.equal(new, value)):
                continue
            owner[key] = new
            number += 1
            with pytest.raises(
                    ValueError,
                    match='`infobatch` in the checkpoint is (not what mmib has'
                    ' written: resume from an|of a newer mmib: update)'):
                Parts(policy=Neyman(60, 3)).load(state, 30)
        owner[key] = value
    assert number > 150


class Remembers(RandomPruning):
    """A policy with a state of its own."""

    def state_dict(self):
        return dict(numbers=[1, 2])

    def load_state_dict(self, state_dict):
        self.numbers = [int(number) for number in state_dict['numbers']]


def test_a_policy_of_ones_own():
    """Its state is its own matter, and an error of it is told alike."""
    state = trained(policy=Remembers()).state()
    rest = Parts(policy=Remembers())
    assert rest.load(state, 30) == (None, [])
    assert rest.planner.policy.numbers == [1, 2]
    state['planner']['policy_state'] = dict(numbers=['x'])
    with pytest.raises(ValueError, match='policy_state` in .*invalid literal'):
        Parts(policy=Remembers()).load(seal(state), 30)


# What version 0.1.0 didn't keep, by the part of a state.
LATER = dict(
    sampler=['checksum', 'tiers'],
    scores=['averages', 'last_visit', 'ema'],
    planner=['read_start', 'visits', 'mean_ratio', 'normalize'],
    plan=['ratio', 'reliability', 'histogram', 'mean_weight'],
    state=['images', 'images_checksum'])


def downgraded(state):
    """A state as mmib wrote it before states had a version."""
    state = copy.deepcopy(state)
    del state['version'], state['checksum']
    sampler, planner = state['sampler'], state['planner']
    clock, plans = planner.pop('clock'), planner.pop('plans')
    by_epoch = clock.pop('unit') == 'epoch'
    annealing_at = clock.pop('annealing_at')
    planner.update(clock)
    planner['annealing_iter'] = annealing_at
    if by_epoch:
        planner['annealing_epoch'] = annealing_at
    else:
        del sampler['is_open']
    planner['num_epochs'] = plans[0]['epoch']
    planner['epochs'] = []
    for plan in plans:
        ratio, histogram = plan['variance_ratio'], plan['histogram']
        planner['epochs'].append(
            dict(
                start=plan['start'],
                covered=plan['covered'],
                size=plan['kept'],
                threshold=plan['threshold'],
                tiers=plan['tiers'],
                mean_score=plan['mean_score'],
                non_finite=plan['non_finite'],
                note=plan['note'],
                logged=plan['logged'],
                ratio=ratio and tuple(ratio),
                reliability=plan['reliability'],
                histogram=histogram and tuple(histogram.values()),
                mean_weight=plan['mean_weight']))
    planner['visits'].update(own_norms=True, trends=[0.])
    sampler['checksum'] = 0
    return state


def without(state, later):
    """A state without what came later."""
    for part, names in later.items():
        owners = [state] if part == 'state' else (
            state['planner']['epochs'] if part == 'plan' else [state[part]])
        for owner in owners:
            for name in names:
                owner.pop(name)
    return state


def trained(iters=30, **kwargs):
    parts = Parts(**kwargs)
    parts.train(iters)
    return parts


def test_a_state_of_this_version_stays():
    state = trained().state()
    assert upgrade(state) is state and state['version'] == VERSION


def test_nothing_is_lost():
    """But where a plan began, which is of the log alone."""
    state = trained(policy=RandomPruning(0.5), paths=PATHS).state()
    rest = Parts(policy=RandomPruning(0.5), paths=PATHS)
    assert rest.load(downgraded(state), 30) == (None, [])
    again = rest.state()
    for of in (state, again):
        del of['checksum']
        for plan in of['planner']['plans']:
            for name in ('iter', 'full_equivalent', 'saved_iters',
                         'mean_ratio'):
                del plan[name]
    assert str(again) == str(state)


def test_version_0_1_0():
    """It kept nothing of the order of images."""
    part, rest = trained(paths=PATHS), Parts(paths=PATHS[::-1])
    state = without(downgraded(part.state()), LATER)
    assert rest.load(state, 30) == (None, [])
    np.testing.assert_array_equal(rest.scores.numpy(), part.scores.numpy())
    assert not rest.planner.counts.visits.any()
    assert not rest.sampler._slots.tier_of_slot.any()
    rest.train(35)
    assert rest.planner.counts.visits.sum() == 10
    assert rest.sampler.position == 70


def test_where_an_epoch_ends():
    """All slots until here were trained on, before this was kept."""
    state = torch.load(CHECKPOINT, weights_only=True)['infobatch']
    clock = upgrade(state)['planner']['clock']
    assert clock['epoch_end'] == state['sampler']['position']
    state['planner']['epoch_end'] = 70
    assert upgrade(state)['planner']['clock']['epoch_end'] == 70


@pytest.mark.parametrize('was_one', [False, True])
def test_the_mean_weight_follows_from_the_weights_in_flight(was_one):
    part = Parts(policy=RandomPruning(0.5))
    part.planner.normalize = was_one
    part.train(20)
    state = without(
        downgraded(part.state()),
        dict(planner=['normalize'], plan=['mean_weight']))
    rest = Parts(policy=RandomPruning(0.5))
    rest.planner.normalize = True
    _, changes = rest.load(state, 20)
    assert any('mean weight is 1' in each for each in changes) is not was_one
    assert (rest.planner.current.mean_weight == 1) is was_one


def test_gradients_of_the_batch_start_afresh():
    """They weren't an image's own."""
    state = downgraded(trained(20, score='gradient').state())
    assert Parts(score='gradient').load(state, 20)[0] is None
    del state['planner']['visits']['own_norms']
    reason, _ = Parts(score='gradient').load(state, 20)
    assert 'scores in the checkpoint are "gradient of the batch"' in reason


def test_a_list_of_the_former_subset_starts_afresh():
    state = downgraded(trained(paths=PATHS).state())
    state['sampler']['checksum'] = 5
    reason, _ = Parts(paths=PATHS).load(state, 30)
    assert 'the checkpoint is of other images' in reason


@pytest.mark.parametrize('path', [('sampler', ), ('planner', 'epochs'),
                                  ('planner', 'origin'), ('scores', 'scores')])
def test_an_older_one_that_lacks_something(path):
    state = owner = downgraded(trained().state())
    for name in path[:-1]:
        owner = owner[name]
    del owner[path[-1]]
    with pytest.raises(ValueError, match='`infobatch` in .*: resume from'):
        Parts().load(state, 30)


def test_what_has_no_text_of_its_own_is_not_sealed():
    """A set is in another order in another process, and numpy 2 prints numbers
    in another way."""
    sums = [
        seal(dict(of_policy=[value], number=1))['checksum']
        for value in (np.float64(1), np.float64(2))
    ]
    assert sums[0] == sums[1]
    seal(dict(tensor=torch.ones(2, dtype=torch.bfloat16, requires_grad=True)))


@pytest.mark.parametrize('owner, key, value, said', [
    ('scores', 'scores', math.nan, "scores.scores` in .* isn't finite"),
    ('scores', 'averages', math.inf, "scores.averages` in .* isn't finite"),
    ('sampler', 'indices', 13, r"indices` in .* isn't in \[0, 13\)"),
    ('sampler', 'seed', None, 'can\'t be read'),
    ('planner', 'policy', None, 'can\'t be read'),
])
def test_an_older_state_that_is_damaged(owner, key, value, said):
    """It has no checksum."""
    state = downgraded(trained().state())
    if value is None:
        del state[owner][key]
    else:
        state[owner][key][0] = value
    with pytest.raises(ValueError, match=f'{said}.*: resume from an earlier'):
        Parts().load(state, 30)


def test_a_state_of_a_later_version_is_refused():
    state = trained().state()
    state['version'] = VERSION + 1
    with pytest.raises(ValueError, match='is of a newer mmib'):
        Parts().load(state, 30)
