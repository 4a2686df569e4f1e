# Copyright (c) mmib contributors. All rights reserved.
"""Checkpoints of an older mmib, from the middle of a virtual epoch.

``tests/checkpoints`` has what mmib wrote at commit 837ca9e in the trainings of
:func:`changes`, without what resuming needs not (config, history of scalars).
``steps.json`` has the steps that followed there without a stop.
"""
import functools
import json
import os.path as osp

import pytest
import torch

from tests.system.processes import run_ranks
from tests.system.small_training import column, train_rank

FOLDER = osp.join(osp.dirname(osp.dirname(__file__)), 'checkpoints')
POLICIES = dict(
    tiers=dict(type='QuantileTiers'),
    neyman=dict(type='Neyman', ratio=0.6, num_strata=3, min_keep=0.3))
with open(osp.join(FOLDER, 'steps.json'), encoding='utf-8') as file:
    # Of each checkpoint and each rank. Those of Neyman end with the slots that
    # were drawn: the norms that its next plans need have another meaning now.
    STEPS = json.load(file)


def changes(name):
    """Changes of ``small_config`` for a training, such as
    ``'epochs_2_tiers'``: by epochs, 2 ranks, with QuantileTiers."""
    loop, _, policy = name.split('_')
    by_epoch = loop == 'epochs'
    train_cfg = dict(
        type='EpochBasedTrainLoop', max_epochs=6) if by_epoch else dict(
            type='IterBasedTrainLoop', max_iters=56)
    return {
        'train_cfg': dict(train_cfg, _delete_=True),
        'train_dataloader.dataset.size': 61,
        # Batches, and with them plans, are read ahead.
        'train_dataloader.num_workers': 2,
        'train_dataloader.sampler.type': 'InfoBatchEpochSampler'
        if by_epoch else 'InfoBatchSampler',
        'custom_hooks': [dict(type='InfoBatchHook', policy=POLICIES[policy])],
        'log_processor.by_epoch': by_epoch,
    }


@pytest.mark.parametrize('name', STEPS)
def test_an_older_checkpoint_goes_on(tmp_path, name):
    """With the same slots and weights to the last bit, and the same losses but
    for how a CPU rounds."""
    path = osp.join(FOLDER, f'{name}.pth')
    state = torch.load(path, weights_only=True)['infobatch']
    # In the middle: some slots of the plan are trained, and some are left.
    assert len(state['sampler']['indices']) > 0
    assert (state['planner']['epochs'][0]['start']
            < state['sampler']['position'])
    resume = functools.partial(
        train_rank,
        work_dir=str(tmp_path),
        changes=dict(changes(name), resume=True, load_from=path))
    num_ranks = len(STEPS[name])
    if num_ranks > 1:
        ranks = run_ranks(resume, num_ranks)
    else:
        resume(0, ranks := [None])
    for steps, expected in zip(ranks, STEPS[name]):
        assert max(max(step['weights']) for step in expected) > 1
        steps = steps[:len(expected)]
        for key in ('iter', 'images', 'weights'):
            assert column(steps, key) == column(expected, key)
        assert column(steps, 'loss') == pytest.approx(
            column(expected, 'loss'), rel=1e-5)
