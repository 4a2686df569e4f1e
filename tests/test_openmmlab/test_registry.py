# Copyright (c) mmib contributors. All rights reserved.
"""Policies in configs."""
import pytest

from mmib.errors import Refusal
from mmib.openmmlab.registry import build_policy
from mmib.plans.plan import prune_tiers
from tests.test_plans.test_policies import Stateful


def test_policies_are_built_from_configs():
    policy = build_policy(dict(type='Neyman', ratio=0.5, min_keep=0.2))
    assert repr(policy) == 'Neyman(ratio=0.5, num_tiers=10, min_keep=0.2)'
    assert build_policy(policy) is policy


@pytest.mark.parametrize('wrong, match', [
    (dict(type='MeanThreshold', quantiles=(0.2, )), 'quantiles.*`custom_ho'),
    (dict(type='MeanTreshold'), "MeanTreshold.*'Neyman'.*custom_imports"),
    (dict(type=prune_tiers), 'tier_of_image.*change the arguments'),
    ('MeanThreshold', '`policy` must be a policy'),
    (None, '`policy` must be a policy'),
    (Stateful(), 'is not a `mmib.pruning.Policy`: derive'),
])
def test_configs_of_no_policy(wrong, match):
    with pytest.raises(Refusal, match=match):
        build_policy(wrong)
