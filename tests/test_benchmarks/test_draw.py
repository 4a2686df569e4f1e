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


@functools.lru_cache(None)
def weights_of(way, reliability=1.):
    return draw.simulate(draw.WAYS[way], (SIZES, KEPT), SCORES, (PASSES, SIMS),
                         reliability)


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
    if way == 'rotation':
        assert (means > 1.1).all()
    else:
        # 10,000 draws of each image and more.
        np.testing.assert_allclose(means, 1, atol=0.04)


def test_rotation_is_balanced_over_the_training():
    """The visits of each image are right up to one."""
    weights = weights_of('rotation')
    due = np.abs(weights.sum(0) - PASSES)
    assert (due <= (SIZES / KEPT)[STRATUM] + 1e-3).all()


def test_gaps_of_rotation_are_bounded():
    weights = weights_of('rotation')
    for stratum, (size, kept) in enumerate(zip(SIZES, KEPT)):
        gaps = draw.longest_gaps(weights[..., STRATUM == stratum])
        assert gaps.max() == -(-size // kept)


def test_rotation_is_nearly_balanced_where_strata_change():
    off = {
        way: ((weights_of(way, 0.4).sum(0) - PASSES)**2).mean()
        for way in ('random', 'rotation')
    }
    assert 0 < off['rotation'] < off['random'] / 4


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
    assert table.loc[('at random', 'rotation'), 'gap'] == 2
