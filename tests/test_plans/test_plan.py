# Copyright (c) mmib contributors. All rights reserved.
"""Plans, and what is made of those that a user's policy draws."""
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib.errors import Refusal
from mmib.pruning import (EpochPlan, MeanThreshold, Progress, QuantileTiers,
                          RandomPruning, Tier, as_policy, draw_plan, prune)

SIZE = 13
ONES = np.ones(SIZE, np.float32)


def plan_of(**changes):
    return replace(EpochPlan(np.arange(SIZE), ONES), **changes)


def drawn_by(policy, size=SIZE, tail=None):
    """The plan of a policy, as a run gets it."""
    return draw_plan(
        as_policy(policy), np.arange(size, dtype=np.float32),
        Progress(0, 0, 0, size), np.random.default_rng(0), tail)


NO_WEIGHT = 'finite and not negative'


@pytest.mark.parametrize('changes, message', [
    (dict(indices=np.arange(5)),
     r'one entry for each slot.*\(5,\) and \(13,\)'),
    (dict(indices=np.arange(SIZE)[:, None],
          weights=ONES[:, None]), 'one entry for each slot'),
    (dict(indices=np.ones(SIZE, bool)),
     r'must be integers, but are bool: .* rng.permutation\(np.flatnonzero'),
    (dict(indices=np.arange(SIZE) - 1), r'in \[0, 13\), but reach from -1'),
    (dict(indices=np.arange(SIZE) + 1), 'but reach from 1 to 13'),
    (dict(indices=np.arange(SIZE, dtype=np.uint64) + np.uint64(2**63)),
     'but reach from 9223372036854775808'),
    (dict(weights=np.ones(SIZE)), 'must be float32, but are float64'),
    (dict(weights=SIZE * [1.]), 'must be float32, but are float64'),
    (dict(weights=ONES * np.nan), NO_WEIGHT),
    (dict(weights=ONES * np.inf), NO_WEIGHT),
    (dict(weights=np.r_[-ONES[:1], ONES[1:]]), NO_WEIGHT),
    (dict(weights=0 * ONES), NO_WEIGHT),
    (dict(indices=np.arange(0), weights=ONES[:0]), 'pruned every image'),
    (dict(tier_of_slot=ONES), '`tier_of_slot` must be integers'),
    (dict(tier_of_slot=np.ones(5, int)), '`tier_of_slot` must be integers'),
    (dict(tier_of_slot=np.full(SIZE, -1)), r'`tier_of_slot`.*\[1, 1\]'),
    (dict(tier_of_slot=np.zeros(SIZE, int)), r'`tier_of_slot`.*\[1, 1\]'),
    (dict(tier_of_slot=np.full(SIZE, 3),
          tiers=[(6, 6), (7, 7)]), r'`tier_of_slot`.*\[1, 2\].*`tiers` has 2'),
    (dict(tiers=[(6, 6), (7, 7)]), 'first of several `tiers`: give `tier_of_'),
    (dict(tiers=[1, 2]), '`tiers` must be Tier'),
    (dict(tiers=[(1, 2, 3, 4, 5)]), '`tiers` must be Tier'),
    (dict(tiers=[(1, 2, 'x')]), '`tiers` must be Tier'),
    (dict(tiers=None), '`tiers` must be Tier'),
    (dict(tiers=40000 * [(1, 1)]), '32767 `tiers` at most'),
    (None, 'must return an EpochPlan'),
])
def test_plans_that_cannot_be_trained_on(changes, message):
    """They stop when they are drawn, and the policy is named."""

    def policy(scores, rng):
        return changes and plan_of(**changes)

    with pytest.raises(Refusal, match=message) as error:
        drawn_by(policy)
    assert repr(as_policy(policy)) in str(error.value)
    assert ' at 0x' not in str(error.value)
    assert str(error.value).endswith('Change the policy.')


@pytest.mark.parametrize('plan, says', [
    (EpochPlan.full(np.arange(6)), 'but has 6 of 13 images in 6 slots'),
    (EpochPlan.full(
        np.arange(SIZE) // 2 * 2), 'but has 7 of 13 images in 13 slots'),
    (EpochPlan.full(np.r_[np.arange(SIZE),
                          4]), 'but has 13 of 13 images in 14 slots'),
    (replace(EpochPlan.full(np.arange(SIZE)),
             weights=2 * ONES), 'and all weights 1'),
])
def test_full_plans_that_are_none(plan, says):
    """What a policy calls a full plan must be one: in its place the run trains
    on all images, in the order of the baseline."""

    class KeepsSome(MeanThreshold):

        def __call__(self, scores, rng):
            return plan

    with pytest.raises(Refusal, match=says) as error:
        drawn_by(KeepsSome())
    assert 'The plan of KeepsSome(ratio=0.5)' in str(error.value)
    assert '`EpochPlan(indices, weights)` for a part' in str(error.value)


def test_types_that_a_user_may_choose():
    """Any size, order and repeats, weights from 0 on, lists and tuples."""
    weights = np.linspace(0, 2, 4, dtype=np.float32)
    for indices in ([9, 2, 2, 0], np.uint64([9, 2, 2, 0])):
        plan = drawn_by(lambda scores, rng: EpochPlan(
            indices, weights, tiers=[(np.int64(13), 4)], note='Look.'))
        assert plan.indices.dtype == np.int64 and not plan.is_full
        assert plan.indices.tolist() == [9, 2, 2, 0]
        assert plan.weights.tolist() == weights.tolist()
        assert plan.tiers == (Tier(13, 4), ) and type(
            plan.tiers[0].size) is int
        assert not plan.is_shuffled and plan.note == 'Look.'
        assert plan.tier_of_slot.dtype == np.int16


def one_by_one(scores, rng):
    """Slots that were drawn so make up for the others by chance."""
    indices = np.flatnonzero(rng.random(len(scores)) < 0.3)
    return EpochPlan(indices, np.full(len(indices), 1 / 0.3, np.float32))


@pytest.mark.parametrize('policy, learns', [
    (MeanThreshold(), True),
    (MeanThreshold(rescale=False), False),
    (one_by_one, True),
])
def test_nothing_is_learned_of_biased_plans(policy, learns):
    plan = drawn_by(policy, 1000)
    assert plan.tier_of_slot.all() == plan.tier_of_slot.any() == learns
    assert plan.is_unbiased(1000) is learns


def test_scores_are_read_only():
    """For the policy alone."""
    scores = np.ones(SIZE, np.float32)
    with pytest.raises(ValueError, match='read-only'):
        draw_plan(
            as_policy(lambda scores, rng: scores.sort()), scores,
            Progress(0, 0, 0, 1), np.random.default_rng(0))
    assert scores.flags.writeable


def test_full_is_what_says_so():
    for policy in (MeanThreshold, QuantileTiers, RandomPruning):
        plan = drawn_by(policy())
        assert plan.is_shuffled and not plan.is_full
    for policy in (MeanThreshold(0), QuantileTiers(ratios=(0, 0)),
                   RandomPruning(0)):
        plan = drawn_by(policy)
        assert plan.is_full and len(plan) == SIZE
    # Never what looks so.
    assert not plan_of(tiers=(Tier(SIZE, SIZE), )).is_full
    full = replace(EpochPlan.full(np.arange(8)), note='Look.')
    assert full.is_full and full.cut(2).note == 'Look.'
    assert not full.tier_of_slot.any() and (full.weights == 1).all()
    assert full.tiers == (Tier(8, 8), )


@given(
    st.lists(st.floats(0.125, 9, width=32), min_size=1, max_size=20),
    st.integers(1, 25))
def test_a_plan_knows_its_own_mean_weight(weights, limit):
    plan = EpochPlan(np.arange(len(weights)), np.float32(weights))
    assert plan.mean_weight == pytest.approx(np.mean(weights), rel=1e-6)
    normalized = plan.normalized()
    assert normalized.mean_weight == pytest.approx(1, rel=1e-5)
    np.testing.assert_allclose(
        normalized.weights * plan.mean_weight, plan.weights, rtol=1e-5)
    assert plan.cut(None) is plan
    cut = plan.cut(limit)
    assert len(cut) == min(limit, len(weights))
    np.testing.assert_array_equal(cut.weights, plan.weights[:limit])


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.floats(0, 9, width=32)),
        min_size=1,
        max_size=20))
def test_a_plan_in_the_order_of_the_dataset(slots):
    """Each slot takes its weight and its tier along."""
    indices, weights = map(np.array, zip(*slots))
    plan = EpochPlan(
        indices, weights, tier_of_slot=indices + 1, is_shuffled=True).sorted()
    found = [*zip(plan.indices.tolist(), plan.weights.tolist())]
    assert sorted(found) == sorted(slots)
    assert plan.indices.tolist() == sorted(indices)
    assert (plan.tier_of_slot == plan.indices + 1).all()


def test_a_tail_makes_no_plan_biased():
    """What is left of this one sums up to 611 of 650 images."""
    weights = np.repeat(np.float32([0.3, 1]), 500)
    plan = EpochPlan(np.arange(1000) % 650, weights, is_shuffled=True)
    drawn = drawn_by(lambda scores, rng: plan, 650, lambda kept: 100)
    assert drawn.weights.sum() == pytest.approx(550 / 0.9)
    assert not drawn.is_unbiased(650) and drawn.tier_of_slot.all()


def test_a_tail_leaves_the_weights_of_a_hard_selection():
    """A function that doesn't rescale has said so by its weights alone."""
    drawn = drawn_by(lambda scores, rng: plan_of(is_shuffled=True), 20,
                     lambda kept: 3)
    assert len(drawn) == SIZE - 3 and (drawn.weights == 1).all()


def test_a_tail_leaves_weights_that_were_divided_by_their_mean():
    weights = np.random.default_rng(0).random(SIZE, np.float32) + 1
    plan = plan_of(weights=weights / weights.mean(), is_shuffled=True)
    cut = plan.without_tail(3, np.random.default_rng(0))
    assert (cut.weights == plan.weights[:-3]).all()


@pytest.mark.parametrize('thresholds, ratios', [
    ([0.3, 0.7], [0.5]),
    ([0.3], [0.5, 0.5]),
    ([], []),
    ([0.7, 0.3], [0.5, 0.5]),
    ([0.3], [1.]),
    ([0.3], [-0.1]),
])
def test_tiers_that_no_plan_can_have(thresholds, ratios):
    """With too few ratios, the images with the highest scores would be left
    out."""
    scores = np.linspace(0, 1, 100, dtype=np.float32)
    with pytest.raises(Refusal, match='`thresholds`'):
        prune(scores, thresholds, ratios, np.random.default_rng(0))


@given(
    st.integers(1, 40), st.integers(0, 39), st.booleans(), st.booleans(),
    st.integers(0, 99))
def test_a_plan_without_its_tail(size, count, is_shuffled, is_biased, seed):
    """The last slots of a plan in random order, and of any other plan slots at
    random. What is told of tiers and weights is that of the other slots."""
    count, rng = min(count, size - 1), np.random.default_rng(seed)
    tier_of_slot = rng.integers(1, 4, size)
    weights = np.float32([0, 1, 1, 1] if is_biased else [0, 1.5, 2.5, 4])
    tiers = [
        Tier(50, int((tier_of_slot == number).sum()), 0.1 * number,
             float(weights[number])) for number in (1, 2, 3)
    ]
    plan = EpochPlan(
        rng.permutation(50)[:size],
        weights[tier_of_slot],
        0.3, (*tiers, Tier(9, 0)),
        'Look.',
        tier_of_slot=tier_of_slot,
        is_shuffled=is_shuffled)
    cut = plan.without_tail(count, rng)
    assert len(cut) == size - count
    rows = np.flatnonzero(np.isin(plan.indices, cut.indices))
    assert cut.indices.tolist() == plan.indices[rows].tolist()
    if is_shuffled:
        assert rows.tolist() == list(range(size - count))
    scale = 1 if is_biased else np.float32(size / (size - count))
    assert cut.weights.dtype == np.float32
    assert (cut.weights == plan.weights[rows] * scale).all()
    assert cut.mean_weight == pytest.approx(cut.weights.mean(), rel=1e-6)
    assert (cut.tier_of_slot == tier_of_slot[rows]).all()
    for number, (tier, before) in enumerate(zip(cut.tiers, plan.tiers), 1):
        slots = cut.tier_of_slot == number
        assert tier.kept == slots.sum() and tier.size == before.size
        assert tier.upper == before.upper
        # To the bit.
        assert (cut.weights[slots] == tier.weight).all()
    assert cut.tiers[3] == (9, 0, None, None)
    assert cut.note == 'Look.' and cut.threshold == 0.3


def test_which_slots_go_at_random():
    """Of a plan in an order of its own each is as likely."""
    plan, counts = plan_of(), np.zeros(SIZE)
    rng = np.random.default_rng(0)
    for _ in range(2_000):
        counts[plan.without_tail(3, rng).indices] += 1 / 2_000
    # The standard error is 0.0094.
    np.testing.assert_allclose(counts, 10 / 13, atol=0.05)


@pytest.mark.parametrize('policy, scale', [
    (QuantileTiers(), 46 / 40),
    (QuantileTiers(rescale=False), 1),
])
def test_the_tail_of_what_a_policy_draws(policy, scale):
    """Also of a biased plan, of which nothing is learned. A full plan has
    none."""
    asked, whole = [], drawn_by(policy, 87)

    def tail(kept, size):
        asked.append((kept, size))
        return 6

    plan = drawn_by(policy, 87, partial(tail, size='x'))
    assert asked == [(46, 'x')] and len(whole) == 46
    assert plan.indices.tolist() == whole.indices[:40].tolist()
    np.testing.assert_allclose(plan.weights, whole.weights[:40] * scale, 1e-6)
    kept = [tier.kept for tier in plan.tiers]
    assert sum(kept) == 40 and (np.array(kept) > 0).all()
    assert plan.tier_of_slot.all() == (scale > 1)
    asked.clear()
    assert drawn_by(MeanThreshold(0), 87, tail).is_full and not asked
    assert drawn_by(policy, 87, lambda kept: 0) is not None


@pytest.mark.parametrize('num_tiers', [255, 256, 300])
def test_more_tiers_than_a_byte_has_numbers(num_tiers):
    """Each image is a tier of its own, and one lies above all thresholds."""
    scores = np.arange(num_tiers + 1, dtype=np.float32)
    plan = prune(scores, scores[1:], [0.] * num_tiers,
                 np.random.default_rng(0))
    assert sorted(plan.indices) == list(range(num_tiers + 1))
    plan = prune(
        np.repeat(scores, 2), scores[1:], [0.5] * num_tiers,
        np.random.default_rng(0))
    assert [tier[:2] for tier in plan.tiers] == [(2, 1)] * num_tiers + [(2, 2)]
    np.testing.assert_array_equal(plan.tier_of_slot, plan.indices // 2 + 1)
