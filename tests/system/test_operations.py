# Copyright (c) mmib contributors. All rights reserved.
"""A step dispatches at most 30 operations more than the baseline's. On a GPU
each costs some microseconds of host time. Other libraries have this test
beside their own."""
import pytest

from tests.system import test_worth  # noqa: F401
from tests.test_tasks import test_per_sample as per_sample

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
    """Passes of 104 iterations and fewer."""
    counts = []
    for policy in (None, dict(type='Neyman', ratio=0.6)):
        runner = per_sample.build(
            tmp_path / str(len(counts)), policy,
            **{'train_dataloader.dataset.type': 'EquallyHard'})
        runner.model.infobatch_predictions = 'layer'
        counts.append(operations_per_step(runner, 110, 174))
    assert counts[1] - counts[0] <= 30, counts
