# Copyright (c) mmib contributors. All rights reserved.
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from mmib.pruning import (POLICIES, EpochPlan, MeanThreshold, QuantileTiers,
                          Tier)
from mmib.registry import build_policy

finite = st.floats(0, 1e6, width=32)
scores_of_any_size = st_numpy.arrays(
    np.float32, st.integers(1, 60), elements=finite)
ratios = st.floats(0, 0.99)
policies = st.one_of(
    st.builds(MeanThreshold, ratios),
    st.builds(QuantileTiers, st.just((0.2, 0.85)), st.tuples(ratios, ratios)),
    st.builds(QuantileTiers, st.just((0.5, )), st.tuples(ratios)),
    st.builds(QuantileTiers, st.just((0.1, 0.5, 1.)),
              st.tuples(ratios, ratios, ratios)))
rngs = st.integers(0, 2**32).map(np.random.default_rng)


def tiers_by_hand(policy, scores):
    """(ratio, images of the tier), from the definition of each policy."""
    if isinstance(policy, MeanThreshold):
        edges = [np.float32(scores.astype(np.float64).mean())]
        tier_ratios = [policy.ratio]
    else:
        edges = np.quantile(scores, policy.quantiles).astype(np.float32)
        tier_ratios = policy.ratios
    low = np.concatenate([[-np.inf], edges])
    high = np.concatenate([edges, [np.inf]])
    return [(ratio, np.flatnonzero((scores >= a) & (scores < b)))
            for ratio, a, b in zip((*tier_ratios, 0.), low, high)]


@given(policies, scores_of_any_size, rngs)
def test_every_tier_keeps_its_share_and_its_weight(policy, scores, rng):
    plan = policy(scores, rng)
    assert np.issubdtype(plan.indices.dtype, np.integer)
    assert plan.weights.dtype == np.float32
    assert plan.indices.shape == plan.weights.shape
    assert len(np.unique(plan.indices)) == len(plan.indices)
    for (ratio, members), tier in zip(
            tiers_by_hand(policy, scores), plan.tiers, strict=True):
        inside = np.isin(plan.indices, members)
        kept = len(members) - int(ratio * len(members))
        assert tier == (len(members), kept)
        assert inside.sum() == kept
        if kept:
            np.testing.assert_allclose(plan.weights[inside],
                                       len(members) / kept, 1e-6)
            assert kept and len(members) / kept <= 1 / (1 - ratio) + 1e-6
    # Each plan stands for the whole data set.
    np.testing.assert_allclose(plan.weights.sum(), len(scores), rtol=1e-4)


@given(policies, finite, st.integers(1, 60), rngs)
def test_ties_are_never_pruned(policy, score, size, rng):
    plan = policy(np.full(size, score, np.float32), rng)
    assert sorted(plan.indices) == list(range(size))
    assert (plan.weights == 1).all()


@pytest.mark.parametrize('score', [0.1, 1 / 3, 0.7, 1e-3])
def test_the_mean_of_many_equal_scores_is_that_score(score):
    scores = np.full(1_000_003, score, np.float32)
    plan = MeanThreshold()(scores, np.random.default_rng(0))
    assert len(plan) == len(scores)


@given(st.integers(2, 60), rngs)
def test_ratio_0_keeps_everything(size, rng):
    scores = np.arange(size, dtype=np.float32)
    for policy in (MeanThreshold(0), QuantileTiers(ratios=(0, 0))):
        plan = policy(scores, rng)
        assert sorted(plan.indices) == list(range(size))
        assert (plan.weights == 1).all()


@pytest.mark.parametrize('size', [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    'policy', [
        MeanThreshold(0.5),
        MeanThreshold(0.37),
        QuantileTiers(),
        QuantileTiers((0.3, 0.6, 0.9), (0.9, 0.61, 0.13)),
    ],
    ids=repr)
def test_the_mean_weight_of_each_image_is_1(policy, size):
    """Invariant 2, within five standard errors of the sample."""
    rng = np.random.default_rng(size)
    scores = rng.lognormal(size=size).astype(np.float32)
    num_plans = 20_000 if size < 100 else 4_000
    total, squares = np.zeros(size), np.zeros(size)
    for _ in range(num_plans):
        plan = policy(scores, rng)
        total[plan.indices] += plan.weights
        squares[plan.indices] += plan.weights.astype(np.float64)**2
    mean = total / num_plans
    error = np.sqrt((squares / num_plans - mean**2) / num_plans)
    assert (np.abs(mean - 1) <= 5 * error + 1e-6).all(), mean


def test_the_order_is_uniform():
    """Each image, pruned tier or not, is as likely in each half."""
    rng = np.random.default_rng(0)
    scores = np.arange(10, dtype=np.float32)
    first_half, seen = np.zeros(10), np.zeros(10)
    for _ in range(20_000):
        order = MeanThreshold(0.4)(scores, rng).indices
        seen[order] += 1
        first_half[order[:len(order) // 2]] += 1
    np.testing.assert_allclose(first_half / seen, 0.5, atol=0.02)


def test_flagship_keeps_52_5_percent():
    scores = np.random.default_rng(0).lognormal(size=20210).astype(np.float32)
    plan = QuantileTiers()(scores, np.random.default_rng(0))
    assert plan.tiers == ((4042, 1011), (13136, 6568), (3032, 3032))
    assert abs(len(plan) / 20210 - 0.525) < 1e-4


@given(policies, scores_of_any_size, st.integers(0, 99))
@settings(max_examples=30)
def test_plans_follow_from_the_generator_alone(policy, scores, seed):
    before = np.random.get_state()[1].copy()
    one, two = (policy(scores, np.random.default_rng(seed)) for _ in range(2))
    assert np.array_equal(one.indices, two.indices)
    assert np.array_equal(one.weights, two.weights)
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize(
    'policy', [MeanThreshold(), QuantileTiers()], ids=repr)
@pytest.mark.parametrize('scores', [[1, np.nan, 2], [np.nan] * 3])
def test_scores_that_are_not_numbers_are_refused(policy, scores):
    with pytest.raises(ValueError, match='must be finite'):
        policy(np.array(scores, np.float32), np.random.default_rng(0))


@pytest.mark.parametrize('ratio', [-0.1, 1, 1.5, float('nan')])
def test_ratio_outside_0_and_1(ratio):
    with pytest.raises(ValueError, match=r'`ratio`.*\[0, 1\).*custom_hooks'):
        MeanThreshold(ratio)
    with pytest.raises(ValueError, match=r'`ratios`.*\[0, 1\).*custom_hooks'):
        QuantileTiers(ratios=(0.5, ratio))


@pytest.mark.parametrize('quantiles', [(0.85, 0.2), (0.2, 0.2), (0, 0.5),
                                       (0.5, 1.2), (-0.1, 0.5),
                                       (0.2, float('nan'))])
def test_quantiles_that_do_not_increase(quantiles):
    with pytest.raises(ValueError, match='must increase.*custom_hooks'):
        QuantileTiers(quantiles)


@pytest.mark.parametrize('quantiles, ratios', [((0.2, 0.85), (0.5, )),
                                               ((0.2, ), (0.75, 0.5)),
                                               ((), ())])
def test_counts_that_differ(quantiles, ratios):
    with pytest.raises(ValueError, match='one entry for each tier'):
        QuantileTiers(quantiles, ratios)


def test_policies_are_built_from_configs():
    policy = build_policy(dict(type='MeanThreshold', ratio=0.25))
    assert isinstance(policy, MeanThreshold) and policy.ratio == 0.25
    assert isinstance(
        POLICIES.build(dict(type='QuantileTiers')), QuantileTiers)
    assert build_policy(policy) is policy
    with pytest.raises(TypeError, match='quantiles.*`custom_hooks`'):
        build_policy(dict(type='MeanThreshold', quantiles=(0.2, 0.85)))
    for wrong in ('MeanThreshold', None, 0.5):
        with pytest.raises(TypeError, match='`policy` must be a config'):
            build_policy(wrong)


def test_a_plan_is_full_when_nothing_is_left_out():
    rng = np.random.default_rng(0)
    scores = np.arange(8, dtype=np.float32)
    assert EpochPlan.full(np.arange(8)).is_full
    assert MeanThreshold(0)(scores, rng).is_full
    assert not MeanThreshold(0.5)(scores, rng).is_full
    # What doesn't say so, or has weights, is a plan of its own.
    assert not EpochPlan(np.arange(8), np.ones(8, np.float32)).is_full
    weights = np.linspace(0.5, 1.5, 8, dtype=np.float32)
    assert not EpochPlan(np.arange(8), weights, tiers=(Tier(8, 8), )).is_full
