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

# Of a tier: products of the terms of V and two scores.
_NUM_SUMS = (worth.NUM_TERMS + 2)**2
# Checkpoints of older versions lack the keys with a question mark.
_ORIGIN = (integer(), integer(), real(), real())
_FINITE, _ANY = real(-inf), real(-inf, finite=False)
_COUNTS = [integer(), 'bins']
_HISTOGRAM = ([_FINITE, 'edges'], _COUNTS, _COUNTS, [real(), 'bins'])
_EPOCH = {
    'start': integer(),
    'covered': real(),
    'size': integer(1),
    # Of the log alone.
    'threshold': _ANY,
    'tiers': [(integer(), integer()), None],
    'mean_score': _ANY,
    'non_finite': integer(),
    'note': TEXT,
    'logged': FLAG,
    'ratio?': Maybe((real(), real(), real(), real())),
    'reliability?': Maybe(_FINITE),
    'histogram?': Maybe(_HISTOGRAM),
    'mean_weight?': real()
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
    'sampler': {
        'seed': integer(0, 2**64 - 1),
        'size': integer(1, size='indices of a pass'),
        'checksum?': integer(0, 2**32 - 1),
        'position': integer(),
        'indices': array('int64', 'slots', low=0, below='indices of a pass'),
        'weights': array('float32', 'slots', low=0),
        'tiers?': array('int16', 'slots', low=0),
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
        # Those that are in no pass are NaN.
        'scores': array('float32', 'images', nan=True),
        'averages?': array('float32', 'images', nan=True),
        'last_visit?': array('int32', 'images', low=0),
        'visited?': array('bool', 'images'),
        'ema?': real(),
        'non_finite': integer(),
        'empty': FLAG
    },
    'planner': {
        'slots_per_iter': integer(1),
        'annealing_iter': integer(),
        'full_equivalent': real(),
        'origin': _ORIGIN,
        'normalize?': FLAG,
        'policy': TEXT,
        'policy_type': TEXT,
        'policy_state?': {},
        'epochs': [_EPOCH, None],
        'num_epochs': integer(),
        'full_until': integer(),
        'pruned_until': integer(),
        'logged_start': integer(-sys.maxsize),
        'read_start?': integer(-sys.maxsize),
        'plan_scores': Maybe(array('float32', 'indices of a pass')),
        'mean_score': _ANY,
        'non_finite': integer(),
        'visits?': {
            'rows': array('float64 float32', 'ranks', 'sums'),
            'score': TEXT,
            'trends?': [real(), 'ranks'],  # Read no more.
            'own_norms?': FLAG
        },
        'mean_ratio?': (real(), real(), real())
    },
    'images?': {
        'visits': array('int32', 'images', low=0),
        'pruned': array('int32', 'images', low=0)
    },
    'paths_comparable': Form('True, False or None, or a list of these',
                             lambda value, _: _are_flags(value)),
    'images_checksum?': integer(0, 2**32 - 1)
}
# Those that count epochs have more.
_BY_EPOCH = {
    'sampler': {
        'is_open': FLAG
    },
    'planner': {
        'epoch': integer(),
        'steps_per_epoch': integer(1),
        'annealing_epoch': integer(),
        'annealing_start': integer(),
        'since': _ORIGIN,
        'epoch_start': integer(),
        'epoch_end?': integer(),
        'num_steps': Maybe(integer())
    }
}
_WITHIN_AN_EPOCH = {'planner': {'num_steps': integer()}}


def to_arrays(state: Any) -> Any:
    """Make arrays of the tensors, but of those that numpy has no type for."""

    def to_array(tensor: torch.Tensor) -> Any:
        try:
            return tensor.numpy()
        except (TypeError, RuntimeError):
            return tensor

    return apply_to(state, torch.is_tensor, to_array)


def counts_epochs(state: Dict[str, Any]) -> bool:
    """Whether a state is of a training that counts epochs."""
    return 'is_open' in state['sampler'] or 'num_steps' in state['planner']


def check_state(state: Any, iteration: int) -> None:
    """Check the state in a checkpoint: kinds, shapes and ranges.

    Args:
        state (Any): What it has under the key ``infobatch``.
        iteration (int): Iterations of the training until then.

    Raises:
        ValueError: If it is damaged. It names the key, and what to do.
    """
    sizes: Dict[str, int] = {}
    state = to_arrays(state)
    check_form(state, _STATE, 'infobatch', sizes)
    if counts_epochs(state):
        check_form(state, _BY_EPOCH, 'infobatch', sizes)
    if state['sampler'].get('is_open'):
        check_form(state, _WITHIN_AN_EPOCH, 'infobatch', sizes)
    if not state['planner']['epochs']:
        raise damaged('infobatch.planner.epochs', 'is empty')
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
    epochs = planner['epochs']
    # Annealing cuts the last plan short, and where epochs count, its first
    # slots come again until all ranks have as many.
    most = epochs[-1]['size']
    if counts_epochs(state):
        most = 2 * (most + planner['slots_per_iter'])
    starts = [epoch['start'] for epoch in epochs]
    yield 'sampler.position', position, starts[0], starts[-1] + most - left
    for i, (start, later) in enumerate(zip(starts, [*starts[1:], end])):
        yield f'planner.epochs[{i}].start', start, 0, later
    yield 'planner.full_until', planner['full_until'], 0, position + size
    for key in ('pruned_until', 'logged_start', 'read_start'):
        yield f'planner.{key}', planner.get(key, 0), -inf, end
    # A hook may save before an iteration is counted.
    for key in ('origin', 'since'):
        before, slots, *_ = planner.get(key, (0, 0))
        yield f'planner.{key}[0]', before, 0, iteration + 1
        yield f'planner.{key}[1]', slots, 0, position
    yield 'planner.epoch_start', planner.get('epoch_start', 0), 0, position
    if planner.get('num_steps') is not None:
        steps = (planner['epoch'] + 1) * planner['steps_per_epoch']
        yield 'planner.num_steps', planner['num_steps'], 0, steps
    most_tiers = max(len(epoch['tiers']) for epoch in epochs)
    arrays = {
        'sampler.tiers': (sampler.get('tiers'), max(most_tiers, 1)),
        'scores.last_visit': (state['scores'].get('last_visit'),
                              iteration + 1),
        'images.visits': (state.get('images', {}).get('visits'), position)
    }
    for where, (values, high) in arrays.items():
        if values is not None and len(values):
            yield where, int(values.max()), 0, high
