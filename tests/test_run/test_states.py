# Copyright (c) mmib contributors. All rights reserved.
"""States with values that don't fit together are refused, and change nothing.
States of version 3 are in tests/system/test_version3.py."""
import copy
import math

import pytest
import torch

from mmib import Session
from mmib.errors import Refusal
from mmib.pruning import Neyman
from mmib.run.states import check_form, to_arrays, to_tensors
from tests.helpers.runs import loop, state_of

SIZE = 24
pytestmark = pytest.mark.filterwarnings('ignore:.* goes on with the')


def session(stream=False):
    return Session(
        range(SIZE),
        Neyman(num_tiers=3, min_keep=0.3),
        epochs=6,
        seed=3,
        stream=stream)


@pytest.fixture(scope='module', params=[False, True], ids=['epochs', 'stream'])
def saved(request):
    """Whether a Session is a stream, and its state within a pruned plan."""
    one = session(request.param)
    loop(one, 1, 47 if request.param else 45)
    found = state_of(one)
    assert len(found['stream']['indices']) > 2
    assert found['stream']['plans'][0]['keeps'] is not None
    assert len(found['tables']['sums']) and found['records'][0]['mean_ratio']
    return request.param, found


def longer(column):
    if torch.is_tensor(column):
        return torch.cat([column, column[-1:]])
    return [*column, column[-1]]


def shorter(column):
    return column[:-1]


def with_first(value):
    """A change of the first value of a column."""

    def change(column):
        column = column.clone()
        column.view(-1)[0] = value
        return column

    return change


COLUMNS = [
    'stream.indices', 'stream.weights', 'stream.tiers',
    'stream.relative_weights', 'stream.plans.0.keeps', 'stream.plans',
    'records', 'reading.scores', 'reading.mean_ratio', 'schedule.zero',
    'tables.scores', 'tables.averages', 'tables.last_visit', 'tables.visits',
    'tables.pruned', 'baseline.generator'
]
WHOLE_NUMBERS = [
    'seed', 'plans_checksum', 'stream.position', 'stream.plans.0.first_slot',
    'stream.plans.0.kept', 'stream.plans.0.size', 'schedule.fresh_from',
    'tables.non_finite', 'baseline.used'
]
FINITE_NUMBERS = [
    'stream.covered', 'stream.plans.0.covered', 'stream.plans.0.mean_weight'
]
FINITE_COLUMNS = [
    'stream.weights', 'stream.relative_weights', 'reading.scores',
    'tables.scores', 'tables.averages'
]
CHANGES = [
    *((name, way) for name in COLUMNS for way in (longer, shorter)),
    *((name, value) for name in WHOLE_NUMBERS
      for value in (-1, 20.5, 7., math.nan, math.inf, 2**63)),
    *((name, value) for name in FINITE_NUMBERS
      for value in (math.nan, math.inf, -math.inf)),
    *((name, with_first(value)) for name in FINITE_COLUMNS
      for value in (math.nan, math.inf)),
    ('baseline.used', SIZE + 1),
    ('stream.plans.0.size', lambda size: size + 1),
    ('stream.plans.0.mean_weight', 0.),
    ('stream.plans.0.mean_weight', -1.),
    ('stream.indices', with_first(SIZE)),
    ('stream.indices', with_first(-1)),
    ('stream.weights', with_first(-0.5)),
    ('stream.relative_weights', with_first(-0.5)),
    ('stream.tiers', with_first(-1)),
    ('tables.sums', lambda sums: sums[:, 1:]),
    ('schedule.zero', [0, math.nan]),
    ('schedule.zero', [math.inf, 0]),
    ('reading.mean_ratio', lambda ratio: [*ratio[:3], -1.]),
    ('records.0.tiers', [[1, 2, 3, 4, 5]]),
    ('records.0.tiers', [7]),
    ('records.0.mean_ratio', [1., 1.]),
    ('records.0.histogram', dict(edges=[1.], more=[1])),
    ('rng.state', {}),
    ('rng.state.state', -1),
    ('rng.bit_generator', 'MT19937'),
]


def change(state, name, to):
    """Change a value of a state, by a function or to another value."""
    *way, last = (
        int(key) if key.isdigit() else key for key in name.split('.'))
    for key in way:
        state = state[key]
    state[last] = to(state[last]) if callable(to) else to


def refusal_of(one, state):
    """What a Session says to a state, or None."""
    try:
        one.load_state_dict(state)
    except Refusal as refusal:
        return str(refusal)


def test_what_does_not_fit_is_refused(saved):
    """Each column with another length, and each value out of range. Nothing
    is loaded then."""
    is_stream, state = saved
    one, other = session(is_stream), session(is_stream)
    for each in (one, other):
        loop(each, 2, 5)
    before = text_of(one)
    for name, to in CHANGES:
        damaged = copy.deepcopy(state)
        change(damaged, name, to)
        # Tables of another length are those of another dataset.
        is_of_others = name == 'tables.scores' and to in (longer, shorter)
        match = 'the dataset has 24' if is_of_others else 'damaged: `'
        assert match in str(refusal_of(one, damaged)), (name, to)
        assert text_of(one) == before, (name, to)
    assert loop(one, 2, 4) == loop(other, 2, 4)


def leaves(value, name=''):
    """The names of the parts of a state. Of a list, two entries stand for
    all."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, part in items:
        place = f'{name}.{key}' if name else f'{key}'
        yield place, part
        if isinstance(part, (dict, list)):
            yield from leaves(part, place)


def damages(value):
    """What may become of a value without another type."""
    if torch.is_tensor(value):
        if len(value):
            yield from (longer, shorter, with_first(99))
            if value.dtype.is_signed:
                yield with_first(-1)
        if value.is_floating_point() and value.numel():
            yield with_first(math.nan)
    elif isinstance(value, list):
        yield [*value, *value[:1]]
        yield value[:-1]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)):
        yield from (-1, value + 1, value + 0.5, math.nan, math.inf, 2**70)


@pytest.mark.filterwarnings('ignore:.* the run goes on, and')
def test_a_damage_is_refused_or_harmless(saved):
    """A state that is accepted can be saved and explained, and no state leads
    to another error than a refusal, or to half a state."""
    is_stream, state = saved
    refused, one = 0, session(is_stream)
    loop(one, 2, 5)
    before = text_of(one)
    for name, value in leaves(state):
        # Of the policy, and names.
        if name.startswith('policy') or isinstance(value, (str, dict)):
            continue
        for to in damages(value):
            damaged = copy.deepcopy(state)
            change(damaged, name, to)
            if refusal_of(one, damaged):
                refused += 1
                assert text_of(one) == before, name
            else:
                one.explain(3)
                text_of(one)
                one.load_state_dict(state)
                before = text_of(one)
    assert refused > 120


def text_of(one):
    """All values of the state of a Session, without rounding."""

    def plain(value):
        if torch.is_tensor(value):
            return value.numpy().tobytes()
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [*map(plain, value)]
        return value

    return repr(plain(one.state_dict()))


def test_what_fits_is_loaded(saved):
    is_stream, state = saved
    one, other = session(is_stream), session(is_stream)
    for each in (one, other):
        each.load_state_dict(copy.deepcopy(state))
    assert loop(one, 2) == loop(other, 2) != []


@pytest.mark.parametrize('form, value, where', [
    (dict(a=dict(b=1)), dict(a=3), '`a` is not a dict'),
    (dict(a=dict(b=1)), dict(a=dict(c=1)), '`a.b` is missing'),
    (dict(a=1), dict(a=None), '`a` is of type NoneType and should be a num'),
    (dict(a=1), dict(a=True), '`a` is of type bool and should be a number'),
    (dict(a=True), dict(a=1), '`a` is a number and should be of type bool'),
    (dict(a=[dict(b='')]), dict(a=[dict(b='x'), dict(b=1)]), '`a.1.b` is'),
    (dict(a=torch.ones(2)), dict(a=torch.ones(1, 1)),
     '`a` is a tensor of torch.float32 with 2 dimensions'),
    (dict(a=torch.ones(2)), dict(a=torch.ones(2).double()), 'float64'),
])
def test_the_form_of_a_state(form, value, where):
    with pytest.raises(Refusal, match=where):
        check_form(value, form)
    check_form(form, form)
    # JSON has lists in the place of tuples, and one kind of number.
    check_form(dict(a=[1.5, 2], more=0), dict(a=(1, )))


def test_arrays_of_a_state_are_copies():
    tensor = torch.arange(3)
    arrays = to_arrays(dict(a=[tensor], b='x', c=torch.ones(2).bfloat16()))
    tensor[0] = 7
    assert arrays['a'][0].tolist() == [0, 1, 2] and arrays['b'] == 'x'
    # There is no such array.
    assert arrays['c'].dtype == torch.bfloat16
    tensors = to_tensors(arrays)
    arrays['a'][0][0] = 9
    assert tensors['a'][0].tolist() == [0, 1, 2]
