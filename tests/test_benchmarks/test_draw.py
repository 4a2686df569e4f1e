# Copyright (c) mmib contributors. All rights reserved.
"""What each way to draw does to the weights, with constant strata."""
import functools

import numpy as np
import pytest

from benchmarks import draw

SIZES, KEPT = np.array([9, 14, 7, 5]), np.array([3, 9, 2, 5])
SCORES = np.random.default_rng(1).permutation(SIZES.sum()).astype(float)
STRATUM = np.repeat(np.arange(4), SIZES)[SCORES.astype(int)]
PASSES, SIMS = 40, 1000
WAYS = list(draw.WAYS)
ROTATIONS = WAYS[2:]


@functools.lru_cache(None)
def weights_of(way, reliability=1.):
    return draw.simulate(*draw.WAYS[way], (SIZES, KEPT), SCORES,
                         (PASSES, SIMS), reliability)


@pytest.mark.parametrize('way', WAYS)
def test_each_stratum_keeps_its_number(way):
    weights = weights_of(way)
    for stratum, (size, kept) in enumerate(zip(SIZES, KEPT)):
        own = weights[..., STRATUM == stratum]
        assert ((own > 0).sum(-1) == kept).all()
        np.testing.assert_allclose(own[own > 0], size / kept, rtol=1e-6)


@pytest.mark.parametrize('way', WAYS)
def test_each_pass_is_unbiased(way):
    """Over all that could have happened."""
    last = weights_of(way)[-1]
    errors = (SIZES / KEPT - 1)[STRATUM]**0.5 / SIMS**0.5
    assert (np.abs(last.mean(0) - 1) <= 5 * errors + 1e-6).all()


@pytest.mark.parametrize('way', WAYS)
def test_given_the_past(way):
    """Rotation knows the next pass from those before, the others don't."""
    weights = weights_of(way)
    after = np.where(weights[:-1] == 0, weights[1:], np.nan)
    # The last stratum keeps all.
    means = np.nanmean(after[..., STRATUM < 3], axis=(0, 1))
    if way in ROTATIONS:
        assert (means > 1.1).all()
    else:
        # 10,000 draws of each image and more.
        np.testing.assert_allclose(means, 1, atol=0.04)


@pytest.mark.parametrize('way', ROTATIONS)
def test_rotation_is_balanced_over_the_training(way):
    """The visits of each image are right up to one."""
    weights = weights_of(way)
    due = np.abs(weights.sum(0) - PASSES)
    assert (due <= (SIZES / KEPT)[STRATUM] + 1e-3).all()


@pytest.mark.parametrize('way', ROTATIONS)
def test_gaps_of_rotation_are_bounded(way):
    weights = weights_of(way)
    for stratum, (size, kept) in enumerate(zip(SIZES, KEPT)):
        gaps = draw.longest_gaps(weights[..., STRATUM == stratum])
        assert gaps.max() == -(-size // kept)


def test_paying_the_weight_keeps_the_balance_of_changing_strata():
    due = {}
    for way in ROTATIONS:
        off = weights_of(way, 0.4).sum(0) - PASSES
        due[way] = (off**2).mean()**0.5
    random = weights_of('random', 0.4).sum(0) - PASSES
    assert due[ROTATIONS[1]] < due[ROTATIONS[0]] < (random**2).mean()**0.5


def test_errors_are_of_the_weighted_mean():
    """With gradients of one number each it can be computed by hand."""
    gradients = np.arange(4.)
    weights = np.array(
        [[[2, 0, 0, 2]], [[0, 2, 2, 0]], [[2, 2, 0, 0]], [[0, 0, 2, 2]]] * 2,
        np.float32)
    row = draw.judge(weights, np.outer(gradients, gradients), np.ones(4))
    assert row[1] == pytest.approx((0 + 0 + 1 + 1) / 4)
    assert row[2] == row[4] == row[8] == 0
    # Two crops of weight 2, over four images.
    assert row['8 + crops'] == pytest.approx(8 / 16 / 8)
    assert row['gap'] == 3 and row['due'] == 0


def test_table():
    """Errors are relative to those drawn at random."""
    rng = np.random.default_rng(0)
    table = draw.compare(
        rng.random(60), rng.standard_normal((3, 60, 5)), (8, 50), 0.4)
    assert set(table.index.levels[0]) == {'Neyman', 'at random', 'tiers'}
    random = table.xs('random', level=1)
    assert (random[[1, '1 + crops', '8 + crops']] == 1).all(axis=None)
    assert table.loc[('at random', 'rotation, pays 1'), 'gap'] == 2
