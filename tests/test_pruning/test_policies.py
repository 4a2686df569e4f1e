# Copyright (c) mmib contributors. All rights reserved.
"""The policies of the paper, and what holds of all."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmib.errors import Refusal
from mmib.pruning import (AboveMean, Budget, EpochPlan, EpsilonGreedy,
                          MeanThreshold, Neyman, QuantileTiers, RandomPruning,
                          UpperConfidenceBound)
from mmib.pruning.plan import prune_tiers
from mmib.registry import build_policy
from tests.test_pruning.inputs import (RATIOS, RNGS, SCORES, SHARES, drawn,
                                       needing)

PAPER = st.one_of(
    st.builds(MeanThreshold, RATIOS),
    st.builds(QuantileTiers, st.just((0.2, 0.85)), st.tuples(RATIOS, RATIOS)),
    st.builds(QuantileTiers, st.just((0.1, 0.5, 1.)),
              st.tuples(RATIOS, RATIOS, RATIOS)))
ANY = PAPER | st.builds(AboveMean, RATIOS) | st.builds(
    lambda share, most: needing(share, Budget(max_ratio=most)), SHARES,
    st.floats(0.01, 0.99))


def tiers_by_hand(policy, scores):
    """(ratio, images of the tier), from the definition of each policy."""
    if isinstance(policy, MeanThreshold):
        edges = [np.float32(scores.astype(np.float64).mean())]
        ratios = [policy.ratio]
    else:
        edges = np.quantile(scores, policy.quantiles).astype(np.float32)
        ratios = policy.ratios
    low, high = [-np.inf, *edges], [*edges, np.inf]
    return [(ratio, np.flatnonzero((scores >= a) & (scores < b)))
            for ratio, a, b in zip((*ratios, 0.), low, high)]


@given(PAPER, SCORES, RNGS)
def test_every_tier_keeps_its_share_and_its_weight(policy, scores, rng):
    plan = policy(scores, rng)
    assert np.issubdtype(plan.indices.dtype, np.integer)
    assert plan.weights.dtype == np.float32
    assert len(np.unique(plan.indices)) == len(plan)
    tiers = tiers_by_hand(policy, scores)
    if plan.is_full:
        assert all(int(ratio * len(members)) == 0 for ratio, members in tiers)
        tiers = [(0., np.arange(len(scores)))]
    for number, ((ratio, members),
                 tier) in enumerate(zip(tiers, plan.tiers, strict=True), 1):
        inside = np.isin(plan.indices, members)
        kept = len(members) - int(ratio * len(members))
        assert tier == (len(members), kept) == (len(members), inside.sum())
        assert (plan.tier_of_slot[inside] == number).all() or plan.is_full
        if kept:
            np.testing.assert_allclose(plan.weights[inside],
                                       len(members) / kept, 1e-6)
            assert len(members) / kept <= 1 / (1 - ratio) + 1e-6
    # Each plan stands for the whole data set.
    np.testing.assert_allclose(plan.weights.sum(), len(scores), rtol=1e-4)


@pytest.mark.parametrize('score', [0.1, 1 / 3, 0.7, 1e-3])
def test_the_mean_of_many_equal_scores_is_that_score(score):
    assert drawn(MeanThreshold(), np.full(1_000_003, score)).is_full


@given(SCORES, st.integers(0, 99))
def test_without_rescale_only_the_weights_differ(scores, seed):
    for policy in (MeanThreshold, QuantileTiers):
        scaled, plain = (
            drawn(policy(rescale=rescale), scores, seed)
            for rescale in (True, False))
        assert np.array_equal(scaled.indices, plain.indices)
        assert (scaled.tiers, scaled.threshold,
                scaled.is_full) == (plain.tiers, plain.threshold,
                                    plain.is_full)
        assert plain.weights.dtype == np.float32
        assert (plain.weights == 1).all()


@pytest.mark.parametrize('size', [1, 3, 7, 100])
@pytest.mark.parametrize(
    'policy', [
        MeanThreshold(0.5),
        MeanThreshold(0.37),
        QuantileTiers(),
        QuantileTiers((0.3, 0.6, 0.9), (0.9, 0.61, 0.13)),
        needing(0.55, Budget()),
        needing(0.2, Budget((0.3, 0.6), 0.7)),
        needing(0.5, Neyman()),
        RandomPruning(0.8),
        AboveMean(0.37),
    ],
    ids=repr)
def test_the_mean_weight_of_each_image_is_1(policy, size):
    """Invariant 2, within five standard errors of the sample."""
    rng = np.random.default_rng(size)
    scores = rng.lognormal(size=size).astype(np.float32)
    num_plans = 4_000
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
    rng, scores = np.random.default_rng(0), np.arange(10, dtype=np.float32)
    first_half, seen = np.zeros(10), np.zeros(10)
    for _ in range(10_000):
        order = MeanThreshold(0.4)(scores, rng).indices
        seen[order] += 1
        first_half[order[:len(order) // 2]] += 1
    np.testing.assert_allclose(first_half / seen, 0.5, atol=0.03)


@given(ANY, SCORES, st.integers(0, 99))
@settings(max_examples=30)
def test_plans_follow_from_the_generator_alone(policy, scores, seed):
    before = np.random.get_state()[1].copy()
    one, two = (drawn(policy, scores, seed) for _ in range(2))
    assert np.array_equal(one.indices, two.indices)
    assert np.array_equal(one.weights, two.weights)
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize('policy', [
    MeanThreshold(),
    QuantileTiers(), *(needing(share, Budget()) for share in (0.5, 1, 0.01))
])
@pytest.mark.parametrize('scores', [[1, np.nan, 2], [np.nan] * 3])
def test_scores_that_are_not_numbers_are_refused(policy, scores):
    with pytest.raises(Refusal, match='must be finite'):
        drawn(policy, scores)


OUTSIDE = (-0.1, 1, 1.5, float('nan'))
QUANTILES = ((0.85, 0.2), (0.2, 0.2), (0, 0.5), (0.5, 1.2), (-0.1, 0.5),
             (0.2, float('nan')))


@pytest.mark.parametrize('policy, name, values, match', [
    (MeanThreshold, 'ratio', OUTSIDE, r'\[0, 1\)'),
    (RandomPruning, 'ratio', OUTSIDE, r'\[0, 1\)'),
    (AboveMean, 'ratio', OUTSIDE, r'\[0, 1\)'),
    (QuantileTiers, 'ratios', [(0.5, each) for each in OUTSIDE], r'\[0, 1\)'),
    (QuantileTiers, 'ratios', [(0.5, )], 'one entry for each tier'),
    (QuantileTiers, 'quantiles', [(), (0.2, )], 'one entry for each tier'),
    (QuantileTiers, 'quantiles', QUANTILES, 'must increase'),
    (Budget, 'quantiles', QUANTILES, 'must increase'),
    (Budget, 'quantiles', [(), (0.5, ), (0.1, 0.2, 0.3)], 'each of two tiers'),
    (Budget, 'ratio', [0, 1.1, float('nan')], r'\(0, 1\]'),
    (Budget, 'max_ratio', [0, *OUTSIDE], r'\(0, 1\)'),
    (Neyman, 'ratio', [0, 1.1], r'\(0, 1\]'),
    (Neyman, 'num_strata', [0, 2.5], 'positive integer'),
    (Neyman, 'min_keep', [0, *OUTSIDE], r'\(0, 1\)'),
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
        with pytest.raises(Refusal, match=f'`{name}.*{match}.*custom_hooks'):
            policy(**{name: value})


class Stateful:
    """Of a user, and not derived from Policy: its state would be lost."""

    def __call__(self, scores, rng):
        return EpochPlan.full(np.arange(len(scores)))

    def state_dict(self):
        return {}


def test_policies_are_built_from_configs():
    policy = build_policy(dict(type='Budget', ratio=0.5, max_ratio=0.6))
    assert repr(policy) == ('Budget(quantiles=(0.2, 0.85), max_ratio=0.6, '
                            'ratio=0.5)')
    assert build_policy(policy) is policy


@pytest.mark.parametrize('wrong, match', [
    (dict(type='MeanThreshold', quantiles=(0.2, )), 'quantiles.*`custom_ho'),
    (dict(type='MeanTreshold'), "MeanTreshold.*'Budget'.*custom_imports"),
    (dict(type=prune_tiers), 'tier_of_image.*change the arguments'),
    ('MeanThreshold', '`policy` must be a config'),
    (None, '`policy` must be a config'),
    (Stateful(), 'is no `mmib.pruning.Policy`: derive'),
])
def test_configs_of_no_policy(wrong, match):
    with pytest.raises(Refusal, match=match):
        build_policy(wrong)
