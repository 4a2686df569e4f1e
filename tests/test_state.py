# Copyright (c) mmib contributors. All rights reserved.
"""A damaged state in a checkpoint stops a training before its first step."""
import copy
import math

import numpy as np
import pytest
import torch

from mmib import InfoBatchSampler
from mmib.clock import EpochClock
from mmib.delivery import DeliveryCheck
from mmib.log.counts import ImageCounts
from mmib.plan_record import without_nan
from mmib.planner import Planner
from mmib.pruning import (EpsilonGreedy, Neyman, RandomPruning,
                          UpperConfidenceBound)
from mmib.scores import ScoreTable
from mmib.visits import VisitCounter
from mmib.worth import MeanRatio, VarianceRatio
from tests.system.epoch_training import BATCH, MAX_EPOCHS, SIZE, by_epoch
from tests.system.small_training import small_runner
from tests.test_resume import Parts

ITERS = 20
NEYMAN = dict(num_strata=3, ratio=0.6)


class EpochParts(Parts):
    """Those of a training that counts epochs."""

    def __init__(self, policy=Neyman(**NEYMAN)):
        images = np.arange(SIZE)
        self.sampler = InfoBatchSampler(images, seed=3)
        self.scores = ScoreTable(images, torch.device('cpu'))
        self.planner = Planner(
            policy, VisitCounter(self.scores), ImageCounts(images),
            EpochClock(SIZE, BATCH, -(-SIZE // BATCH), MAX_EPOCHS, 0.85))
        self.delivery = DeliveryCheck(images, None)


# Name: the parts of a training.
KINDS = {
    'Neyman': lambda: Parts(policy=Neyman(60, 3)),
    'UpperConfidenceBound': lambda: Parts(policy=UpperConfidenceBound()),
    'EpsilonGreedy': lambda: Parts(policy=EpsilonGreedy(period=2)),
    'epochs': EpochParts,
}


@pytest.fixture(scope='module')
def states(tmp_path_factory):
    """The state of a training of each kind."""
    states = {}
    for name, make in KINDS.items():
        if make is EpochParts:
            folder = tmp_path_factory.mktemp('epochs')
            hook = dict(interval=ITERS, by_epoch=False)
            changes = by_epoch(dict(type='Neyman', **NEYMAN))
            small_runner(folder, **{
                **changes, 'default_hooks.checkpoint': hook
            }).train()
            path = folder / f'iter_{ITERS}.pth'
            states[name] = torch.load(path, weights_only=False)['infobatch']
        else:
            parts = make()
            parts.train(ITERS)
            parts.delivery.comparable = [name == 'Neyman']
            states[name] = parts.state()
    return states


def leaves(value, path=()):
    """All values in a state, by the keys that lead to them."""
    yield path, value
    items = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    for key, item in items:
        yield from leaves(item, (*path, key))


def replaced(state, path, new):
    """A state with another value; ``KeyError`` is none."""
    if not path:
        return new
    key, *rest = path
    if isinstance(state, tuple):
        return tuple(replaced([*state], path, new))
    state = copy.copy(state)
    if new is KeyError and not rest:
        del state[key]
    else:
        state[key] = replaced(state[key], rest, new)
    return state


def with_first(tensor, value):
    tensor = tensor.clone()
    tensor.view(-1)[0] = value
    return tensor


def damages(value):
    """What may become of a value, by name."""
    damages = {'missing': KeyError, 'a word': 'x', 'another': object}
    if value is not None:
        damages['None'] = None
    if torch.is_tensor(value):
        damages['short'] = value[:-1]
        damages['more dimensions'] = value[None]
        damages['another type'] = value.to(torch.complex64)
        damages['half'] = value.to(torch.bfloat16)
        if not len(value):
            del damages['short']
        elif value.is_floating_point():
            damages['NaN'] = with_first(value, math.nan)
            damages['infinite'] = with_first(value, math.inf)
        elif value.dtype not in (torch.bool, torch.uint8):
            damages['negative'] = with_first(value, -1)
            damages['too large'] = with_first(value, 10000)
    elif isinstance(value, (list, tuple)):
        damages['short'] = value[:-1]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        damages.update({'NaN': math.nan, 'infinite': math.inf, 'negative': -1})
        if isinstance(value, int):
            damages.update({'a fraction': 0.5, 'too large': 10**20})
    return damages


LOG_ALONE = ('threshold', 'mean_score', 'iter', 'full_equivalent',
             'saved_iters')
# Keys of which such a value changes nothing that is trained on, or is told.
HARMLESS = {
    'None': ('plan_scores', 'variance_ratio', 'mean_ratio', 'reliability',
             'histogram', 'paths_comparable', 'images', 'images_checksum',
             'policy_state', 'rows'),
    'a word': ('note', 'policy', 'policy_type', 'score'),
    'infinite': LOG_ALONE,
    'NaN': LOG_ALONE,
    'negative': LOG_ALONE +
    ('reliability', 'edges', 'logged_start', 'read_start', 'mean_ratio'),
    'a fraction': LOG_ALONE + ('edges', 'weighted'),
    'too large': LOG_ALONE +
    ('edges', 'weighted', 'num_plans', 'pruned', 'state', 'inc'),
    'short': ('tiers', 'edges', 'rows', 'selected', 'paths_comparable'),
    'more dimensions': ('full_passes_rng', ),
}


def is_harmless(path, damage):
    keys = [key for key in path if isinstance(key, str)]
    return keys[-1:] and keys[-1] in HARMLESS.get(damage, ())


@pytest.mark.parametrize('kind', KINDS)
def test_each_damage_is_told(states, kind):
    """Before the first step, by the key and what to do."""
    state, unseen = states[kind], []
    for path, value in leaves(state):
        for damage, new in damages(value).items():
            if new is KeyError and not (path and isinstance(path[-1], str)):
                continue
            parts = KINDS[kind]()
            try:
                parts.load(replaced(state, path, new), ITERS)
            except ValueError as error:
                assert str(error).startswith('`infobatch')
                assert 'in the checkpoint' in str(error)
                assert ': resume from an earlier checkpoint' in str(error)
            else:
                unseen.append((path, damage))
    assert [one for one in unseen if not is_harmless(*one)] == [((), 'None')]


@pytest.mark.parametrize('kind', KINDS)
def test_sound_states_go_on(states, kind):
    parts = KINDS[kind]()
    assert parts.load(states[kind], ITERS) == (None, [])
    assert str(parts.state()) == str(states[kind])
    assert parts.scores.num_non_finite() > 0 or kind == 'epochs'


def test_a_mean_ratio_of_few_visits(states):
    """The lower end of its interval may be negative."""
    few = MeanRatio().add(VarianceRatio(1., 0.2, 5., 0.5), 10).mean()
    assert few.low < 0
    path = 'planner', 'plans', 0, 'mean_ratio'
    state = replaced(states['Neyman'], path, without_nan(few))
    assert KINDS['Neyman']().load(state, ITERS) == (None, [])


@pytest.mark.parametrize('path, value, said', [
    (('sampler', 'position'), -1,
     '`infobatch.sampler.position` in the checkpoint must be an integer '
     'of at least 0, but is -1: resume from an earlier checkpoint, or '
     'delete the key `infobatch` from this one, and scores start at 1 '
     'again.'),
    (('sampler', 'indices'), torch.tensor([13]),
     '`infobatch.sampler.indices` in the checkpoint must be int64 of '
     'shape (1), at least 0, below 13, but is int64 of shape (1,), from '
     '13 to 13: '),
])
def test_what_is_said(states, path, value, said):
    with pytest.raises(ValueError) as error:
        KINDS['Neyman']().load(replaced(states['Neyman'], path, value), ITERS)
    assert said in str(error.value)


class Remembers(RandomPruning):
    """A policy with a state of its own."""

    def state_dict(self):
        return dict(numbers=[1, 2])

    def load_state_dict(self, state_dict):
        self.numbers = [int(number) for number in state_dict['numbers']]


def test_a_policy_of_ones_own():
    """Its state is its own matter, and an error of it is told alike."""
    parts = Parts(policy=Remembers())
    parts.train(ITERS)
    state = parts.state()
    for numbers, said in ((['x'], 'invalid literal'), (KeyError, "'numbers'")):
        path = ('planner', 'policy_state', 'numbers')
        with pytest.raises(ValueError, match=f'policy_state` in .*{said}'):
            Parts(policy=Remembers()).load(
                replaced(state, path, numbers), ITERS)
    rest = Parts(policy=Remembers())
    assert rest.load(state, ITERS) == (None, [])
    assert rest.planner.policy.numbers == [1, 2]
