# Copyright (c) mmib contributors. All rights reserved.
"""Optimizers of torch: what a weight of 2 does is what the page says, and
ratio 0 is the baseline."""
import copy
import os.path as osp

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import TensorDataset

from research.optimizers.optimizers import (OPTIMIZERS, classifier, compare,
                                            needs_mmpretrain, samples)

from ..test_benchmarks.utils import ROOT, rows_of
from .small_training import infobatch_hook, weights_of

NAMES = [n for n, cfg in OPTIMIZERS.items() if not needs_mmpretrain(cfg)]


def check_row_of_the_page(name):
    page = osp.join(ROOT, 'research', 'optimizers', 'README.md')
    with open(page) as file:
        rows = {row[0]: row[1:] for row in rows_of(file.read())}
    expected = [float(cell) for cell in rows[name]]
    np.testing.assert_allclose(
        compare(OPTIMIZERS[name]), expected, rtol=0, atol=0.02)


class Losses(Hook):
    """Losses, and what is weighted to them where there are weights."""

    priority = 'HIGH'

    def __init__(self):
        self.losses, self.expected = [], []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.losses.append(outputs['loss'].item())
        hook = infobatch_hook(runner)
        if hook and hook.batch.weights is not None:
            weighted = hook.batch.weights * hook.batch.scores
            self.expected.append(weighted.mean().item())


def train(name, work_dir, ratio):
    cfg = copy.deepcopy(OPTIMIZERS[name])
    # Rates of a training: those of the table are nearly 0.
    cfg['optimizer']['lr'] *= 1000
    sampler = 'DefaultSampler' if ratio is None else 'InfoBatchSampler'
    policy = dict(type='RandomPruning', ratio=ratio)
    log = Losses()
    runner = Runner(
        model=classifier(cfg),
        work_dir=str(work_dir),
        experiment_name=str(work_dir),
        randomness=dict(seed=0),
        train_dataloader=dict(
            batch_size=8,
            dataset=TensorDataset(*samples(0, 40)),
            collate_fn=dict(type='default_collate'),
            sampler=dict(type=sampler)),
        optim_wrapper=cfg,
        train_cfg=dict(by_epoch=True, max_epochs=6),
        default_hooks=dict(checkpoint=None),
        custom_hooks=[log]
        if ratio is None else [dict(type='InfoBatchHook', policy=policy), log])
    runner.train()
    return runner, log


def check_trainings(name, tmp_path):
    """Equal to the last bit with ratio 0; else the loss follows from the
    weights."""
    baseline, log = train(name, tmp_path / 'baseline', None)
    ratio_0, log_0 = train(name, tmp_path / 'ratio 0', 0.)
    assert log_0.losses == log.losses and len(log.losses) == 30
    assert log.losses[-1] != log.losses[0]
    torch.testing.assert_close(
        weights_of(ratio_0), weights_of(baseline), rtol=0, atol=0)
    _, pruned = train(name, tmp_path / 'pruned', 0.5)
    assert len(pruned.losses) < 30
    np.testing.assert_allclose(
        pruned.losses[:len(pruned.expected)], pruned.expected, rtol=1e-5)


@pytest.mark.parametrize('name', NAMES)
def test_rows_of_the_page(name):
    check_row_of_the_page(name)


@pytest.mark.parametrize('name', NAMES[2:])
def test_trainings(name, tmp_path):
    check_trainings(name, tmp_path)
