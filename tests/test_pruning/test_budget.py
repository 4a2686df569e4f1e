# Copyright (c) mmib contributors. All rights reserved.
"""``Neyman``; ``Budget`` is tested with the policies of the paper."""
import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mmib.pruning import Neyman, Progress, TierNorms, check_plan
from mmib.pruning.budget import allocate


def neyman(share, size, norms=None, policy=None, **kwargs):
    """A policy that is told to keep a share of the images."""
    policy = policy or Neyman(**kwargs)
    policy.begin_plan(
        Progress(slots_left=round(share * size), full_slots=size, norms=norms))
    return policy


def test_neyman_prunes_at_random_until_it_knows_more():
    scores = np.random.default_rng(0).random(1000, dtype=np.float32)
    plan = neyman(0.37, 1000)(scores, np.random.default_rng(0))
    assert len(plan) == 370
    assert {tier.kept for tier in plan.tiers} == {37}
    np.testing.assert_allclose(plan.weights, 1 / 0.37, rtol=1e-6)


def shares_after(policy, *norms):
    """What is kept of each stratum at a kept share of one half, after mean
    squares and their errors."""
    for mean_squares, errors in norms:
        neyman(0.5, 20_000,
               TierNorms(np.array(mean_squares), np.array(errors)), policy)
    scores = np.linspace(0, 1, 20_000, dtype=np.float32)
    plan = policy(scores, np.random.default_rng(0))
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
        Neyman(num_strata=2), *((each, 1e-3 * each) for each in squares))
    of_early = 0.8**5
    means = (of_early * early + (1 - of_early) * late) / 2
    assert shares == in_proportion(np.sqrt(means))


def test_neyman_trusts_each_stratum_as_far_as_it_is_known():
    """A relative error of 0.3 explains a part of the spread, the less where
    norms are small."""
    shares = shares_after(Neyman(num_strata=2), ([1., 3], [0.3, 0.9]))
    means = np.array([0.5, 1.5])
    variances = (0.3 * means)**2
    spread = means.var() - variances.mean()
    trust = spread / (spread + variances)
    assert shares == in_proportion(np.sqrt(1 + trust * (means - 1)))
    # Errors that explain all of the spread.
    unknown = shares_after(Neyman(num_strata=2), ([1., 3], [0.9, 2.7]))
    assert unknown == [0.5, 0.5]


def test_neyman_learns_nothing_from_single_visits_or_other_plans():
    """One visit has no error. Norms of other tiers tell nothing of these
    strata, but a checkpoint may have room for more tiers, without norms."""
    # The last tier has no visit.
    once = [1., 1, 100, 1, np.nan], [0.01, 0.01, 1e-9, 0.01, np.nan]
    assert shares_after(Neyman(num_strata=5), once) == 5 * [0.5]
    known = [1., 9, np.nan], [0.01, 0.09, np.nan]
    first, expected = (
        shares_after(Neyman(num_strata=2), *before, known)
        for before in ([([5.], [0.1]), ([1., 2, 3], [0.1] * 3)], []))
    assert first == expected == pytest.approx([0.25, 0.75], abs=1e-3)


@given(
    st.integers(1, 12), st.floats(0.01, 1), st.integers(2, 200), st.booleans(),
    st.integers(0, 2**31))
@example(10, 0.5, 8, False, 0)
@example(10, 0.5, 15, False, 0)
def test_neyman_is_unbiased_and_meets_the_budget(num_strata, share, size, ties,
                                                 seed):
    rng = np.random.default_rng(seed)
    scores = rng.random(size, dtype=np.float32)
    if ties:
        scores = np.floor(20 * scores)
    policy = Neyman(num_strata=num_strata)
    plan = neyman(share, size, policy=policy)(scores, rng)
    num_tiers = len(plan.tiers)
    norms = TierNorms(
        rng.gamma(1, size=num_tiers), 0.1 * rng.random(num_tiers))
    plan = neyman(share, size, norms, policy)(scores, rng)
    check_plan(plan, size)
    for number, tier in enumerate(plan.tiers, 1):
        slots = plan.tier_of_slot == number
        assert slots.sum() == tier.kept
        assert plan.weights[slots].sum() == pytest.approx(tier.size)
    assert sum(tier.size for tier in plan.tiers) == size
    # Some of many equal scores may be a stratum of less images.
    least = sum(
        max(int(0.1 * tier.size), 1) for tier in plan.tiers if tier.size)
    assert ties or least <= max(0.1 * size, 1)
    least = max(least, math.ceil(0.1 * size - 1e-6))
    needed = round(share * size)
    assert len(plan) == max(needed, least)
    assert bool(plan.note) is (least > max(needed, 1))
    assert abs(len(plan) -
               size * policy.expected_share(policy._progress)) <= 1 or ties


@pytest.mark.parametrize('size, min_keep', [(18, 0.9), (100, 0.29)])
def test_neyman_keeps_what_it_must(size, min_keep):
    """Also where strata are small."""
    policy = Neyman(min_keep=min_keep)
    rng = np.random.default_rng(0)
    plan = neyman(0.2, size, policy=policy)(rng.random(size, np.float32), rng)
    assert len(plan) == np.ceil(min_keep * size)
    assert plan.note


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=12).filter(any),
    st.floats(0, 1), st.integers(0, 2**31))
def test_allocate(sizes, share, seed):
    sizes = np.array(sizes)
    roots = np.random.default_rng(seed).uniform(1e-3, 10, len(sizes))
    target = int(share * sizes.sum())
    kept = allocate(sizes, roots, target, min_keep=0.1)
    assert (kept <= sizes).all() and (kept[sizes > 0] >= 1).all()
    assert (kept >= np.floor(0.1 * sizes)).all()
    assert kept.sum() >= target
    # More only where the least shares need it.
    most = np.maximum(target, np.ceil(0.1 * sizes).sum())
    assert kept.sum() <= most + (sizes > 0).sum()


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


def test_neyman_says_what_it_cannot_reach():
    plan = neyman(0.05, 2000)(np.arange(2000, dtype=np.float32),
                              np.random.default_rng(0))
    assert len(plan) == 200
    assert 'needs a kept share of 0.050, but at most 90 %' in plan.note
