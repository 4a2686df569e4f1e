# Copyright (c) mmib contributors. All rights reserved.
"""A step dispatches at most 30 operations more than the baseline's. On a GPU
each costs some microseconds of host time. Other libraries have this test
beside their own."""
import pytest
from mmengine.runner import Runner

from tests.system.test_norms import config as per_sample_config

from .operations import operations_per_step
from .small_training import BASELINE, build


@pytest.mark.parametrize('policy', ['Neyman', 'MeanThreshold'])
def test_segmentation(tmp_path, policy):
    """Two heads, and passes of 100 iterations and more."""
    counts = []
    for changes in (BASELINE, {'custom_hooks.0.policy.type': policy}):
        runner = build(
            tmp_path / str(len(counts)), **{
                'train_cfg.max_iters': 300,
                'train_dataloader.dataset.size': 400,
                **changes
            })
        counts.append(operations_per_step(runner, 150, 214))
    assert counts[1] - counts[0] <= 30, counts


def test_per_sample(tmp_path):
    counts = []
    for changes in ({
            'train_dataloader.sampler.type': 'DefaultSampler',
            'custom_hooks': []
    }, {}):
        cfg = per_sample_config(
            tmp_path / str(len(counts)), **{
                'train_dataloader.batch_size': 4,
                'train_cfg.max_epochs': 4,
                **changes
            })
        counts.append(operations_per_step(Runner.from_cfg(cfg), 110, 174))
    assert counts[1] - counts[0] <= 30, counts
