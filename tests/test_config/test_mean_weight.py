# Copyright (c) mmib contributors. All rights reserved.
import copy
import re

import pytest
import torch
from mmengine.optim import OptimWrapperDict, build_optim_wrapper

from mmib.openmmlab.runner.mean_weight import decide_mean_weight
from tests.helpers.segmentors import infobatch_hook, read_log, small_runner

SGD = dict(optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
ADAMW = dict(optimizer=dict(type='AdamW', lr=0.001))


@pytest.mark.parametrize('changes, is_one, why', [
    ({}, False, 'SGD are in proportion'),
    (dict(accumulative_counts=4), False, 'SGD are'),
    (dict(clip_grad=dict(max_norm=1.)), True, '`clip_grad`'),
    (dict(clip_grad=dict(type='value', clip_value=1.)), False, 'SGD are'),
    *((dict(optimizer=dict(type=kind, lr=0.1)), True, f'{kind} are not known')
      for kind in ('Adam', 'AdamW', 'RMSprop', 'LBFGS')),
])
def test_decided_by_the_optimizer(changes, is_one, why):
    """The same of a config and of what is built from it."""
    cfg = {**copy.deepcopy(SGD), **changes}
    of_config = decide_mean_weight(None, cfg)
    model = torch.nn.Linear(1, 1)
    built = decide_mean_weight(None, build_optim_wrapper(model, cfg))
    assert built == of_config
    assert of_config.is_one is is_one
    assert re.search(why, of_config.why)
    for normalize in (True, False):
        told = decide_mean_weight(normalize, cfg)
        assert told == (normalize, f'`normalize={normalize}`')


def test_several_optimizers():
    """All or nothing: a sample has one weight."""
    first, second, third = (
        build_optim_wrapper(torch.nn.Linear(1, 1), copy.deepcopy(cfg))
        for cfg in (SGD, SGD, ADAMW))
    assert not decide_mean_weight(None, OptimWrapperDict(a=first,
                                                         b=second)).is_one
    assert decide_mean_weight(None, OptimWrapperDict(a=first, b=third)).is_one
    assert decide_mean_weight(None, dict(constructor='Mine', a=SGD,
                                         b=ADAMW)).is_one


@pytest.mark.parametrize('cfg, is_one, told', [
    (SGD, False, 'weights of each plan have the mean of the method, 1 / kept'),
    (ADAMW, True, 'weights of each plan have a mean of 1, so that steps are'),
])
def test_mean_weight_of_plans(tmp_path, cfg, is_one, told):
    runner = small_runner(
        tmp_path, optim_wrapper=dict(copy.deepcopy(cfg), _delete_=True))
    runner.train()
    assert infobatch_hook(runner).run.normalize is is_one
    assert told in read_log(tmp_path)
