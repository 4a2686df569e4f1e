# Copyright (c) mmib contributors. All rights reserved.
import copy

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mmib.pruning import (EpsilonGreedy, ScoreOnly, ShuffledTiers,
                          UpperConfidenceBound)
from tests.test_pruning.inputs import (KEEPS, RNGS, SCORES, SELECTIONS, drawn,
                                       random_scores)


def test_what_only_scores_prunes_nothing():
    plan = drawn(ScoreOnly(), random_scores(9))
    assert plan.is_full and not ScoreOnly().prunes


@given(SELECTIONS, SCORES, RNGS)
def test_selections_keep_exactly_so_many(policy, scores, rng):
    assert len(policy(scores, rng)) == round(policy.keep * len(scores))


@given(KEEPS, st.floats(0, 1), SCORES, RNGS)
def test_epsilon_greedy_keeps_the_highest(keep, epsilon, scores, rng):
    plan = EpsilonGreedy(keep, epsilon)(scores, rng)
    num_highest = len(plan) - round(epsilon * len(plan))
    # The best that so many images can have are all there.
    kept = np.sort(scores[plan.indices])[::-1]
    highest = np.sort(scores)[::-1]
    np.testing.assert_array_equal(kept[:num_highest], highest[:num_highest])


@pytest.mark.parametrize('policy, scores, expected', [
    # 10 images: the highest 8, and 2 of the other 12.
    (EpsilonGreedy(0.5, 0.2), range(20), 12 * [2 / 12] + 8 * [1]),
    (EpsilonGreedy(0.5, 1), range(20), 20 * [0.5]),
    # Ties: 5 images, the highest 2, and 3 of the 6 that are equal.
    (EpsilonGreedy(0.5, 0), [5, 1, 1, *6 * [2], 5], [1, 0, 0, *6 * [0.5], 1]),
    (UpperConfidenceBound(0.5), [5, 1, 1, *6 * [2], 5],
     [1, 0, 0, *6 * [0.5], 1]),
    # Of 3, 13 and 4 images 3, 6 and 0 are pruned, whatever their scores.
    (ShuffledTiers(), range(20), 20 * [11 / 20]),
], ids=str)  # yapf: disable
def test_how_often_an_image_is_selected(policy, scores, expected):
    rng, scores = np.random.default_rng(0), np.float32(scores)
    seen = np.zeros(len(scores))
    for _ in range(5_000):
        seen[policy(scores, rng).indices] += 1 / 5_000
    np.testing.assert_allclose(seen, expected, atol=0.04)


@pytest.mark.parametrize('policy', [EpsilonGreedy, UpperConfidenceBound])
def test_a_selection_holds_for_a_period(policy):
    rng = np.random.default_rng(0)
    policy = policy(keep=0.5, period=3)
    plans = [policy(rng.random(40, np.float32), rng) for _ in range(9)]
    selected = [sorted(plan.indices) for plan in plans]
    for start in (0, 3, 6):
        assert selected[start] == selected[start + 1] == selected[start + 2]
        assert not np.array_equal(plans[start].indices,
                                  plans[start + 1].indices)
    assert selected[0] != selected[3] != selected[6]


def test_a_state_stays_as_it_was_read():
    """Checkpoints share its memory. That a run goes on from it exactly is in
    tests/test_run.py."""
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
@example([0., 0.], 0.9999999999999999)
def test_ucb_by_hand(values, alpha):
    """Mean and variance of the visits of one image, with exponential
    weights. Of the other images one is visited once, and one never."""
    values = [value + 1000. * (i % 2) for i, value in enumerate(values, 1)]
    policy = UpperConfidenceBound(keep=1, alpha=alpha)
    for value in values:
        drawn(policy, [2, value, 1])
    weights = [1.]
    for _ in values[1:]:
        weights = [(1 - alpha) * weight for weight in weights] + [alpha]
    mean = np.average(values, weights=weights)
    variance = np.average((np.array(values) - mean)**2, weights=weights)
    arrays = policy.state_dict()['arrays']
    # Values go up to 1100, and rounding leaves 1e-13 of them.
    np.testing.assert_allclose(
        arrays['mean'], [2, mean, 1], rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(
        arrays['variance'], [0, variance, 0], rtol=1e-4, atol=1e-2)
    assert arrays['visited'].tolist() == [True, True, False]


def test_ucb_prefers_what_varies():
    steady, varies = np.full(50, 2.), np.tile([1.5, 2.5], 25)
    shares = []
    for c in (0, 2):
        policy = UpperConfidenceBound(keep=0.5, c=c)
        for sign in (1, -1, 1, -1):
            plan = drawn(
                policy, np.concatenate([steady - 0.01 * sign, varies[::sign]]))
        shares.append((plan.indices >= 50).mean())
    assert shares[1] == 1 > shares[0]
