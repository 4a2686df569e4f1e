# Copyright (c) mmib contributors. All rights reserved.
"""The state in a checkpoint: sealed with a checksum, checked when it is read,
and made as this version would have written it."""
import zlib
from typing import Any, Dict

import torch
from mmengine.utils import apply_to

from .errors import ValueRefusal

VERSION = 1
"""int: Version of the states that are written now. mmib 0.1.0, and what
followed, wrote none."""
_PLAIN = (str, int, float, bool, type(None))


def damaged(where: str, problem: str) -> ValueError:
    """The error for a checkpoint with a problem at some key."""
    return ValueRefusal(
        f'`{where}` in the checkpoint {problem}: resume from an earlier '
        'checkpoint, or delete the key `infobatch` from this one, and scores '
        'start at 1 again.')


def seal(state: Dict[str, Any]) -> Dict[str, Any]:
    """Add a checksum of all keys, values, types and shapes to a state."""
    return dict(state, checksum=_checksum(state))


def _checksum(state: Dict[str, Any]) -> int:
    rest = {key: state[key] for key in state if key != 'checksum'}
    text = apply_to(rest, lambda value: type(value) not in _PLAIN, _describe)
    return zlib.crc32(repr(text).encode())


def _describe(value: Any) -> str:
    """A text that is the same in each process and with each version of
    numpy, whatever the policy of a user has kept."""
    if not torch.is_tensor(value):
        return ''
    try:
        checksum = zlib.crc32(value.detach().cpu().numpy().tobytes())
    except (TypeError, RuntimeError):  # As of bfloat16.
        checksum = 0
    return f'{value.dtype} {tuple(value.shape)} {checksum}'


def upgrade(state: Dict[str, Any]) -> Dict[str, Any]:
    """Check a state, and make it as this version would have written it.

    Where the keys change, raise :data:`VERSION`, and add the step from the
    version before.

    Args:
        state (dict): What a checkpoint has under the key ``infobatch``.

    Returns:
        dict: The state of this version. A copy, unless it is of this version.

    Raises:
        ValueError: If the state isn't what :func:`seal` was given, or of a
            newer version, or if parts of an older state are missing.
    """
    if not isinstance(state, dict):
        raise damaged('infobatch', 'is no dict')
    version = state.get('version', 0)
    if isinstance(version, int) and version > VERSION:
        raise ValueRefusal(
            '`infobatch` in the checkpoint is of a newer mmib: update mmib, '
            'or delete the key `infobatch` from the checkpoint, and scores '
            'start at 1 again.')
    # States had a version before they had a checksum.
    if 'checksum' in state and state['checksum'] != _checksum(state):
        raise damaged('infobatch', 'is not what mmib has written')
    if 'version' in state:
        return state
    try:
        return _from_unversioned(state)
    except (AttributeError, IndexError, KeyError, TypeError,
            RuntimeError) as error:
        raise damaged('infobatch', f'lacks something ({error!r})') from error


def _from_unversioned(state: Dict[str, Any]) -> Dict[str, Any]:
    sampler, planner = dict(state['sampler']), dict(state['planner'])
    scores = dict(state['scores'])
    clock = _clock(sampler, planner)
    sampler.setdefault('is_open', False)
    # Of the list of the former policy Subset.
    of_list = sampler.pop('checksum', 0)
    # Version 0.1.0 kept no tiers: these slots aren't counted.
    sampler.setdefault('tiers',
                       torch.zeros(len(sampler['indices']), dtype=torch.int16))

    # Averages began with the scores. Version 0.1.0 didn't say when an image
    # was visited, nor before there was `ema`, whether it was.
    scores.setdefault('averages', scores['scores'])
    visited = scores.pop('visited', scores['scores'] != 1)
    scores.setdefault('last_visit', visited.int())
    scores.setdefault('ema', 0.)

    if 'normalize' not in planner:
        planner['normalize'] = _had_mean_1(sampler, planner)
    num_epochs = planner.pop('num_epochs')
    planner['plans'] = [
        _plan(old, num_epochs + i, sampler['size'], planner['normalize'])
        for i, old in enumerate(planner.pop('epochs'))
    ]
    planner.setdefault('policy_state', None)
    planner.setdefault('read_start', planner['logged_start'])
    planner.setdefault('mean_ratio', (0., 0., 0.))
    planner['visits'] = _visits(planner.get('visits'))
    return dict(
        state,
        version=VERSION,
        sampler=sampler,
        scores=scores,
        planner=dict(planner, clock=clock),
        images=state.get('images'),
        images_checksum=of_list or state.get('images_checksum'))


def _clock(sampler: Dict[str, Any], planner: Dict[str, Any]) -> Dict[str, Any]:
    """What the planner had of the clock."""
    by_epoch = 'is_open' in sampler or 'num_steps' in planner
    clock = {
        name: planner.pop(name)
        for name in ('slots_per_iter', 'full_equivalent', 'origin',
                     'full_until')
    }
    clock.update(unit='iteration', annealing_at=planner.pop('annealing_iter'))
    if by_epoch:
        # All slots until here were trained on, before this was kept.
        planner.setdefault('epoch_end', sampler['position'])
        clock.update({
            name: planner.pop(name)
            for name in ('epoch', 'steps_per_epoch', 'annealing_start',
                         'since', 'epoch_start', 'epoch_end', 'num_steps')
        })
        clock.update(unit='epoch', annealing_at=planner.pop('annealing_epoch'))
    return clock


def _plan(old: Dict[str, Any], epoch: int, pass_length: int,
          normalize: bool) -> Dict[str, Any]:
    of_method = pass_length / old['size']
    histogram = old.get('histogram')
    names = 'edges', 'all', 'kept', 'weighted'
    return dict(
        epoch=epoch,
        start=old['start'],
        iter=0.,
        covered=old['covered'],
        full_equivalent=0.,
        saved_iters=0.,
        kept=old['size'],
        tiers=old['tiers'],
        threshold=old['threshold'],
        mean_weight=old.get('mean_weight', 1. if normalize else of_method),
        mean_score=old['mean_score'],
        variance_ratio=old.get('ratio'),
        mean_ratio=None,
        reliability=old.get('reliability'),
        histogram=histogram and dict(zip(names, histogram)),
        non_finite=old['non_finite'],
        note=old['note'],
        logged=old['logged'])


def _had_mean_1(sampler: Dict[str, Any], planner: Dict[str, Any]) -> bool:
    """Whether the weights of plans had a mean of 1, by those in flight."""
    epoch, size = planner['epochs'][0], sampler['size']
    weights = sampler[
        'weights'][:max(epoch['start'] + epoch['size'] -
                        sampler['position'], 0)]
    of_method = size / epoch['size']
    return bool(of_method > 1.05 and len(weights)
                and abs(float(weights.mean()) - 1) < (of_method - 1) / 2)


def _visits(old: Any) -> Any:
    if old is None:  # Version 0.1.0 had losses alone.
        return dict(rows=None, score='loss')
    if old.get('own_norms'):
        return dict(rows=old['rows'], score=old['score'])
    # An image's norm was its share in the gradient of the batch.
    return dict(
        rows=None,
        score=old['score'].replace('gradient', 'gradient of the batch'))
