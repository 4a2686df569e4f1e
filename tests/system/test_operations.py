# Copyright (c) mmib contributors. All rights reserved.
"""Operations of a step. Other libraries have this test beside their own."""
import pytest

from tests.helpers.segmentors import BASELINE, build
from tests.system import test_worth  # noqa: F401
from tests.test_tasks import test_per_sample as per_sample

from .operations import assert_few_more


@pytest.mark.parametrize('policy, at_most', [('Neyman', 14),
                                             ('MeanThreshold', 14),
                                             ('ScoreOnly', 16)])
def test_segmentation(tmp_path, policy, at_most):
    """Two heads, in the first plan that prunes, of 36 iterations and more.
    ScoreOnly computes the baseline's loss besides."""
    size = {'train_cfg.max_iters': 165, 'train_dataloader.dataset.size': 240}
    assert_few_more(
        build(tmp_path / 'baseline', **size, **BASELINE),
        build(tmp_path / 'pruned', **size,
              **{'custom_hooks.0.policy.type': policy}),
        at_most,
        first=82,
        last=114)


def test_per_sample(tmp_path):
    """Three losses, and passes of 104 iterations and fewer."""
    runners = [
        per_sample.build(tmp_path / str(policy), policy,
                         **{'train_dataloader.dataset.type': 'EquallyHard'})
        for policy in (None, dict(type='Neyman', ratio=0.6))
    ]
    for runner in runners:
        runner.model.infobatch_predictions = 'layer'
    assert_few_more(*runners, at_most=17, first=110, last=174)
