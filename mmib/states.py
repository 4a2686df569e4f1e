# Copyright (c) mmib contributors. All rights reserved.
"""States in checkpoints: the versions that mmib reads, the form of a state,
and the differences between two states."""
import functools
import operator
import re
from typing import Any, Dict, List, Optional

import numpy as np
import torch
from torch.utils._pytree import tree_map

from .errors import Refusal, damaged

VERSION = 3
"""int: Version of the states that mmib writes."""
VERSIONS = 2, VERSION
"""tuple[int]: Versions of the states that mmib reads."""
# Keys whose value may be None.
_OPTIONAL = 'memory.scores', 'memory.kept', 'lacks_norms'


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
            f', and this mmib reads the versions 2 and {VERSION}: resume with '
            'the version of mmib that wrote the checkpoint, or without this '
            'state; then all scores start at 1 again.')
    # Tensors may have been loaded to the training device.
    state = tree_map(lambda x: x.cpu() if torch.is_tensor(x) else x, state)
    if version != VERSION:
        try:
            state = _upgraded(**state)
        except (TypeError, LookupError, AttributeError) as error:
            raise damaged('state', f'lacks a value ({error})') from error
    # Early states of version 3 lack `unspent`, and have the arguments of
    # Neyman under other names and in another order.
    if isinstance(schedule := state.get('schedule'), dict):
        schedule.setdefault('unspent', 0.)
    if isinstance(policy := state.get('policy'), str):
        state['policy'] = re.sub(
            r'^Neyman\(num_(?:strata|tiers)=(.*), (ratio=.*)\)$',
            r'Neyman(\2, num_tiers=\1)', policy)
    return state


def check_form(state: Any, form: Any, where: str = 'state') -> None:
    """Refuse a state that lacks a value, or has one of another type.

    A state is checked before it is loaded. Therefore an error of mmib while
    loading is a bug, and isn't reported as a damaged checkpoint.

    Args:
        state (Any): The state, or a part of it.
        form (Any): A template: a state with the right keys and types. The
            first entry of a list describes all of its entries.
        where (str): The key of the part. Defaults to ``'state'``.

    Raises:
        Refusal: If the state is damaged.
    """
    if isinstance(form, dict):
        if not isinstance(state, dict):
            raise damaged(where, 'is not a dict')
        for name, value in form.items():
            place = name if where == 'state' else f'{where}.{name}'
            if name not in state:
                raise damaged(place, 'is missing')
            check_form(state[name], value, place)
        return
    if where in _OPTIONAL and state is None:
        return
    expected, kind = map(_kind, (form, state))
    if kind != expected:
        raise damaged(where, f'is {kind} and should be {expected}')
    if isinstance(form, list) and form:
        for i, value in enumerate(state):
            check_form(value, form[0], f'{where}.{i}')


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
    form = dict(
        own,
        seed=0,
        plans=[dict(kept=0, tiers=[], covered=0)],
        memory=dict(
            own['memory'],
            scores=torch.empty(0),
            kept=torch.empty(0, dtype=torch.uint8)),
        lacks_norms=False,
        # The checkpoint may be of another policy.
        policy_state={})
    check_form(state, form)
    unit = state['schedule']['unit']
    if unit != own['schedule']['unit']:
        return f'the checkpoint is of a run that counts {unit}s'
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


def what_changed(state: Dict[str, Any], own: Dict[str, Any]) -> List[str]:
    """Return sentences for the log on what has changed since a state was
    written. Takes the arguments of :func:`mismatch`."""
    unit = own['schedule']['unit']
    mean = '1' if own['normalize'] else '1 / kept share'
    texts = (
        ('`ema` is {1} instead of {0}', 'tables', 'ema'),
        ('an iteration has {1} images instead of {0}', 'schedule',
         'slots_per_iter'),
        (f'annealing begins at {unit} {{1}} instead of {{0}}', 'schedule',
         'annealing_at'),
        ('the next plans are drawn by {1} instead of {0}', 'policy'),
        (f'from the next plan on the mean weight is {mean}', 'normalize'),
    )
    changes = []
    for text, *keys in texts:
        before, now = (
            functools.reduce(operator.getitem, keys, each)
            for each in (state, own))
        if before != now:
            changes.append(text.format(before, now))
    return changes


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


def _upgraded(sampler: Dict[str, Any], clock: Dict[str, Any],
              planner: Dict[str, Any], **others: Any) -> Dict[str, Any]:
    """Return a state of version 2, which mmib wrote before a Session had a
    loader, as a state of version 3."""
    slots, position = sampler['slots'], sampler['position']
    epoch, is_over = clock.get('epoch', 0), others.pop('is_over', None)
    others.pop('batch_size', None)
    if is_over is not None and clock['unit'] == 'epoch':
        # A Session counted an epoch when it was over.
        if not sampler['is_open']:
            epoch -= 1
        elif is_over:
            position += len(slots['indices'])
            slots = {name: column[:0] for name, column in slots.items()}
    logged_at, read_at = planner['starts'][:2]
    of_planner = ('plans', 'policy', 'policy_type', 'policy_state',
                  'normalize')
    memory = dict(
        kept=None,
        read_at=read_at,
        logged_at=logged_at,
        **{
            name: planner[name]
            for name in ('scores', 'mean_score', 'mean_ratio')
        })
    return dict(
        others,
        version=VERSION,
        seed=sampler['seed'],
        ledger=dict(slots, position=position),
        passes=sampler['full_passes'],
        rng=sampler['plans_rng'],
        epoch=epoch,
        schedule=clock,
        plans_checksum=planner['checksum'],
        memory=memory,
        **{name: planner[name]
           for name in of_planner})
