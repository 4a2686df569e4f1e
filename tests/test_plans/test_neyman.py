# Copyright (c) mmib contributors. All rights reserved.
"""The default policy: what a budget needs, and which tiers are pruned."""
import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mmib.errors import Refusal
from mmib.plans.neyman import allocate
from mmib.plans.plan import checked
from mmib.pruning import Neyman, Progress
from tests.test_plans.inputs import RNGS, drawn, needing, random_scores


@given(
    st.floats(0.05, 1), st.floats(0, 0.3), st.floats(0, 0.9),
    st.floats(0, 1.5), st.booleans())
def test_the_share_leads_to_the_budget(ratio, annealing, start, done,
                                       by_epoch):
    """What is left covers what the baseline does, whenever it is asked for.
    All are kept where there is time, as where plans before saved too much."""
    own, annealing = 1e6 * ratio, annealing * 1e6 * ratio
    spent, covered = start * (own - annealing), done * (1e6 - annealing)
    share = Progress(spent, covered, annealing, 1e6 if by_epoch else own,
                     by_epoch).kept_share(ratio)
    left, to_cover = own - annealing - spent, 1e6 - annealing - covered
    assert 0 < share <= 1
    assert share == pytest.approx(left / max(to_cover, left))


def test_a_budget_without_progress():
    with pytest.raises(Refusal, match='call `begin_plan` of the policy'):
        drawn(Neyman(), np.arange(8))


@pytest.mark.parametrize('policy, least, size', [
    (Neyman(), 0.1, 1000),
    (Neyman(min_keep=0.2), 0.2, 1000),
    (Neyman(min_keep=0.9), 0.9, 18),
    (Neyman(min_keep=0.29), 0.29, 100),
])
def test_a_budget_that_cannot_be_met(policy, least, size):
    """The forecast and a note of the plan say so."""
    progress = Progress(650, 0, 0, 1000, of_baseline=True)
    assert policy.expected_share(progress) == pytest.approx(least)
    plan = drawn(needing(0.04, policy), random_scores(size))
    assert len(plan) == pytest.approx(size * least, abs=2)
    assert len(plan) >= size * least - 1e-6
    assert re.search(
        f'needs a kept share of 0.040, but `min_keep={least:g}` keeps '
        f'{len(plan)} of {size} images: raise `ratio`', plan.note)


def test_neyman_prunes_at_random_until_it_knows_more():
    plan = drawn(needing(0.37, Neyman()), random_scores(1000))
    assert len(plan) == 370
    assert {tier.kept for tier in plan.tiers} == {37}
    np.testing.assert_allclose(plan.weights, 1 / 0.37, rtol=1e-6)


def shares_after(policy, *norms):
    """What is kept of each tier at a kept share of one half, after mean
    squares and their errors."""
    for each in norms:
        needing(0.5, policy, tuple(map(np.array, each)))
    plan = drawn(policy, np.linspace(0, 1, 20_000))
    return [tier.kept / tier.size for tier in plan.tiers]


def in_proportion(roots):
    """Shares with the mean of one half."""
    return pytest.approx(0.5 * roots / np.mean(roots), abs=1e-3)


def test_neyman_forgets_slowly():
    """The mean of five plans, then a moving average. Gradients that shrink
    while a network trains count as much."""
    early, late = np.array([1., 3]), np.array([3., 1])
    squares = [0.1**i * early for i in range(5)]
    squares += [0.1**i * late for i in range(5, 10)]
    shares = shares_after(
        Neyman(num_tiers=2), *((each, 1e-3 * each) for each in squares))
    of_early = 0.8**5
    means = (of_early * early + (1 - of_early) * late) / 2
    assert shares == in_proportion(np.sqrt(means))


def test_neyman_trusts_each_tier_as_far_as_it_is_known():
    """A relative error of 0.3 explains a part of the spread, the less where
    norms are small."""
    shares = shares_after(Neyman(num_tiers=2), ([1., 3], [0.3, 0.9]))
    means = np.array([0.5, 1.5])
    variances = (0.3 * means)**2
    spread = means.var() - variances.mean()
    trust = spread / (spread + variances)
    assert shares == in_proportion(np.sqrt(1 + trust * (means - 1)))
    # Errors that explain all of the spread.
    unknown = shares_after(Neyman(num_tiers=2), ([1., 3], [0.9, 2.7]))
    assert unknown == [0.5, 0.5]


def test_neyman_learns_nothing_from_single_visits_or_other_plans():
    """One visit has no error. Norms of other tiers say nothing of these
    tiers, but a checkpoint may have room for more tiers, without norms."""
    # The last tier has no visit.
    once = [1., 1, 100, 1, np.nan], [0.01, 0.01, 1e-9, 0.01, np.nan]
    assert shares_after(Neyman(num_tiers=5), once) == 5 * [0.5]
    known = [1., 9, np.nan], [0.01, 0.09, np.nan]
    first, expected = (
        shares_after(Neyman(num_tiers=2), *before, known)
        for before in ([([5.], [0.1]), ([1., 2, 3], [0.1] * 3)], []))
    assert first == expected == pytest.approx([0.25, 0.75], abs=1e-3)


@given(
    st.integers(1, 12), st.floats(0.01, 1), st.integers(2, 200), st.booleans(),
    RNGS)
@example(10, 0.5, 8, False, np.random.default_rng(0))
@example(10, 0.5, 15, False, np.random.default_rng(0))
def test_neyman_meets_the_budget(num_tiers, share, size, ties, rng):
    scores = rng.random(size, np.float32)
    if ties:
        scores = np.floor(20 * scores)
    policy = Neyman(num_tiers=num_tiers)
    num_tiers = len(needing(0.3, policy)(scores, rng).tiers)
    norms = rng.gamma(1, size=num_tiers), 0.1 * rng.random(num_tiers)
    plan = checked(needing(share, policy, norms)(scores, rng), size)
    # Some of many equal scores may be a stratum of less images.
    least = sum(
        max(int(0.1 * tier.size), 1) for tier in plan.tiers if tier.size)
    assert ties or least <= max(0.1 * size, 1)
    least = max(least, math.ceil(0.1 * size - 1e-6))
    needed = math.floor(share * size + 1e-6)
    assert len(plan) == max(needed, least)
    assert bool(plan.note) is (share < 0.1 and least > max(needed, 1))
    expected = size * policy.expected_share(policy._progress)
    assert ties or abs(len(plan) - expected) <= 1


def test_allocate_is_optimal():
    """No move of an image from one stratum to another lowers V."""
    sizes = np.array([300, 200, 400, 100])
    roots = np.array([1., 2., 3., 1.5])

    def noise(kept):
        return (sizes**2 * roots**2 / kept).sum()

    kept = allocate(sizes, roots, 450, min_keep=0.05)
    assert kept.sum() == 450 and kept[2] < 400
    for move in itertools.permutations(range(4), 2):
        other = kept.copy()
        other[list(move)] += [1, -1]
        assert noise(other) > noise(kept) * (1 - 1e-6)
