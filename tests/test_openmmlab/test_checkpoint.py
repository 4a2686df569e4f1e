# Copyright (c) mmib contributors. All rights reserved.
"""States in checkpoints of MMEngine are sealed, so that each damage is found.
"""
import math

import numpy as np
import pytest
import torch

from mmib.errors import Refusal
from mmib.openmmlab.runner.checkpoint import seal, unsealed
from mmib.pruning import Neyman
from tests.helpers.runs import DrivenRun, state_of

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


def test_each_damage_is_refused():
    """And nothing else."""
    state = seal(state_of(DrivenRun(Neyman()).train(30).run))
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
