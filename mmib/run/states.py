# Copyright (c) mmib contributors. All rights reserved.
"""States in checkpoints: the versions that mmib reads, the form of a state,
and the differences between two states."""
import functools
import math
import numbers
import operator
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch.utils._pytree import tree_map

from ..errors import Refusal, damaged
from ..scores.worth import MOMENTS, MeanRatio

VERSION = 4
"""int: Version of the states that mmib writes."""
VERSIONS = 3, VERSION
"""tuple[int]: Versions of the states that mmib reads."""
# Keys whose value may be None.
_OPTIONAL = re.compile(
    r'reading\.scores|lacks_norms|stream\.plans\.\d+\.keeps')


def to_current(state: Any) -> Dict[str, Any]:
    """Return a state on the host, in the form of the current version.

    Raises:
        Refusal: If the state has an unknown version, or isn't a state.
    """
    if not isinstance(state, dict):
        raise damaged('state', 'is not a dict')
    version = state.get('version')
    if version not in VERSIONS:
        raise Refusal(
            f'The state of InfoBatch in the checkpoint is of version {version}'
            f', and this mmib reads the versions 3 and {VERSION}: resume with '
            'the version of mmib that wrote the checkpoint, or without this '
            'state; then all scores start at 1 again.')
    # Tensors may have been loaded to the training device.
    state = tree_map(lambda x: x.cpu() if torch.is_tensor(x) else x, state)
    if version == VERSION:
        return state
    try:
        return _from_version_3(state)
    # A state without a seal may have any values.
    except Exception as error:
        raise damaged('state', f'is no state of version 3 ({error!r})') \
            from error


def check_form(state: Any, template: Any, where: str = 'state') -> None:
    """Refuse a state that lacks a value, or has one of another type.

    A state is checked before it is loaded. Therefore an error of mmib while
    loading is a bug, and isn't reported as a damaged checkpoint.

    Args:
        state (Any): The state, or a part of it.
        template (Any): A state with the right keys and types. The first entry
            of a list describes all of its entries.
        where (str): The key of the part. Defaults to ``'state'``.

    Raises:
        Refusal: If the state is damaged.
    """
    if isinstance(template, dict):
        if not isinstance(state, dict):
            raise damaged(where, 'is not a dict')
        for name, value in template.items():
            place = name if where == 'state' else f'{where}.{name}'
            if name not in state:
                raise damaged(place, 'is missing')
            check_form(state[name], value, place)
        return
    if state is None and _OPTIONAL.fullmatch(where):
        return
    expected, kind = map(_kind, (template, state))
    if kind != expected:
        raise damaged(where, f'is {kind} and should be {expected}')
    if isinstance(template, list) and template:
        for i, value in enumerate(state):
            check_form(value, template[0], f'{where}.{i}')


def _kind(value: Any) -> str:
    if torch.is_tensor(value):
        return f'a tensor of {value.dtype} with {value.dim()} dimensions'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 'a number'
    # JSON has lists in the place of tuples.
    kind = list if isinstance(value, tuple) else type(value)
    return f'of type {kind.__name__}'


def mismatch(state: Dict[str, Any], own: Dict[str, Any]) -> Optional[str]:
    """Return why a state doesn't fit a run, or None if it fits.

    Args:
        state (dict): A state in the current form, see :func:`to_current`.
        own (dict): The state of the run.

    Raises:
        Refusal: If the state is damaged.
    """
    keeps = torch.empty(0, dtype=torch.uint8)
    plan = dict(
        first_slot=0,
        covered=0,
        kept=0,
        annealing=False,
        mean_weight=0,
        keeps=keeps,
        size=0)
    template = dict(
        own,
        seed=0,
        stream=dict(own['stream'], plans=[plan]),
        records=[dict(kept=0, tiers=[], covered=0)],
        reading=dict(own['reading'], scores=torch.empty(0)),
        lacks_norms=False,
        # The checkpoint may be of another policy.
        policy_state={})
    check_form(state, template)
    by_epoch = state['schedule']['by_epoch']
    if by_epoch != own['schedule']['by_epoch']:
        return ('the checkpoint is of a run that counts '
                f'{"epochs" if by_epoch else "no epochs"}')
    was, has = ((each['schedule']['pass_length'],
                 len(each['tables']['scores'])) for each in (state, own))
    if was != has:
        was, has = (f'{images} images' +
                    (f', {slots} with repeats' if slots > images else '')
                    for slots, images in (was, has))
        return f'the checkpoint is of {was}, and the dataset has {has}'
    was, has = (each['tables']['score'] for each in (state, own))
    if was != has:
        return (f'the scores in the checkpoint are "{was}", and those of this '
                f'run are "{has}"')
    return None


def check_values(state: Dict[str, Any], num_indices: int) -> None:
    """Refuse a state whose columns don't fit together, or that has values out
    of range.

    Args:
        state (dict): A state that has the form of this run, see
            :func:`mismatch`.
        num_indices (int): Indices of the dataset.

    Raises:
        Refusal: If the state is damaged.
    """
    for where, (found, expected) in _lengths(state).items():
        if found != expected:
            raise damaged(where, 'has another length than what belongs to it')
    for where, value in _counts(state).items():
        if not (isinstance(value, numbers.Integral)
                and 0 <= int(value) < 2**63):
            raise damaged(where, 'has a value out of range')
    for where, is_in_range in _ranges(state, num_indices).items():
        if not is_in_range:
            raise damaged(where, 'has a value out of range')


def _lengths(state: Dict[str, Any]) -> Dict[str, Tuple[Any, Any]]:
    """Return the length of each column of a state, and the length that the
    column should have."""
    stream, tables = state['stream'], state['tables']
    pass_length = state['schedule']['pass_length']
    plans, size = stream['plans'], len(stream['indices'])
    packed = {
        len(plan['keeps'])
        for plan in plans if plan['keeps'] is not None
    }
    scores = state['reading']['scores']
    return {
        'records': (len(state['records']), len(plans)),
        'stream.plans': (sum(plan['size'] for plan in plans), size),
        'stream.plans.keeps': (packed | {-(-pass_length // 8)},
                               {-(-pass_length // 8)}),
        'reading.scores': (pass_length if scores is None else len(scores),
                           pass_length),
        **{
            f'stream.{name}': (len(stream[name]), size)
            for name in ('weights', 'tiers', 'relative_weights')
        },
        **{
            f'tables.{name}': (len(tables[name]), len(tables['scores']))
            for name in ('averages', 'last_visit', 'visits', 'pruned')
        }
    }


def _counts(state: Dict[str, Any]) -> Dict[str, Any]:
    """Return the values of a state that must be counts."""
    stream = state['stream']
    counts = {
        'seed': state['seed'],
        'plans_checksum': state['plans_checksum'],
        'stream.position': stream['position'],
        'stream.repeated': stream['repeated'],
        'baseline.used': state['baseline']['used'],
        'schedule.fresh_from': state['schedule']['fresh_from'],
        'tables.non_finite': state['tables']['non_finite']
    }
    for i, plan in enumerate(stream['plans']):
        for name in ('first_slot', 'kept', 'size'):
            counts[f'stream.plans.{i}.{name}'] = plan[name]
    return counts


def _ranges(state: Dict[str, Any], num_indices: int) -> Dict[str, bool]:
    """Return whether each other value of a state is in its range."""
    stream, tables = state['stream'], state['tables']
    plans, scores = stream['plans'], state['reading']['scores']
    weights = torch.stack([stream['weights'], stream['relative_weights']])
    zero, ratio = state['schedule']['zero'], state['reading']['mean_ratio']
    finite = [stream['covered'], *zero]
    for plan in plans:
        finite += [plan['covered'], plan['mean_weight']]
    return {
        'stream.indices': bool(((stream['indices'] >= 0) &
                                (stream['indices'] < num_indices)).all()),
        'stream.weights': bool((weights.isfinite() & (weights >= 0)).all()),
        'stream.tiers': bool((stream['tiers'] >= 0).all()),
        'reading.scores': scores is None or bool(scores.isfinite().all()),
        'tables.scores': bool(tables['scores'].isfinite().all()),
        'tables.averages': bool(tables['averages'].isfinite().all()),
        'baseline': state['baseline']['used'] <= num_indices,
        'schedule.zero': len(zero) == 2
        and (state['schedule']['by_epoch'] or float(zero[0]).is_integer()),
        'reading.mean_ratio': len(ratio) == len(MeanRatio._fields)
        and not any(value < 0 for value in ratio),
        'stream.covered': all(map(math.isfinite, finite)),
        'stream.plans.mean_weight': all(plan['mean_weight'] > 0
                                        for plan in plans),
        'tables.sums': tables['sums'].shape[1] == len(MOMENTS) + 1,
    }


def what_changed(state: Dict[str, Any],
                 own: Dict[str, Any],
                 length_changes: Optional[Sequence[str]] = None) -> List[str]:
    """Return sentences for the log on what has changed since a state was
    written. ``length_changes`` are the sentences on the length of the run, if
    the caller has some. The other arguments are those of :func:`mismatch`."""
    mean = '1' if own['normalize'] else '1 / kept share'
    if length_changes is None:
        before, now = (
            dict(passes=f'{of["annealing_from"] / of["pass_length"]:.6g}')
            for of in (state['schedule'], own['schedule']))
        length_changes = changed(
            before, now, 'annealing begins after {1} passes instead of {0}',
            'passes')
    return [
        *changed(state, own, '`ema` is {1} instead of {0}', 'tables', 'ema'),
        *length_changes,
        *changed(state, own, 'the next plans are drawn by {1} instead of {0}',
                 'policy'),
        *changed(state, own,
                 f'from the next plan on the mean weight is {mean}',
                 'normalize'),
    ]


def changed(state: Any, own: Any, text: str, *keys: str) -> List[str]:
    """Return a sentence if a value of two states differs. ``{0}`` and ``{1}``
    in the sentence are the value before and now."""
    before, now = (
        functools.reduce(operator.getitem, keys, each)
        for each in (state, own))
    return [text.format(before, now)] if before != now else []


def to_tensors(state: Any) -> Any:
    """Return a state with tensors in the place of arrays."""

    def to_tensor(value: Any) -> Any:
        # A copy, because the owner may go on writing to its arrays.
        return torch.from_numpy(value.copy()) if isinstance(
            value, np.ndarray) else value

    return tree_map(to_tensor, state)


def to_arrays(state: Any) -> Any:
    """Return a state with arrays in the place of tensors."""

    def to_array(value: Any) -> Any:
        try:
            return value.numpy().copy() if torch.is_tensor(value) else value
        except (TypeError, RuntimeError):  # numpy has no bfloat16.
            return value

    return tree_map(to_array, state)


def _from_version_3(state: Dict[str, Any]) -> Dict[str, Any]:
    """Return a state of version 3 as a state of version 4. Version 3 counted
    iterations, had a column with the mean weight of the plan of each slot, and
    knew of the newest plan alone which images the plan keeps."""
    schedule, memory = state['schedule'], state['memory']
    stream = _stream_of_version_3(state)
    position, covered = stream['position'], stream['covered']
    pass_length, size = schedule['pass_length'], schedule['slots_per_iter']
    iteration, saved = state['iteration'], state['saved_iters']
    by_epoch = schedule['unit'] == 'epoch'
    zero = [schedule.get('unspent', 0.), 0]
    if not by_epoch:
        zero = [
            position - iteration * size, covered - (iteration + saved) * size
        ]
    gone = ('ledger', 'passes', 'plans', 'memory', 'iteration', 'epoch',
            'saved_iters')
    reading = {
        name: memory[name]
        for name in ('scores', 'mean_score', 'mean_ratio', 'read_at',
                     'logged_at')
    }
    return dict(
        {key: state[key]
         for key in state if key not in gone},
        version=VERSION,
        policy_type=_moved(state['policy_type']),
        stream=stream,
        records=state['plans'],
        baseline=state['passes'],
        schedule=dict(
            by_epoch=by_epoch,
            pass_length=pass_length,
            annealing_from=schedule['annealing_at'] *
            (pass_length if by_epoch else size),
            zero=zero,
            fresh_from=schedule['fresh_from']),
        reading=reading,
        # Of the hook.
        iterations=dict(
            iteration=iteration,
            saved=saved,
            slots_per_iter=size,
            annealing_at=schedule['annealing_at']))


def _stream_of_version_3(state: Dict[str, Any]) -> Dict[str, Any]:
    """Return the state of the stream of a state of version 3."""
    ledger, records = state['ledger'], state['plans']
    position, pass_length = (ledger['position'],
                             state['schedule']['pass_length'])
    end = position + len(ledger['indices'])
    # What was repeated of earlier plans isn't known.
    covered, repeated = float(position), 0
    if records:
        current, newest = records[0], records[-1]
        done = (position - current['first_slot']) / current['kept']
        covered = (current['covered'] + min(done, 1.)) * pass_length
        repeated = max(end - newest['first_slot'] - newest['kept'], 0)
    starts = [position] + [
        max(record['first_slot'], position) for record in records[1:]
    ]
    plans = []
    for record, start, stop in zip(records, starts, [*starts[1:], end]):
        means = ledger['means'][start - position:stop - position]
        is_newest = record is records[-1]
        plans.append(
            dict(
                first_slot=record['first_slot'],
                covered=record['covered'] * pass_length,
                kept=record['kept'],
                annealing=record['annealing'],
                mean_weight=float(means[0])
                if len(means) else record['mean_weight'],
                keeps=state['memory']['kept'] if is_newest else None,
                size=stop - start))
    columns = {name: ledger[name] for name in ('indices', 'weights', 'tiers')}
    return dict(
        columns,
        relative_weights=ledger['weights'] / ledger['means'],
        position=position,
        covered=covered,
        repeated=repeated,
        plans=plans)


def _moved(policy_type: str) -> str:
    """Return the type of a policy by the module in which it is today."""
    for before, now in (('mmib.pruning.policies.', 'mmib.plans.paper.'),
                        ('mmib.pruning.', 'mmib.plans.')):
        if policy_type.startswith(before):
            return now + policy_type[len(before):]
    return policy_type
