# Copyright (c) mmib contributors. All rights reserved.
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from mmib.pruning import (AboveMean, Budget, EpochPlan, EpsilonGreedy,
                          MeanThreshold, Neyman, Progress, QuantileTiers,
                          RandomPruning, Tier, UpperConfidenceBound, prune)
from mmib.pruning.plan import draw
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
kept_shares = st.floats(0.01, 1.2)
max_ratios = st.floats(0.01, 0.99)
# Many ties, few of them, and what tiers of quantiles can't split.
tied_scores = st.one_of(
    scores_of_any_size,
    st_numpy.arrays(
        np.float32, st.integers(1, 300), elements=st.sampled_from([0.5, 1,
                                                                   3])),
    st.builds(lambda size, rng: rng.random(size).astype(np.float32),
              st.integers(1, 300), rngs))


def budget(kept_share, policy=Budget, **kwargs):
    """A policy that needs this kept share, for any number of images."""
    policy = policy(**kwargs)
    policy.begin_plan(
        Progress(slots_left=kept_share * 900_000, full_slots=900_000))
    return policy


budgets = st.builds(lambda share, ratio: budget(share, max_ratio=ratio),
                    kept_shares, max_ratios)


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
            assert len(members) / kept <= 1 / (1 - ratio) + 1e-6
    # Each plan stands for the whole data set.
    np.testing.assert_allclose(plan.weights.sum(), len(scores), rtol=1e-4)


@given(
    st.one_of(policies, budgets, st.builds(AboveMean, ratios)), finite,
    st.integers(1, 60), rngs)
def test_ties_are_never_pruned(policy, score, size, rng):
    plan = policy(np.full(size, score, np.float32), rng)
    assert sorted(plan.indices) == list(range(size))
    assert (plan.weights == 1).all()


@pytest.mark.parametrize('score', [0.1, 1 / 3, 0.7, 1e-3])
def test_the_mean_of_many_equal_scores_is_that_score(score):
    scores = np.full(1_000_003, score, np.float32)
    plan = MeanThreshold()(scores, np.random.default_rng(0))
    assert len(plan) == len(scores)


@given(scores_of_any_size, st.integers(0, 99))
def test_without_rescale_only_the_weights_differ(scores, seed):
    for policy in (MeanThreshold, QuantileTiers):
        scaled, plain = (
            policy(rescale=rescale)(scores, np.random.default_rng(seed))
            for rescale in (True, False))
        assert np.array_equal(scaled.indices, plain.indices)
        assert scaled.tiers == plain.tiers
        assert scaled.threshold == plain.threshold
        assert plain.weights.dtype == np.float32
        assert (plain.weights == 1).all()
        assert plain.is_full == scaled.is_full == (len(plain) == len(scores))


@pytest.mark.parametrize('size', [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    'policy', [
        MeanThreshold(0.5),
        MeanThreshold(0.37),
        QuantileTiers(),
        QuantileTiers((0.3, 0.6, 0.9), (0.9, 0.61, 0.13)),
        budget(0.55),
        budget(0.2, quantiles=(0.3, 0.6), max_ratio=0.7),
        budget(0.5, Neyman),
        RandomPruning(),
        RandomPruning(0.8),
        AboveMean(),
        AboveMean(0.37),
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


@given(st.one_of(policies, budgets), scores_of_any_size, st.integers(0, 99))
@settings(max_examples=30)
def test_plans_follow_from_the_generator_alone(policy, scores, seed):
    before = np.random.get_state()[1].copy()
    one, two = (policy(scores, np.random.default_rng(seed)) for _ in range(2))
    assert np.array_equal(one.indices, two.indices)
    assert np.array_equal(one.weights, two.weights)
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize(
    'policy',
    [MeanThreshold(),
     QuantileTiers(),
     budget(0.5),
     budget(1),
     budget(0.01)],
    ids=repr)
@pytest.mark.parametrize('scores', [[1, np.nan, 2], [np.nan] * 3])
def test_scores_that_are_not_numbers_are_refused(policy, scores):
    with pytest.raises(ValueError, match='must be finite'):
        policy(np.array(scores, np.float32), np.random.default_rng(0))


RATIOS = (-0.1, 1, 1.5, float('nan'))
QUANTILES = ((0.85, 0.2), (0.2, 0.2), (0, 0.5), (0.5, 1.2), (-0.1, 0.5),
             (0.2, float('nan')))


@pytest.mark.parametrize('policy, name, values, match', [
    (MeanThreshold, 'ratio', RATIOS, r'\[0, 1\)'),
    (RandomPruning, 'ratio', RATIOS, r'\[0, 1\)'),
    (AboveMean, 'ratio', RATIOS, r'\[0, 1\)'),
    (QuantileTiers, 'ratios', [(0.5, ratio) for ratio in RATIOS], r'\[0, 1\)'),
    (QuantileTiers, 'ratios', [(0.5, )], 'one entry for each tier'),
    (QuantileTiers, 'quantiles', [(), (0.2, )], 'one entry for each tier'),
    (QuantileTiers, 'quantiles', QUANTILES, 'must increase'),
    (Budget, 'quantiles', QUANTILES, 'must increase'),
    (Budget, 'quantiles', [(), (0.5, ), (0.1, 0.2, 0.3)], 'each of two tiers'),
    (Budget, 'full_iters', [0, -1, 1.5, '80000', True], 'positive integer'),
    (Budget, 'ratio', [0, 1.1, float('nan')], r'\(0, 1\]'),
    (Budget, 'max_ratio', [0, *RATIOS], r'\(0, 1\)'),
    (Neyman, 'num_strata', [0, 2.5], 'positive integer'),
    (Neyman, 'min_keep', [0, *RATIOS], r'\(0, 1\)'),
    (partial(Neyman, ratio=0.6), 'full_iters', [100], 'remove `full_iters`'),
    (EpsilonGreedy, 'keep', (0, 1.1), r'\(0, 1\]'),
    (EpsilonGreedy, 'epsilon', (-0.1, 1.1), r'\[0, 1\]'),
    (EpsilonGreedy, 'period', (0, 1.5, True), 'positive integer'),
    (UpperConfidenceBound, 'keep', (float('nan'), ), r'\(0, 1\]'),
    (UpperConfidenceBound, 'c', (-1, float('nan')), 'at least 0'),
    (UpperConfidenceBound, 'alpha', (0, 1.1), r'\(0, 1\]'),
    (UpperConfidenceBound, 'period', ('2', ), 'positive integer'),
])
def test_arguments_out_of_range(policy, name, values, match):
    for value in values:
        with pytest.raises(
                ValueError, match=f'`{name}.*{match}.*custom_hooks'):
            policy(**{name: value})


def test_policies_are_built_from_configs():
    policy = build_policy(
        dict(type='Budget', full_iters=80_000, max_ratio=0.6))
    assert repr(policy) == ('Budget(full_iters=80000, quantiles=(0.2, 0.85), '
                            'max_ratio=0.6)')
    assert build_policy(policy) is policy
    with pytest.raises(TypeError, match='quantiles.*`custom_hooks`'):
        build_policy(dict(type='MeanThreshold', quantiles=(0.2, 0.85)))
    with pytest.raises(KeyError, match="MeanTreshold.*'Budget'.*custom_imp"):
        build_policy(dict(type='MeanTreshold'))
    with pytest.raises(TypeError, match='tier_of_image.*change the arguments'):
        build_policy(dict(type=draw))
    for wrong in ('MeanThreshold', None, 0.5):
        with pytest.raises(TypeError, match='`policy` must be a config'):
            build_policy(wrong)


def test_a_plan_is_full_when_nothing_is_pruned():
    rng = np.random.default_rng(0)
    scores = np.arange(8, dtype=np.float32)
    assert EpochPlan.full(np.arange(8)).is_full
    for policy in (MeanThreshold(0), QuantileTiers(ratios=(0, 0))):
        plan = policy(scores, rng)
        assert plan.is_full and sorted(plan.indices) == list(range(8))
    assert not MeanThreshold(0.5)(scores, rng).is_full
    # What doesn't say so, or has weights, is a plan of its own.
    assert not EpochPlan(np.arange(8), np.ones(8, np.float32)).is_full
    weights = np.linspace(0.5, 1.5, 8, dtype=np.float32)
    assert not EpochPlan(np.arange(8), weights, tiers=(Tier(8, 8), )).is_full


def test_a_note_stays_with_the_plan():
    plan = replace(EpochPlan.full(np.arange(8)), note='Look.')
    assert plan.is_full and plan[2:].note == 'Look.'
    assert EpochPlan.full(np.arange(8)).note == ''


@given(tied_scores, kept_shares, max_ratios, rngs)
@settings(max_examples=300)
def test_budget_prunes_what_it_needs(scores, kept_share, max_ratio, rng):
    policy = budget(kept_share, max_ratio=max_ratio)
    plan = policy(scores, rng)
    num_pruned = len(scores) - len(plan)
    needed = max(0, (1 - kept_share) * len(scores))
    # Of all images below the highest score, in one tier.
    bound = math.floor(max_ratio * (scores < scores.max()).sum() + 1e-9)
    # Two tiers round to whole images twice.
    assert bound - 1 <= num_pruned <= bound or num_pruned - needed < 1
    assert num_pruned <= bound and num_pruned < needed + 1
    if not plan.note:
        assert num_pruned > needed - 1e-6 * len(scores)
    # It says so when, and only when, it prunes too little.
    assert bool(plan.note) == (num_pruned < needed - 1e-6)
    np.testing.assert_allclose(plan.weights.sum(), len(scores), rtol=1e-4)
    assert (plan.weights <= 1 / (1 - max_ratio) * (1 + 1e-6)).all()


@given(tied_scores, kept_shares, max_ratios, rngs)
@settings(max_examples=300)
def test_budget_tiers(scores, kept_share, max_ratio, rng):
    plan = budget(kept_share, max_ratio=max_ratio)(scores, rng)
    edges = np.quantile(scores, (0.2, 0.85))
    low, high, rest = plan.tiers
    assert rest.kept == rest.size and rest.size
    assert low.size == (scores < np.float32(edges[0])).sum()
    assert low.size + high.size == (scores < np.float32(plan.threshold)).sum()
    out = [tier.size - tier.kept for tier in (low, high)]
    assert all(n <= max_ratio * tier.size + 1e-6
               for n, tier in zip(out, (low, high)))
    # The shape of the ratios, to one image.
    if high.size and out[1] < high.size * max_ratio - 1:
        expected = min(1.5 * out[1] / high.size, max_ratio) * low.size
        assert abs(out[0] - expected) <= 1 + 1.5 * low.size / high.size

    # The threshold is that of the quantile where this suffices, and
    # otherwise the lowest score that does.
    needed = math.ceil((1 - kept_share) * len(scores) - 1e-6)

    def most(threshold):
        num_high = (scores < threshold).sum() - low.size
        return int(max_ratio * low.size) + int(max_ratio * num_high)

    if most(np.float32(edges[1])) >= needed:
        assert plan.threshold == pytest.approx(edges[1])
    else:
        lowest = min((s for s in scores if most(s) >= needed),
                     default=scores.max())
        assert plan.threshold == lowest


def test_budget_where_counts_round():
    scores = np.arange(20, dtype=np.float32)
    policy = budget(0.55, quantiles=(0.5, 0.57), max_ratio=0.99)
    # The one image of the upper tier can't be pruned: the lower one must.
    plan = policy(scores, np.random.default_rng(0))
    assert plan.tiers == ((10, 1), (1, 1), (9, 9)) and not plan.note
    # 0.58 * 50 is a little less than 29: one more image must lie below.
    scores = np.arange(60, dtype=np.float32)
    policy = budget(31 / 60, quantiles=(0.001, 0.1), max_ratio=0.58)
    plan = policy(scores, np.random.default_rng(0))
    assert plan.tiers == ((1, 1), (51, 22), (8, 8)) and not plan.note
    # 15 / 22 * 22 is a little less than 15.
    scores = np.arange(44, dtype=np.float32)
    policy = budget(29 / 44, quantiles=(0.5, 0.51))
    plan = policy(scores, np.random.default_rng(0))
    assert plan.tiers == ((22, 7), (0, 0), (22, 22)) and not plan.note


def test_budget_that_cannot_be_met():
    scores = np.repeat(np.array([0.1, 2], np.float32), 500)
    plan = budget(0.41)(scores, np.random.default_rng(0))
    assert len(plan) == 625 and plan.weights.max() == 4
    assert plan.note == (
        'the budget needs a kept share of 0.410, but at most 75 % of the '
        'images below the highest score can be pruned: kept share 0.625. '
        'Raise `ratio` in the `policy` of InfoBatchHook in `custom_hooks`.')
    plan = budget(0.41)(np.ones(1000, np.float32), np.random.default_rng(0))
    assert plan.is_full and 'kept share 1.000.' in plan.note


@pytest.mark.parametrize('policy, share', [
    (Budget(), 0.25),
    (Budget(max_ratio=0.6), 0.4),
    (Neyman(min_keep=0.2), 0.2),
])
def test_a_budget_that_cannot_be_met_is_forecast(policy, share):
    progress = Progress(slots_left=350, full_slots=8800)
    assert policy.expected_share(progress) == pytest.approx(share)
    policy.begin_plan(progress)
    scores = np.random.default_rng(0).random(1000).astype(np.float32)
    plan = policy(scores, np.random.default_rng(0))
    assert len(plan) == pytest.approx(1000 * share, abs=2)


@pytest.mark.parametrize('slots_left, full_slots, kept', [
    (350, 700, 50),
    (700, 700, 100),
    (701, 700, 100),
    (30, 50, 60),
    (49, 50, 98),
    (10, 0, 100),
    (10, -150, 100),
])
def test_budget_counts_what_is_left(slots_left, full_slots, kept):
    policy = Budget()
    policy.begin_plan(Progress(slots_left, full_slots))
    scores = np.random.default_rng(0).random(100).astype(np.float32)
    plan = policy(scores, np.random.default_rng(0))
    assert len(plan) == kept and not plan.note
    assert plan.is_full == (kept == 100)


def test_full_iters_of_older_configs():
    note = Budget(100).note_on_schedule(60)
    assert '`full_iters = 100` is how older configs say `ratio = 0.6`' in note
    assert not Budget(ratio=0.6).note_on_schedule(60)


def test_budget_without_progress():
    with pytest.raises(RuntimeError, match='call its `begin_plan`'):
        Budget()(np.arange(8, dtype=np.float32), np.random.default_rng(0))


@pytest.mark.parametrize('num_tiers', [255, 256, 300])
def test_more_tiers_than_a_byte_has_numbers(num_tiers):
    """Each image is a tier of its own, and one lies above all thresholds."""
    scores = np.arange(num_tiers + 1, dtype=np.float32)
    plan = prune(scores, scores[1:], [0.] * num_tiers,
                 np.random.default_rng(0))
    assert [tier.size for tier in plan.tiers] == [1] * (num_tiers + 1)
    assert sorted(plan.indices) == list(range(num_tiers + 1))


def test_a_state_that_would_be_lost_is_refused():
    """The policy of a user that isn't derived from Policy."""

    class Stateful:

        def __call__(self, scores, rng):
            return EpochPlan.full(np.arange(len(scores)))

        def state_dict(self):
            return {}

    with pytest.raises(TypeError, match='is no `mmib.pruning.Policy`: derive'):
        build_policy(Stateful())
