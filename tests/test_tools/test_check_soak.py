# Copyright (c) mmib contributors. All rights reserved.
"""A short soak passes, and each check of it can fail."""
import copy
import json
import sys

import check_soak
import numpy as np
import pytest
import torch
from check_soak import Account, judge, least_share

from mmib.planner import VirtualEpoch
from mmib.pruning import Budget, MeanThreshold, QuantileTiers, Tier


@pytest.fixture(scope='module')
def soak(tmp_path_factory):
    """Exit status and figures of a short soak, with a real kill."""
    out = str(tmp_path_factory.mktemp('soak') / 'figures.json')
    argv = [
        'check_soak.py', '--virtual-epochs', '8', '--images', '100',
        '--batch-size', '5', '--nan-share', '0.03', '--out', out
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'argv', argv)
        with pytest.raises(SystemExit) as exit_info:
            check_soak.main()
    with open(out) as file:
        return exit_info.value.code, json.load(file)


def test_a_short_soak_passes(soak):
    status, figures = soak
    assert [text for holds, text in judge(figures) if not holds] == []
    assert status == 0
    assert figures['resumed']['iteration'] > 0
    assert figures['covered'] == pytest.approx(8, abs=0.5)
    assert figures['nan_pruning'] > 3
    assert figures['memory'][0][1] > 1e7
    assert len(figures['miou']) >= 20


@pytest.mark.parametrize(
    'changes, said', [
        (dict(resumed=None), 'killed'),
        (dict(problems=['virtual epoch 3 trains on an image twice']), 'twice'),
        (dict(slots=1), 'slots in'),
        (dict(virtual_epochs_mmib=1), 'virtual epochs:'),
        (dict(saved_iters_mmib=1.), 'iterations saved'),
        (dict(never_visited=1), 'full passes'),
        (dict(max_gap=200), 'visited within'),
        (dict(shares=[0.4, 0.6]), 'kept share'),
        (dict(shares=[0.6, 1.]), 'kept share'),
        (dict(weight_mean=0.99), 'mean weight'),
        (dict(weight_variance=10.), 'mean weight'),
        (dict(weighted_annealing=1), 'annealing from'),
        (dict(nan_mmib=0), 'images of NaN'),
        (dict(finite_scores=False), 'are finite'),
        (dict(states=[[10, 10_000, 100, 1], [20, 90_000, 100, 1]]),
         'checkpoints'),
        (dict(states=[[10, 10_000, 100, 1], [20, 10_000, 900, 1]]),
         'checkpoints'),
        (dict(states=[[10, 10_000, 100, 1], [20, 10_000, 100, 9]]),
         'checkpoints'),
        (dict(checkpoints=['a.pth'] * 9), 'are kept'),
    ],
    ids=str)
def test_what_is_wrong_is_seen(soak, changes, said):
    figures = copy.deepcopy(soak[1])
    figures.update(changes)
    failed = [text for holds, text in judge(figures) if not holds]
    assert len(failed) == 1 and said in failed[0]


@pytest.mark.parametrize('leak, seen', [(0, False), (4, True)])
def test_memory_that_grows_is_seen(soak, leak, seen):
    """A table of scores that stays in each virtual epoch."""
    figures = copy.deepcopy(soak[1])
    noise = np.random.default_rng(0).integers(0, 2**18, 200)
    figures['images'] = 20_000
    figures['memory'] = [[i, 5e8 + leak * 20_000 * i + int(noise[i]), 0]
                         for i in range(200)]
    failed = [text for holds, text in judge(figures) if not holds]
    assert any('resident memory' in text for text in failed) == seen


def virtual_epoch(*tiers):
    return VirtualEpoch(
        start=0,
        covered=0.,
        size=sum(kept for _, kept in tiers),
        threshold=1.,
        tiers=tuple(Tier(*tier) for tier in tiers),
        mean_score=1.,
        non_finite=0,
        note='',
        logged=True)


@pytest.mark.parametrize('indices, weights, problem', [
    ([4, 0, 2], [1., 2., 2.], None),
    ([4, 0, 0], [1., 2., 2.], 'an image twice'),
    ([4, 0], [1., 2.], '2 slots instead of 3'),
    ([4, 0, 2], [1., 1., 2.], 'other weights'),
])
def test_account_of_a_plan(indices, weights, problem):
    account = Account(5)
    account.add(indices, weights)
    account.close(virtual_epoch((4, 2), (1, 1)), cut=False)
    if problem is None:
        assert account.problems == []
        assert account.weight_sums.tolist() == [2, 0, 2, 0, 1]
        # 4 of 5 images have a weight of 2 or 0.
        assert account.variance == pytest.approx(4 / 5)
        assert account.covered == 1 and account.shares == [3 / 5]
    else:
        assert len(account.problems) == 1
        assert problem in account.problems[0]


def test_account_of_gaps_and_cut_plans():
    account = Account(3)
    for indices in [0, 1, 2], [1], [1], [0]:
        account.add(indices, [1.] * len(indices))
        epoch = virtual_epoch(
            (3, 3))._replace(start=account.slots - len(indices))
        account.close(epoch, cut=True)
    assert account.problems == []
    assert account.max_gap == 3
    assert account.covered == pytest.approx(2)
    copied = Account(3)
    copied.load_state_dict(account.state_dict())
    assert copied.last_visits.tolist() == [4, 3, 1]
    assert isinstance(account.state_dict()['last_visits'], torch.Tensor)


@pytest.mark.parametrize('policy, share', [
    (QuantileTiers(), 0.525),
    (MeanThreshold(ratio=0.4), 0.6),
    (Budget(100, max_ratio=0.7), 0.3),
])
def test_least_share(policy, share):
    assert least_share(policy) == pytest.approx(share)
