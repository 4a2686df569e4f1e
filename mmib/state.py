# Copyright (c) mmib contributors. All rights reserved.
"""What a checkpoint must have under the key ``infobatch``."""
import sys
from math import inf
from typing import Any, Dict, Iterator, Tuple

import torch
from mmengine.utils import apply_to

from . import worth
from .pruning.form import (FLAG, TEXT, Form, Maybe, array, check_form, damaged,
                           integer, real)
from .upgrade import VERSION

# Of a tier: products of the terms of V and two scores.
_NUM_SUMS = (worth.NUM_TERMS + 2)**2
_ORIGIN = (integer(), integer(), real(), real())
_FINITE, _ANY = real(-inf), real(-inf, finite=False)
_COUNTS = [integer(), 'bins']
_HISTOGRAM = {
    'edges': [_FINITE, 'edges'],
    'all': _COUNTS,
    'kept': _COUNTS,
    'weighted': [real(), 'bins']
}
# The ends of its interval, and the limit, may be missing.
_RATIO = Maybe((Maybe(real()), ) * 4)
# The interval of a mean is symmetric, so its lower end may be negative.
MEAN_RATIO = Maybe(
    (Maybe(real()), Maybe(_FINITE), Maybe(real()), Maybe(real())))
PLAN = {
    'kept': integer(1),
    'tiers': [(integer(), integer()), None],
    'covered': real(),
    'epoch': integer(),
    'start': integer(),
    # Of the log alone.
    'iter': _ANY,
    'full_equivalent': _ANY,
    'saved_iters': _ANY,
    'threshold': _ANY,
    'mean_weight': real(),
    'mean_score': _ANY,
    'variance_ratio': _RATIO,
    'mean_ratio': MEAN_RATIO,
    'reliability': Maybe(_FINITE),
    'histogram': Maybe(_HISTOGRAM),
    'non_finite': integer(),
    'note': TEXT,
    'logged': FLAG
}


def _are_flags(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(value, (bool, type(None))) for value in values)


def _is_of_generator(value: Any) -> bool:
    try:
        torch.Generator().set_state(torch.from_numpy(value))
    except (TypeError, RuntimeError):
        return False
    return True


_STATE = {
    'version': integer(VERSION, VERSION),
    'sampler': {
        'seed': integer(0, 2**64 - 1),
        'size': integer(1, size='indices of a pass'),
        'is_open': FLAG,
        'position': integer(),
        'indices': array('int64', 'slots', low=0, below='indices of a pass'),
        'weights': array('float32', 'slots', low=0),
        'tiers': array('int16', 'slots', low=0),
        'full_passes_rng': Form('the state of a generator of torch',
                                lambda value, _: _is_of_generator(value)),
        'plans_rng': {
            'bit_generator': Form("'PCG64'",
                                  lambda value, _: value == 'PCG64'),
            'state': {
                'state': integer(0, 2**128 - 1),
                'inc': integer(0, 2**128 - 1)
            },
            'has_uint32': integer(0, 1),
            'uinteger': integer(0, 2**32 - 1)
        }
    },
    'scores': {
        # NaN in no pass of a list, which was a policy once.
        'scores': array('float32', 'images', nan=True),
        'averages': array('float32', 'images', nan=True),
        'last_visit': array('int32', 'images', low=0),
        'ema': real(),
        'non_finite': integer(),
        'empty': FLAG
    },
    'planner': {
        'clock': {
            'unit': Form("'iteration' or 'epoch'", lambda value, _: value in
                         ('iteration', 'epoch')),
            'slots_per_iter': integer(1),
            'annealing_at': integer(),
            'full_equivalent': real(),
            'origin': _ORIGIN,
            'full_until': integer()
        },
        'plans': [PLAN, None],
        'normalize': FLAG,
        'policy': TEXT,
        'policy_type': TEXT,
        'policy_state': Maybe({}),
        'pruned_until': integer(),
        'logged_start': integer(-sys.maxsize),
        'read_start': integer(-sys.maxsize),
        'plan_scores': Maybe(array('float32', 'indices of a pass')),
        'mean_score': _ANY,
        'non_finite': integer(),
        'visits': {
            'rows': Maybe(array('float64 float32', 'ranks', 'sums')),
            'score': TEXT
        },
        'mean_ratio': (real(), real(), real())
    },
    'images': Maybe({
        'visits': array('int32', 'images', low=0),
        'pruned': array('int32', 'images', low=0)
    }),
    'paths_comparable': Form('True, False or None, or a list of these',
                             lambda value, _: _are_flags(value)),
    'images_checksum': Maybe(integer(0, 2**32 - 1))
}
# Of a clock that counts epochs.
_EPOCHS = {
    'epoch': integer(),
    'steps_per_epoch': integer(1),
    'annealing_start': integer(),
    'since': _ORIGIN,
    'epoch_start': integer(),
    'epoch_end': integer(),
    'num_steps': Maybe(integer())
}


def to_arrays(state: Any) -> Any:
    """Make arrays of the tensors, but of those that numpy has no type for."""

    def to_array(tensor: torch.Tensor) -> Any:
        try:
            return tensor.numpy()
        except (TypeError, RuntimeError):
            return tensor

    return apply_to(state, torch.is_tensor, to_array)


def check_state(state: Any, iteration: int) -> None:
    """Check the state in a checkpoint: kinds, shapes and ranges.

    Args:
        state (Any): What the checkpoint has under the key ``infobatch``.
        iteration (int): Iterations of the training until then.

    Raises:
        ValueError: If the state is damaged. The error names the key.
    """
    sizes: Dict[str, int] = {}
    state = to_arrays(state)
    check_form(state, _STATE, 'infobatch', sizes)
    clock = state['planner']['clock']
    if clock['unit'] == 'epoch':
        check_form(clock, _EPOCHS, 'infobatch.planner.clock', sizes)
    if state['sampler']['is_open'] and clock.get('num_steps') is None:
        raise damaged('infobatch.planner.clock.num_steps',
                      'must be an integer within an epoch')
    if not state['planner']['plans']:
        raise damaged('infobatch.planner.plans', 'is empty')
    if sizes.get('sums', 0) % _NUM_SUMS:
        raise damaged('infobatch.planner.visits.rows',
                      f'has no multiple of {_NUM_SUMS} columns')
    for where, value, low, high in _ranges(state, iteration):
        if not low <= value <= high:
            raise damaged(f'infobatch.{where}',
                          f'must be in [{low}, {high}], but is {value}')


def _ranges(state: Dict[str, Any],
            iteration: int) -> Iterator[Tuple[str, int, float, float]]:
    """Keys and their numbers, which lie between two others."""
    sampler, planner = state['sampler'], state['planner']
    position, size = sampler['position'], sampler['size']
    left = len(sampler['indices'])
    # Slots of the plans that were drawn.
    end = position + left
    plans, clock = planner['plans'], planner['clock']
    # Annealing cuts the last plan short, and where epochs count, its first
    # slots come again until all ranks have as many.
    most = plans[-1]['kept']
    if clock['unit'] == 'epoch':
        most = 2 * (most + clock['slots_per_iter'])
    starts = [plan['start'] for plan in plans]
    yield 'sampler.position', position, starts[0], starts[-1] + most - left
    for i, (start, later) in enumerate(zip(starts, [*starts[1:], end])):
        yield f'planner.plans[{i}].start', start, 0, later
    yield 'planner.clock.full_until', clock['full_until'], 0, position + size
    for key in ('pruned_until', 'logged_start', 'read_start'):
        yield f'planner.{key}', planner[key], -inf, end
    # A hook may save before an iteration is counted.
    for key in {'origin', 'since'} & set(clock):
        before, slots, *_ = clock[key]
        yield f'planner.clock.{key}[0]', before, 0, iteration + 1
        yield f'planner.clock.{key}[1]', slots, 0, position
    if clock['unit'] == 'epoch':
        yield 'planner.clock.epoch_start', clock['epoch_start'], 0, position
    if clock.get('num_steps') is not None:
        steps = (clock['epoch'] + 1) * clock['steps_per_epoch']
        yield 'planner.clock.num_steps', clock['num_steps'], 0, steps
    most_tiers = max(len(plan['tiers']) for plan in plans)
    arrays = {
        'sampler.tiers': (sampler['tiers'], max(most_tiers, 1)),
        'scores.last_visit': (state['scores']['last_visit'], iteration + 1)
    }
    if state['images'] is not None:
        arrays['images.visits'] = state['images']['visits'], position
    for where, (values, high) in arrays.items():
        if len(values):
            yield where, int(values.max()), 0, high
