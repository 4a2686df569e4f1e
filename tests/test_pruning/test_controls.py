# Copyright (c) mmib contributors. All rights reserved.
import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from mmib.pruning import (AboveMean, EpsilonGreedy, RandomPruning,
                          UpperConfidenceBound, check_plan)

# Few values: many ties.
scores_of_any_size = st.one_of(
    st_numpy.arrays(
        np.float32, st.integers(1, 60), elements=st.floats(0, 1e6, width=32)),
    st_numpy.arrays(
        np.float32, st.integers(1, 60), elements=st.sampled_from([0.5, 1, 3])))
ratios = st.floats(0, 0.99)
shares = st.floats(0, 1)
keeps = st.floats(0.01, 1)
rngs = st.integers(0, 2**32).map(np.random.default_rng)
selections = st.one_of(
    st.builds(EpsilonGreedy, keeps, shares, st.integers(1, 4)),
    st.builds(UpperConfidenceBound, keeps, st.floats(0, 10),
              st.floats(0.01, 1), st.integers(1, 4)))


def check_is_plan(plan, num_images):
    if len(plan):  # A selection of few images may be empty.
        check_plan(plan, num_images)
    assert len(np.unique(plan.indices)) == len(plan)
    assert sum(tier.size for tier in plan.tiers) == num_images
    assert sum(tier.kept for tier in plan.tiers) == len(plan)


@given(ratios, scores_of_any_size, rngs)
def test_random_pruning_keeps_its_share(ratio, scores, rng):
    plan = RandomPruning(ratio)(scores, rng)
    check_is_plan(plan, len(scores))
    assert len(plan) == len(scores) - int(ratio * len(scores))
    np.testing.assert_allclose(plan.weights, len(scores) / len(plan), 1e-6)
    assert plan.threshold == 0 and len(plan.tiers) == 1
    assert plan.is_full == (len(plan) == len(scores))


@given(ratios, scores_of_any_size, rngs)
def test_above_mean_prunes_above_the_mean(ratio, scores, rng):
    plan = AboveMean(ratio)(scores, rng)
    check_is_plan(plan, len(scores))
    mean = np.float32(scores.astype(np.float64).mean())
    assert plan.threshold == pytest.approx(mean)
    above = scores[plan.indices] > mean
    low, high = plan.tiers
    assert low.size == low.kept == (~above).sum() == (scores <= mean).sum()
    assert high.size == (scores > mean).sum()
    assert high.kept == above.sum() == high.size - int(ratio * high.size)
    assert (plan.weights[~above] == 1).all()
    if high.kept:
        np.testing.assert_allclose(plan.weights[above], high.size / high.kept,
                                   1e-6)


@given(selections, scores_of_any_size, rngs)
def test_selections_keep_exactly_so_many_with_weight_1(policy, scores, rng):
    plan = policy(scores, rng)
    check_is_plan(plan, len(scores))
    assert len(plan) == round(policy.keep * len(scores))
    assert (plan.weights == 1).all()
    assert plan.is_full == (len(plan) == len(scores))


@given(keeps, shares, scores_of_any_size, rngs)
def test_epsilon_greedy_keeps_the_highest(keep, epsilon, scores, rng):
    plan = EpsilonGreedy(keep, epsilon)(scores, rng)
    num_highest = len(plan) - round(epsilon * len(plan))
    # The best that so many images can have are all there.
    kept = np.sort(scores[plan.indices])[::-1]
    highest = np.sort(scores)[::-1]
    np.testing.assert_array_equal(kept[:num_highest], highest[:num_highest])


def how_often(policy, scores, num_plans=20_000):
    """Share of the plans that have each image."""
    rng = np.random.default_rng(0)
    seen = np.zeros(len(scores))
    for _ in range(num_plans):
        seen[policy(scores, rng).indices] += 1
    return seen / num_plans


def test_epsilon_of_epsilon_greedy_is_random():
    scores = np.arange(20, dtype=np.float32)
    # 10 images: the highest 8, and 2 of the other 12.
    share = how_often(EpsilonGreedy(keep=0.5, epsilon=0.2), scores)
    assert (share[12:] == 1).all()
    np.testing.assert_allclose(share[:12], 2 / 12, atol=0.02)
    share = how_often(EpsilonGreedy(keep=0.5, epsilon=1), scores)
    np.testing.assert_allclose(share, 0.5, atol=0.02)


@pytest.mark.parametrize(
    'policy',
    [EpsilonGreedy(0.5, 0), UpperConfidenceBound(0.5)], ids=repr)
def test_ties_are_selected_at_random(policy):
    # 5 images: the highest 2, and 3 of the 6 that are equal.
    scores = np.float32([5, 1, 1, 2, 2, 2, 2, 2, 2, 5])
    share = how_often(policy, scores)
    assert (share[[0, 9]] == 1).all() and (share[[1, 2]] == 0).all()
    np.testing.assert_allclose(share[3:9], 0.5, atol=0.02)


@pytest.mark.parametrize('policy', [EpsilonGreedy, UpperConfidenceBound])
def test_a_selection_holds_for_a_period(policy):
    rng = np.random.default_rng(0)
    policy = policy(keep=0.5, period=3)
    plans = [policy(np.float32(rng.random(40)), rng) for _ in range(9)]
    selected = [sorted(plan.indices) for plan in plans]
    for start in (0, 3, 6):
        assert selected[start] == selected[start + 1] == selected[start + 2]
        assert not np.array_equal(plans[start].indices,
                                  plans[start + 1].indices)
    assert selected[0] != selected[3] != selected[6]


def test_a_state_stays_as_it_was_read():
    """Checkpoints share its memory. That it is gone on from exactly is in
    ``tests/test_planner.py``."""
    rng = np.random.default_rng(0)
    policy = UpperConfidenceBound(0.5)
    policy(rng.random(30, np.float32), rng)
    state = policy.state_dict()
    before = copy.deepcopy(state)
    policy(rng.random(30, np.float32), rng)
    assert str(state) == str(before) != str(policy.state_dict())


@given(
    st.lists(st.floats(0, 100, width=32), min_size=1, max_size=9),
    st.floats(0.01, 1))
def test_ucb_by_hand(values, alpha):
    """Mean and variance of the visits of one image, with exponential
    weights. Of the other images one is visited once, and one never."""
    values = [value + 1000. * (i % 2) for i, value in enumerate(values, 1)]
    policy = UpperConfidenceBound(keep=1, alpha=alpha)
    for value in values:
        policy(np.float32([2, value, 1]), np.random.default_rng(0))
    weights = [1.]
    for _ in values[1:]:
        weights = [(1 - alpha) * weight for weight in weights] + [alpha]
    mean = np.average(values, weights=weights)
    variance = np.average((np.array(values) - mean)**2, weights=weights)
    arrays = policy.state_dict()['arrays']
    np.testing.assert_allclose(arrays['mean'], [2, mean, 1], rtol=1e-5)
    np.testing.assert_allclose(
        arrays['variance'], [0, variance, 0], rtol=1e-4, atol=1e-2)
    assert arrays['visited'].tolist() == [True, True, False]


def test_ucb_prefers_what_varies():
    rng = np.random.default_rng(0)
    steady, varies = np.full(50, 2.), np.tile([1.5, 2.5], 25)
    shares = []
    for c in (0, 2):
        policy = UpperConfidenceBound(keep=0.5, c=c)
        for sign in (1, -1, 1, -1):
            scores = np.concatenate([steady - 0.01 * sign, varies[::sign]])
            plan = policy(np.float32(scores), rng)
        shares.append((plan.indices >= 50).mean())
    assert shares[1] == 1 > shares[0]
