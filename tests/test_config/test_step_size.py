# Copyright (c) mmib contributors. All rights reserved.
import copy
import re

import numpy as np
import pytest
import torch
from mmengine.optim import OptimWrapperDict, build_optim_wrapper

from mmib.config.step_size import decide
from tests.system.small_training import (SAVED, build, column, infobatch_hook,
                                         train)

SGD = dict(optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
ADAMW = dict(optimizer=dict(type='AdamW', lr=0.001))


@pytest.mark.parametrize('changes, is_one, why', [
    ({}, False, 'SGD are in proportion'),
    (dict(accumulative_counts=4), False, 'SGD are'),
    (dict(clip_grad=dict(max_norm=1.)), True, '`clip_grad`'),
    (dict(clip_grad=dict(type='value', clip_value=1.)), False, 'SGD are'),
    *((dict(optimizer=dict(type=kind, lr=0.1)), True, f'{kind} divides by')
      for kind in ('Adam', 'AdamW', 'NAdam', 'Adamax', 'RMSprop', 'Adagrad')),
    (dict(optimizer=dict(type='LBFGS')), True, 'not known how.* LBFGS'),
])
def test_decided_by_the_optimizer(changes, is_one, why):
    """The same of a config and of what is built from it."""
    cfg = {**copy.deepcopy(SGD), **changes}
    of_config = decide(None, cfg)
    model = torch.nn.Linear(1, 1)
    built = decide(None, build_optim_wrapper(model, cfg))
    assert built == of_config
    assert of_config.is_one is is_one
    assert re.search(why, of_config.why)
    for normalize in (True, False):
        told = decide(normalize, cfg)
        assert told == (normalize, f'`normalize={normalize}`')


def test_several_optimizers():
    """All or nothing: a sample has one weight."""
    wrappers = [
        build_optim_wrapper(torch.nn.Linear(1, 1), copy.deepcopy(cfg))
        for cfg in (SGD, SGD, ADAMW)
    ]
    both = OptimWrapperDict(first=wrappers[0], second=wrappers[1])
    assert not decide(None, both).is_one
    mixed = OptimWrapperDict(first=wrappers[0], second=wrappers[2])
    assert decide(None, mixed).is_one
    cfg = dict(constructor='TwoNetworks', first=SGD, second=ADAMW)
    assert decide(None, cfg).is_one


@pytest.mark.parametrize('optimizer, normalize, is_one', [
    (SGD, None, False),
    (ADAMW, None, True),
    (SGD, True, True),
    (ADAMW, False, False),
])
def test_mean_weight_of_plans(tmp_path, optimizer, normalize, is_one):
    runner = build(
        tmp_path, **{
            'optim_wrapper.optimizer': dict(
                optimizer['optimizer'], _delete_=True),
            'train_cfg.max_iters': 200,
            'train_dataloader.dataset.size': 60,
            'custom_hooks.0.policy': dict(type='Neyman', ratio=0.6),
            'custom_hooks.0.normalize': normalize
        })
    means = []
    infobatch_hook(runner).plan_observers.append(
        lambda epoch, plan: plan is None or len(plan) < epoch.kept or means.
        append((epoch.mean_weight, float(plan.weights.mean()))))
    train(runner)
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert len(means) > 3
    if is_one:
        np.testing.assert_allclose(means, 1, rtol=1e-3)
        assert 'The weights of each plan have a mean of 1' in log
        assert 'so losses stay about as high' in log
    else:
        assert np.min(means) > 1.3
        assert 'have the mean of the method' in log
        assert 'Losses rise, and fall' in log


def test_another_mean_after_a_resume(tmp_path):
    """The plan in training keeps its weights, and V their mean."""
    changes = {
        'train_cfg.max_iters': 60,
        'train_dataloader.dataset.size': 31,
        'custom_hooks.0.policy': dict(type='RandomPruning', ratio=0.5)
    }
    train(build(tmp_path, **changes))
    resumed = build(
        tmp_path / 'resumed',
        resume=True,
        load_from=str(tmp_path / f'iter_{SAVED}.pth'),
        **{
            **changes, 'custom_hooks.0.normalize': True
        })
    epochs = []
    hook = infobatch_hook(resumed)
    hook.plan_observers.append(lambda epoch, plan: epochs.append(epoch))
    steps = train(resumed)
    log = next(tmp_path.glob('resumed/*/*.log')).read_text()
    assert 'from the next plan on the mean weight is 1' in log
    first = epochs[0].start // 3 - SAVED
    assert 0 < first < len(steps)
    assert np.min(column(steps[:first], 'weights')) > 1.9
    pruned = [epoch for epoch in epochs if epoch.kept < 31]
    assert pruned and {epoch.mean_weight for epoch in pruned} == {1.}
