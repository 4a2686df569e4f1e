# Copyright (c) mmib contributors. All rights reserved.
import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.dataset import InfiniteSampler

from mmib.log.forecast import forecast
from mmib.pruning import (AboveMean, Budget, EpochPlan, EpsilonGreedy,
                          MeanThreshold, Neyman, QuantileTiers, RandomPruning,
                          Tier, UpperConfidenceBound, as_policy)
from tests.test_resume import Parts

SIZE = 13


def parts_of(policy, batch_size, lookahead, **kwargs):
    """The parts of a training whose losses are finite."""
    return Parts(
        SIZE,
        policy,
        batch_size=batch_size,
        lookahead=lookahead,
        nan_image=None,
        **kwargs)


def facts(records):
    """Records without NaN, which differs from itself."""
    return [record.to_dict() for record in records]


policies = st.sampled_from([
    MeanThreshold, QuantileTiers, RandomPruning, AboveMean,
    partial(Budget, 100),
    partial(Budget, 90, max_ratio=0.6)
])
with_state = st.sampled_from([
    partial(EpsilonGreedy, epsilon=0.3, period=2),
    partial(UpperConfidenceBound, period=3),
    partial(Neyman, 100, num_strata=3, min_keep=0.3)
])


@given(policies | with_state, st.integers(1, 7), st.integers(0, 9),
       st.integers(1, 60), st.sampled_from([40, 51, 60]))
@settings(max_examples=120)
def test_a_resumed_training_is_the_same(policy, batch_size, lookahead, at,
                                        annealing_iter):
    """Slots, weights and accounts, with plans of less than the lookahead
    too, and without annealing."""
    whole, part, rest = (
        parts_of(
            policy(), batch_size, lookahead, annealing_iter=annealing_iter)
        for _ in range(3))
    whole.train(60)
    part.train(at)
    part.resumed(rest)
    assert not rest.changes
    rest.train(60)
    assert part.slots + rest.slots == whole.slots
    assert facts(part.epochs + rest.epochs) == facts(whole.epochs)
    assert rest.saved == whole.saved
    assert rest.planner.current.epoch == whole.planner.current.epoch


@given(policies, st.integers(1, 7), st.integers(1, 7), st.integers(0, 4),
       st.integers(0, 4), st.integers(1, 59))
@settings(max_examples=80)
def test_another_batch_size(policy, before, after, lookahead, next_lookahead,
                            at):
    """Every slot of every plan is trained on once, and nothing is pruned in
    annealing."""
    part = parts_of(policy(), before, lookahead)
    part.train(at)
    saved = part.saved
    rest = part.resumed(parts_of(policy(), after, next_lookahead))
    text = f'an iteration has {after} images instead of {before}'
    assert (text in rest.changes) == (before != after)
    assert rest.saved == pytest.approx(saved, abs=1e-9)
    rest.train(60)
    epochs = part.epochs + rest.epochs
    slots = part.slots + rest.slots
    # Weights of 1 are those of full passes and of what is above thresholds.
    planner = rest.planner
    in_annealing = slots[planner.clock.annealing_start:]
    assert {weight for _, weight in in_annealing} <= {1}
    assert planner.clock.annealing_at >= 51
    assert planner.clock.annealing_start >= planner._pruned_until
    for epoch, following in zip(epochs, epochs[1:]):
        plan = slots[epoch.start:following.start]
        assert len({index for index, _ in plan}) == len(plan) <= epoch.kept
        if len(plan) == epoch.kept:
            assert sum(weight for _, weight in plan) == pytest.approx(SIZE)
        else:
            # Where annealing begins now, or began when the plan was drawn.
            assert following.start in (51 * before,
                                       planner.clock.annealing_start)


def test_the_full_equivalent_goes_on_with_another_batch_size():
    """40 iterations of 2 slots and 20 of 6 that are full passes save
    nothing; what was saved before stays."""
    part = parts_of(MeanThreshold(), 2, 0)
    part.train(40)
    assert part.saved > 3
    rest = part.resumed(
        parts_of(MeanThreshold(ratio=0), 6, 0, annealing_iter=40))
    assert len(rest.changes) == 3
    left = rest.planner._pruned_until - rest.sampler.position
    saved = part.saved + left * (13 / part.epochs[-1].kept - 1) / 6
    rest.train(60)
    assert rest.saved == pytest.approx(saved)


def test_a_checkpoint_that_counts_an_iteration_too_many():
    """As FlexibleRunner's are after a validation: annealing still begins
    where no plan is cut."""
    part = parts_of(MeanThreshold(), 2, 1)
    part.train(20)
    part.iter += 1
    rest = part.resumed(parts_of(MeanThreshold(), 2, 1))
    assert rest.clock.annealing_start == 2 * 50
    rest.train(60)
    assert rest.planner._pruned_until <= 2 * 50
    assert {weight for _, weight in rest.slots[2 * (51 - 21):]} == {1}


def test_budget_with_another_batch_size():
    """Each iteration of the rest still stands for as many of the baseline."""
    part = parts_of(Budget(100), 4, 0)
    part.train(30)
    rest = part.resumed(parts_of(Budget(100), 8, 0))
    rest.train(60)
    assert rest.iter + rest.saved == pytest.approx(100, abs=1.5)


@pytest.mark.parametrize('policy', [
    QuantileTiers,
    partial(QuantileTiers, rescale=False), EpsilonGreedy,
    partial(Budget, 200)
])
@pytest.mark.parametrize('start', [0, 0.3])
def test_a_training_is_as_it_was_forecast(policy, start):
    """But for the rounding of small plans."""
    training = parts_of(policy(), 2, 0, max_iters=120, annealing_iter=102)
    training.clock.start_at = round(start * 120)
    planner = training.planner
    expected = forecast(planner.policy, planner.clock, planner.normalize)
    training.train(120)
    pruned = [epoch for epoch in training.epochs if epoch.kept < SIZE]
    assert expected.full_iters == pytest.approx(120 + training.saved, rel=0.04)
    weights = [
        weight for epoch in pruned
        for _, weight in training.slots[epoch.start:epoch.start + epoch.kept]
    ]
    kept = [epoch.kept for epoch in pruned]
    recorded = np.average([e.mean_weight for e in pruned], weights=kept)
    told = [expected.mean_weight, recorded]
    np.testing.assert_allclose(told, np.mean(weights), rtol=0.05)


@pytest.mark.parametrize('lookahead', [0, 7])
def test_every_slot_of_a_pass_is_a_visit_or_pruned(lookahead):
    """Those of the plan that annealing cuts short may be neither."""
    training = parts_of(QuantileTiers(), 2, lookahead, annealing_iter=50)
    training.train(60)
    counts = training.planner.counts
    assert counts.visits.sum() == 120
    indices = [index for index, _ in training.slots]
    assert counts.visits.tolist() == np.bincount(indices).tolist()
    cut = next(e for e in training.epochs
               if e.start < 100 <= e.start + e.kept < 113)
    last = training.epochs[-1]
    either = counts.visits + counts.pruned
    # The last full pass isn't over, and its rest isn't counted yet.
    passes = len(training.epochs)
    assert cut is not last and counts.pruned.sum() > 0
    assert (passes - 2 <= either).all() and (either <= passes).all()
    # Batches of low scores are pruned more.
    assert counts.pruned[:4].mean() > counts.pruned[-4:].mean()


@pytest.mark.parametrize('resumed', [False, True])
@pytest.mark.parametrize('at', [20, 26, 33])
def test_begin_within_a_training(at, resumed):
    """Full passes until each image was asked for once, then pruned ones."""
    training = parts_of(MeanThreshold(), 2, 2)
    training.iter = at
    training.sampler.skip(2 * at)
    # 5 iterations were saved before.
    training.planner.begin(at, training.sampler.position, at + 5.)
    epochs, slots = training.epochs, training.slots
    if resumed:
        # Before the first full pass has begun.
        training.train(at + 1)
        training = training.resumed(parts_of(MeanThreshold(), 2, 2))
    training.train(60)
    epochs += training.epochs if resumed else []
    slots += training.slots if resumed else []
    pruned = next(epoch for epoch in epochs if epoch.kept < SIZE)
    first = pruned.start - 2 * at
    assert SIZE <= first < 3 * SIZE
    assert {weight for _, weight in slots[:first]} == {1}
    baseline = InfiniteSampler(range(SIZE), seed=3)
    expected = [index for index, _ in zip(baseline, range(2 * 60))][2 * at:]
    indices = [index for index, _ in slots]
    assert indices[:first] == expected[:first]
    assert set(indices[:first]) == set(range(SIZE))
    assert training.clock.saved_iters(pruned, pruned.start) == (
        pytest.approx(5))


@pytest.mark.parametrize('before, policy, goes_on', [
    (UpperConfidenceBound(), EpsilonGreedy(), False),
    (EpsilonGreedy(), EpsilonGreedy(keep=0.3), True),
])
def test_the_state_of_another_policy(before, policy, goes_on):
    """It goes on with other arguments, and the log says what changed."""
    part = parts_of(before, 3, 1)
    part.train(40)
    rest = part.resumed(parts_of(policy, 3, 1))
    assert (policy.state_dict()['num_plans'] > 3) is goes_on
    assert rest.changes == [
        f'the next plans are drawn by {policy!r} instead of {before!r}'
    ]
    rest.train(60)
    # Until annealing.
    assert {round(policy.keep * SIZE),
            SIZE} <= {epoch.kept
                      for epoch in rest.epochs}


@pytest.mark.parametrize('threshold', [0.5, np.nan, np.inf])
def test_policies_that_give_numbers_of_numpy(threshold):
    """And none that is a threshold. Checkpoints and JSON know neither."""

    def policy(scores, rng):
        plan = MeanThreshold()(scores, rng)
        tiers = tuple(
            Tier(np.int64(n), np.int64(kept)) for n, kept in plan.tiers)
        return replace(plan, threshold=np.float32(threshold), tiers=tiers)

    part = parts_of(policy, 3, 1)
    part.train(20)
    assert part.planner.current.threshold == (threshold == 0.5 and 0.5)
    assert not part.resumed(parts_of(policy, 3, 1)).changes


def full_plan(scores, rng, **changes):
    size = len(scores)
    return replace(
        EpochPlan(rng.permutation(size), np.ones(size, np.float32)), **changes)


NO_WEIGHT = 'finite and not negative'


@pytest.mark.parametrize('changes, message', [
    (dict(indices=np.arange(5)),
     r'one entry for each slot.*\(5,\) and \(13,\)'),
    (dict(
        indices=np.arange(SIZE)[:, None],
        weights=np.ones((SIZE, 1), np.float32)), 'one entry for each slot'),
    (dict(indices=np.ones(SIZE, bool)),
     'must be integers, but are bool: np.flatnonzero'),
    (dict(indices=np.arange(SIZE) - 1), r'in \[0, 13\), but reach from -1'),
    (dict(indices=np.arange(SIZE) + 1), 'but reach from 1 to 13'),
    (dict(weights=np.ones(SIZE)), 'must be float32, but are float64'),
    (dict(weights=np.full(SIZE, np.nan, np.float32)), NO_WEIGHT),
    (dict(weights=np.full(SIZE, np.inf, np.float32)), NO_WEIGHT),
    (dict(weights=-np.ones(SIZE, np.float32)), NO_WEIGHT),
    (dict(weights=np.zeros(SIZE, np.float32)), NO_WEIGHT),
    (dict(indices=np.empty(0, int), weights=np.empty(
        0, np.float32)), 'pruned every image'),
    (None, 'must return an EpochPlan'),
])
def test_plans_that_cannot_be_trained_on(changes, message):
    """They stop when they are drawn, and the policy is named."""

    def policy(scores, rng):
        return changes and full_plan(scores, rng, **changes)

    with pytest.raises((TypeError, ValueError), match=message) as error:
        parts_of(policy, 3, 1).train(20)
    assert repr(as_policy(policy)) in str(error.value)
    assert '`custom_hooks`' in str(error.value)


def test_weights_from_0_on_can_be_trained_on():

    def policy(scores, rng):
        return full_plan(
            scores, rng, weights=np.linspace(0, 2, SIZE, dtype=np.float32))

    training = parts_of(policy, 3, 1)
    training.train(20)
    assert {0, 0.5, 2} < {weight for _, weight in training.slots}


def test_scores_are_read_only():
    """The view of a policy alone, and not what a checkpoint has."""
    with pytest.raises(ValueError, match='read-only'):
        parts_of(lambda scores, rng: scores.sort(), 3, 1).train(20)
    part = parts_of(full_plan, 3, 1)
    part.train(20)
    assert part.planner.plan_scores.flags.writeable
    part.resumed(parts_of(full_plan, 3, 1)).train(60)


def test_normalized_weights():
    """The same plans with mean weight 1, and the same V."""
    plain, normalized = (parts_of(QuantileTiers(), 1, 0) for _ in range(2))
    normalized.planner.normalize = True
    for training in (plain, normalized):
        training.train(51)
    assert [i for i, _ in plain.slots] == [i for i, _ in normalized.slots]
    for one, other in zip(plain.epochs, normalized.epochs):
        weights = [
            np.array(
                [w for _, w in training.slots[one.start:one.start + one.kept]])
            for training in (plain, normalized)
        ]
        np.testing.assert_allclose(
            weights[1], weights[0] * one.kept / SIZE, rtol=1e-6)
        if one.variance_ratio is not None:
            np.testing.assert_allclose(
                other.variance_ratio, one.variance_ratio, rtol=1e-5)
    assert plain.epochs[-1].variance_ratio is not None


def test_another_mean_weight_after_a_resume():
    """The plan in training keeps its weights, and V their mean."""
    part, rest = (parts_of(RandomPruning(0.5), 3, 1) for _ in range(2))
    part.train(20)
    rest.planner.normalize = True
    part.resumed(rest)
    assert rest.changes == ['from the next plan on the mean weight is 1']
    left = len(rest.sampler._slots)
    assert left > 0 and rest.planner.current.mean_weight > 1.8
    rest.train(40)
    weights = [weight for _, weight in rest.slots]
    assert min(weights[:left]) > 1.8
    np.testing.assert_allclose(weights[left:], 1, rtol=1e-6)
    assert rest.planner.current.mean_weight == 1


def test_pruning_that_starts_later():
    training = parts_of(QuantileTiers(), 2, 0)
    training.planner.clock.start_at = 20
    training.train(60)
    sizes = [epoch.kept for epoch in training.epochs if epoch.start < 40]
    assert sizes == [SIZE] * 4  # The last of them begins before.
    assert training.epochs[4].kept < SIZE


def test_biased_plans_have_no_ratio():
    """Nor do full passes."""
    for policy in (QuantileTiers(rescale=False), MeanThreshold(0)):
        training = parts_of(policy, 2, 0)
        training.train(60)
        assert {epoch.variance_ratio for epoch in training.epochs} == {None}
    unbiased = parts_of(RandomPruning(), 2, 0)
    unbiased.train(60)
    ratios = [
        epoch.variance_ratio for epoch in unbiased.epochs
        if epoch.variance_ratio
    ]
    np.testing.assert_allclose([r.value for r in ratios], 1, rtol=1e-5)


def test_scores_are_read_once_within_the_lookahead():
    """The next plans are drawn from the same ones, without waiting."""
    training = parts_of(QuantileTiers(), 2, 9)
    planner, plans = training.planner, []
    planner.observers = [
        lambda epoch, plan: plan is not None and plans.append(
            (epoch.start, planner.plan_scores))
    ]
    training.train(60)
    (read, scores), *plans = plans
    reads = 1
    for start, others in plans:
        assert (others is not scores) == (start - read >= 2 * 9)
        if others is not scores:
            read, scores, reads = start, others, reads + 1
    assert 2 < reads < len(plans)
    # Nor has each a line of log, but for the one that begins annealing.
    *pruned, annealing = [e for e in training.epochs if e.start <= 2 * 51]
    logged = [epoch.start for epoch in pruned if epoch.logged]
    assert (np.diff(logged) >= 2 * 9).all() and len(logged) < len(pruned)
    assert annealing.logged and annealing.start - logged[-1] < 2 * 9


def test_the_checksum_is_that_of_each_plan():
    """Of those too that were drawn without reading scores."""

    def last_checksum(changed=None):
        numbers = itertools.count()

        def policy(scores, rng):
            plan = RandomPruning()(scores, rng)
            if next(numbers) != changed:
                return plan
            return replace(plan, indices=plan.indices[::-1].copy())

        training, checksums = parts_of(policy, 2, 9), []
        merge = training.planner.visits.merge
        training.planner.visits.merge = lambda checksum: (
            checksums.append(checksum) or merge(checksum))
        training.train(51)
        assert 2 < len(checksums) < next(numbers) - 3
        return checksums[-1]

    assert last_checksum() == last_checksum()
    assert len({last_checksum(changed) for changed in (None, 0, 1, 2, 3)}) == 5


class Listening(QuantileTiers):
    """Keeps what it is told of its tiers."""

    def begin_plan(self, progress):
        self.told = getattr(self, 'told', []) + [progress.norms]


def test_policies_are_told_the_norms_of_their_tiers():
    """Those of the visits since the last plan, which are of it where nothing
    is in flight."""
    training = parts_of(Listening(), 1, 0)
    slots = []
    training.planner.observers = [
        lambda epoch, plan: slots.append((epoch, plan))
    ]
    training.train(51)
    plans = [(epoch, plan) for epoch, plan in slots if plan is not None]
    assert np.isnan(training.planner.policy.told[0].mean_squares).all()
    for (epoch, plan), norms in zip(plans, training.planner.policy.told[1:]):
        # The losses of `Parts.train` are the squares of its norms.
        iters = np.arange(epoch.start, epoch.start + len(plan))
        losses = (plan.indices + 1) / (2. + iters)
        expected = [
            losses[plan.tier_of_slot == tier].mean()
            for tier in range(1, 1 + len(plan.tiers))
        ]
        np.testing.assert_allclose(norms.mean_squares, expected, rtol=1e-6)
