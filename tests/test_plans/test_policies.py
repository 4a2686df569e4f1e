# Copyright (c) mmib contributors. All rights reserved.
"""What holds of all policies, and the tiers of each."""
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib.errors import Refusal
from mmib.plans.plan import checked
from mmib.pruning import (EpochPlan, EpsilonGreedy, MeanThreshold, Neyman,
                          Progress, QuantileTiers, RandomPruning, as_policy,
                          draw_plan)
from mmib.stream.schedule import StepSize
from tests.test_plans.inputs import (KEEPS, RATIOS, RNGS, SCORES, SELECTIONS,
                                     SHARES, drawn, needing)

TIERS = st.one_of(
    st.builds(MeanThreshold, RATIOS, st.booleans()),
    st.builds(QuantileTiers, st.just((0.2, 0.85)), st.tuples(RATIOS, RATIOS),
              st.booleans()),
    st.builds(QuantileTiers, st.just((0.1, 0.5, 1.)),
              st.tuples(RATIOS, RATIOS, RATIOS)),
    st.builds(RandomPruning, RATIOS))
ANY = TIERS | SELECTIONS | st.builds(
    lambda share, least: needing(share, Neyman(min_keep=least)), SHARES,
    KEEPS.filter(lambda keep: keep < 1))


@given(ANY, SCORES, st.integers(0, 99))
def test_every_plan_tells_its_tiers_and_follows_from_the_generator(
        policy, scores, seed):
    before, state = np.random.get_state(), policy.state_dict()
    plan = drawn(policy, scores, seed)
    policy.load_state_dict(state)
    again = drawn(policy, scores, seed)
    np.testing.assert_array_equal(plan.indices, again.indices)
    np.testing.assert_array_equal(plan.weights, again.weights)
    np.testing.assert_equal(np.random.get_state(), before)
    if len(plan):  # A selection of few images may be empty.
        checked(plan, len(scores))
    assert len(np.unique(plan.indices)) == len(plan)
    assert plan.is_full == (len(plan) == len(scores)) != plan.is_shuffled
    for number, tier in enumerate(plan.tiers, 1):
        slots = plan.tier_of_slot == (0 if plan.is_full else number)
        assert slots.sum() == tier.kept
        weight = tier.size / max(tier.kept, 1) if policy.rescale else 1
        np.testing.assert_allclose(plan.weights[slots], weight, 1e-6)
        assert tier.weight is None or (plan.weights[slots]
                                       == tier.weight).all()
    assert sum(tier.size for tier in plan.tiers) == len(scores)


def tiers_by_hand(policy, scores):
    """(ratio, images of the tier), from the definition of each policy."""
    mean = np.float32(scores.astype(np.float64).mean())
    if isinstance(policy, RandomPruning):
        return [(policy.ratio, np.arange(len(scores)))]
    if isinstance(policy, MeanThreshold):
        edges, ratios = [mean], [policy.ratio]
    else:
        edges = np.quantile(scores, policy.quantiles).astype(np.float32)
        ratios = policy.ratios
    low, high = [-np.inf, *edges], [*edges, np.inf]
    return [(ratio, np.flatnonzero((scores >= a) & (scores < b)))
            for ratio, a, b in zip((*ratios, 0.), low, high)]


@given(TIERS, SCORES, RNGS)
def test_every_tier_keeps_its_share(policy, scores, rng):
    """With the weights that a plan tells, each image has the mean weight 1,
    and none more than 1 / (1 - ratio)."""
    plan, tiers = policy(scores, rng), tiers_by_hand(policy, scores)
    if plan.is_full:
        assert all(int(ratio * len(members)) == 0 for ratio, members in tiers)
        return
    for number, ((ratio, members),
                 tier) in enumerate(zip(tiers, plan.tiers, strict=True), 1):
        inside = np.isin(plan.indices, members)
        kept = len(members) - int(ratio * len(members))
        assert tier[:2] == (len(members), kept)
        assert (plan.tier_of_slot == number).tolist() == inside.tolist()
        assert len(members) <= kept / (1 - ratio) + 1e-6
    if isinstance(policy, MeanThreshold):
        assert plan.threshold == pytest.approx(
            scores.mean(dtype=np.float64), rel=1e-6)


@pytest.mark.parametrize('score', [0.1, 1 / 3, 0.7, 1e-3])
def test_the_mean_of_many_equal_scores_is_that_score(score):
    assert drawn(MeanThreshold(), np.full(1_000_003, score)).is_full


def in_its_own_order(scores, rng):
    """The plan of a user, of which the lowest scores come first."""
    plan = QuantileTiers()(scores, rng)
    order = np.argsort(scores[plan.indices])
    return EpochPlan(plan.indices[order], plan.weights[order])


@pytest.mark.parametrize('size, batch_size', [(1, None), (3, None), (7, 2),
                                              (100, 8)])
@pytest.mark.parametrize(
    'policy', [
        MeanThreshold(0.37),
        QuantileTiers((0.3, 0.6, 0.9), (0.9, 0.61, 0.13)),
        needing(0.55, Neyman()),
        needing(0.2, Neyman(num_tiers=3, min_keep=0.3)),
        RandomPruning(0.8),
        as_policy(in_its_own_order),
    ],
    ids=repr)
def test_the_mean_weight_of_each_image_is_1(policy, size, batch_size):
    """Invariant 2, within five standard errors of the sample, and so is the
    mean over all images, whose error is small. Also where slots that fill no
    batch are left out."""
    rng = np.random.default_rng(size)
    scores = rng.lognormal(size=size).astype(np.float32)
    weights, lengths = np.zeros((1_000, size)), set()
    tail = batch_size and partial(
        StepSize(batch_size, drop_last=True).tail, pass_length=size)
    # What `needing` has told a policy to a budget.
    progress = getattr(policy, '_progress', Progress(0, 0, 0, 1))
    for row in weights:
        plan = draw_plan(policy, scores, progress, rng, tail)
        row[plan.indices] = plan.weights
        lengths.add(len(plan))
    if batch_size:
        assert not any(length % batch_size for length in lengths)
    for sample in (weights, weights.mean(1)):
        mean, error = sample.mean(0), sample.std(0) / len(sample)**0.5
        assert (np.abs(mean - 1) <= 5 * error + 1e-6).all(), mean


def test_the_order_is_uniform():
    """Each image, pruned tier or not, is as likely in each half."""
    rng, scores = np.random.default_rng(0), np.arange(10, dtype=np.float32)
    first_half, seen = np.zeros(10), np.zeros(10)
    for _ in range(4_000):
        order = MeanThreshold(0.4)(scores, rng).indices
        seen[order] += 1
        first_half[order[:len(order) // 2]] += 1
    np.testing.assert_allclose(first_half / seen, 0.5, atol=0.05)


@pytest.mark.parametrize('policy', [
    MeanThreshold(),
    QuantileTiers(),
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
    (QuantileTiers, 'ratios', [(0.5, each) for each in OUTSIDE], r'\[0, 1\)'),
    (QuantileTiers, 'ratios', [(0.5, )], 'one entry for each tier'),
    (QuantileTiers, 'quantiles', [(), (0.2, )], 'one entry for each tier'),
    (QuantileTiers, 'quantiles', QUANTILES, 'must increase'),
    (Neyman, 'ratio', [0, 1.1, float('nan')], r'\(0, 1\]'),
    (Neyman, 'num_tiers', [0, 2.5], 'positive integer'),
    (Neyman, 'min_keep', [0, *OUTSIDE], r'\(0, 1\)'),
    (EpsilonGreedy, 'keep', (0, 1.1, float('nan')), r'\(0, 1\]'),
    (EpsilonGreedy, 'epsilon', (-0.1, 1.1), r'\[0, 1\]'),
    (EpsilonGreedy, 'period', (0, 1.5, True, '2'), 'positive integer'),
])
def test_arguments_out_of_range(policy, name, values, match):
    for value in values:
        with pytest.raises(Refusal, match=f'`{name}.*{match}.*in the policy'):
            policy(**{name: value})


def test_arrays_as_arguments():
    """They are the same policy, also in a state."""
    policy = QuantileTiers(np.array([0.2, 0.85]), np.float32([0.75, 0.5]))
    assert repr(policy) == repr(QuantileTiers((0.2, 0.85), (0.75, 0.5)))


class Stateful:
    """Of a user, and not derived from Policy: its state would be lost."""

    def __call__(self, scores, rng):
        return EpochPlan.full(np.arange(len(scores)))

    def state_dict(self):
        return {}


@pytest.mark.parametrize('wrong, match', [
    ('MeanThreshold', '`policy` must be a policy'),
    (None, '`policy` must be a policy'),
    (Stateful(), 'is not a `mmib.pruning.Policy`: derive'),
])
def test_what_is_no_policy(wrong, match):
    with pytest.raises(Refusal, match=match):
        as_policy(wrong)
