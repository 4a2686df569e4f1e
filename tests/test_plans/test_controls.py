# Copyright (c) mmib contributors. All rights reserved.
import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib.pruning import EpsilonGreedy, ScoreOnly
from tests.test_plans.inputs import (KEEPS, RNGS, SCORES, SELECTIONS, drawn,
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
], ids=str)  # yapf: disable
def test_how_often_an_image_is_selected(policy, scores, expected):
    rng, scores = np.random.default_rng(0), np.float32(scores)
    seen = np.zeros(len(scores))
    for _ in range(2_000):
        seen[policy(scores, rng).indices] += 1 / 2_000
    np.testing.assert_allclose(seen, expected, atol=0.06)


def test_a_selection_holds_for_a_period():
    rng = np.random.default_rng(0)
    policy = EpsilonGreedy(keep=0.5, period=3)
    plans = [policy(rng.random(40, np.float32), rng) for _ in range(9)]
    selected = [sorted(plan.indices) for plan in plans]
    for start in (0, 3, 6):
        assert selected[start] == selected[start + 1] == selected[start + 2]
        assert not np.array_equal(plans[start].indices,
                                  plans[start + 1].indices)
    assert selected[0] != selected[3] != selected[6]


def test_a_state_stays_as_it_was_read():
    """Checkpoints share its memory. That a run goes on from it exactly is in
    tests/test_run."""
    rng = np.random.default_rng(0)
    policy = EpsilonGreedy(0.5)
    policy(rng.random(30, np.float32), rng)
    state = policy.state_dict()
    before = copy.deepcopy(state)
    policy(rng.random(30, np.float32), rng)
    assert str(state) == str(before) != str(policy.state_dict())
