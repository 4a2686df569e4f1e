# Copyright (c) mmib contributors. All rights reserved.
import io
import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmib import InfoBatchSampler
from mmib.clock import IterationClock
from mmib.log.counts import ImageCounts
from mmib.log.forecast import forecast
from mmib.planner import Planner
from mmib.pruning import (AboveMean, Budget, EpochPlan, EpsilonGreedy,
                          MeanThreshold, Neyman, QuantileTiers, RandomPruning,
                          Tier, UpperConfidenceBound, as_policy)
from mmib.scores import ScoreTable
from mmib.visits import VisitCounter
from tests.visits import make_visits

CPU = torch.device('cpu')
SIZE = 13


def sampler_by_iterations(seed):
    sampler = InfoBatchSampler(range(SIZE), seed=seed)
    sampler.by_epoch = False
    return sampler


class Training:
    """Sampler, planner and scores as the hook drives them with so many batches
    in flight, and losses that follow from image and iteration."""

    def __init__(self,
                 policy,
                 batch_size,
                 lookahead,
                 max_iters=60,
                 annealing_iter=51):
        self.batch_size = batch_size
        self.lookahead = lookahead
        self.iter = 0
        self.sampler = sampler_by_iterations(seed=3)
        self.scores = ScoreTable(np.arange(SIZE), CPU)
        self.clock = IterationClock(
            SIZE,
            batch_size,
            max_iters,
            annealing_iter / max_iters,
            lookahead=lookahead * batch_size)
        self.planner = Planner(
            as_policy(policy), VisitCounter(self.scores),
            ImageCounts(np.arange(SIZE)), self.clock)
        self.epochs = []
        self.slots = []

    def run(self, iters):
        """Train until an iteration."""
        self.sampler.connect(self.planner)
        indices = iter(self.sampler)
        for _ in range(self.lookahead * self.batch_size):
            next(indices)
        while self.iter < iters:
            for _ in range(self.batch_size):
                next(indices)
            slots = self.sampler.take(self.batch_size)
            self.planner.counts.visit(slots.indices)
            self.epochs += self.planner.advance(self.sampler.position)
            self.slots += zip(slots.indices.tolist(), slots.weights.tolist())
            if self.iter < self.clock.annealing_at:
                losses = (slots.indices + 1) / (2. + self.iter)
                losses = torch.tensor(losses).float()
                self.scores.record(
                    make_visits(
                        slots.indices, losses, self.iter, slots.tier_of_slot,
                        slots.weights / self.planner.current.mean_weight,
                        losses.sqrt()))
            self.iter += 1

    @property
    def saved(self):
        return self.planner.saved_iters(self.sampler.position)

    def resumed(self, other):
        """Load the state into a training that was just set up."""
        position = self.sampler.position
        buffer = io.BytesIO()
        torch.save((self.sampler.state_dict(), self.scores.state_dict(),
                    self.planner.state_dict(position)), buffer)
        buffer.seek(0)
        sampler, scores, planner = torch.load(buffer, weights_only=True)
        other.iter = self.iter
        other.sampler.load_state_dict(sampler)
        other.scores.load_state_dict(scores)
        other.changes = other.planner.load_state_dict(planner, self.iter,
                                                      position)
        return other


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
        Training(
            policy(), batch_size, lookahead, annealing_iter=annealing_iter)
        for _ in range(3))
    whole.run(60)
    part.run(at)
    part.resumed(rest)
    assert not rest.changes
    rest.run(60)
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
    part = Training(policy(), before, lookahead)
    part.run(at)
    saved = part.saved
    rest = part.resumed(Training(policy(), after, next_lookahead))
    text = f'an iteration has {after} images instead of {before}'
    assert (text in rest.changes) == (before != after)
    assert rest.saved == pytest.approx(saved, abs=1e-9)
    rest.run(60)
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
    part = Training(MeanThreshold(), 2, 0)
    part.run(40)
    assert part.saved > 3
    rest = part.resumed(
        Training(MeanThreshold(ratio=0), 6, 0, annealing_iter=40))
    assert len(rest.changes) == 3
    left = rest.planner._pruned_until - rest.sampler.position
    saved = part.saved + left * (13 / part.epochs[-1].kept - 1) / 6
    rest.run(60)
    assert rest.saved == pytest.approx(saved)


def test_a_checkpoint_that_counts_an_iteration_too_many():
    """As FlexibleRunner's are after a validation: annealing still begins
    where no plan is cut."""
    part = Training(MeanThreshold(), 2, 1)
    part.run(20)
    part.iter += 1
    rest = part.resumed(Training(MeanThreshold(), 2, 1))
    assert rest.clock.annealing_start == 2 * 50
    rest.run(60)
    assert rest.planner._pruned_until <= 2 * 50
    assert {weight for _, weight in rest.slots[2 * (51 - 21):]} == {1}


def test_budget_with_another_batch_size():
    """Each iteration of the rest still stands for as many of the baseline."""
    part = Training(Budget(100), 4, 0)
    part.run(30)
    rest = part.resumed(Training(Budget(100), 8, 0))
    rest.run(60)
    assert rest.iter + rest.saved == pytest.approx(100, abs=1.5)


@pytest.mark.parametrize('policy', [
    QuantileTiers,
    partial(QuantileTiers, rescale=False), EpsilonGreedy,
    partial(Budget, 200)
])
@pytest.mark.parametrize('start', [0, 0.3])
def test_a_training_is_as_it_was_forecast(policy, start):
    """But for the rounding of small plans."""
    training = Training(policy(), 2, 0, max_iters=120, annealing_iter=102)
    training.clock.start_at = round(start * 120)
    planner = training.planner
    expected = forecast(planner.policy, planner.clock, planner.normalize)
    training.run(120)
    pruned = [epoch for epoch in training.epochs if epoch.kept < SIZE]
    assert expected.full_iters == pytest.approx(120 + training.saved, rel=0.04)
    weights = [
        weight for epoch in pruned
        for _, weight in training.slots[epoch.start:epoch.start + epoch.kept]
    ]
    assert expected.mean_weight == pytest.approx(np.mean(weights), rel=0.05)


@pytest.mark.parametrize('lookahead', [0, 7])
def test_every_slot_of_a_pass_is_a_visit_or_pruned(lookahead):
    """Those of the plan that annealing cuts short may be neither."""
    training = Training(QuantileTiers(), 2, lookahead, annealing_iter=50)
    training.run(60)
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
    training = Training(MeanThreshold(), 2, 2)
    training.iter = at
    training.sampler.skip(2 * at)
    # 5 iterations were saved before.
    training.planner.begin(at, training.sampler.position, at + 5.)
    epochs, slots = training.epochs, training.slots
    if resumed:
        # Before the first full pass has begun.
        training.run(at + 1)
        training = training.resumed(Training(MeanThreshold(), 2, 2))
    training.run(60)
    epochs += training.epochs if resumed else []
    slots += training.slots if resumed else []
    pruned = next(epoch for epoch in epochs if epoch.kept < SIZE)
    first = pruned.start - 2 * at
    assert SIZE <= first < 3 * SIZE
    assert {weight for _, weight in slots[:first]} == {1}
    baseline = sampler_by_iterations(seed=3)
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
    part = Training(before, 3, 1)
    part.run(40)
    rest = part.resumed(Training(policy, 3, 1))
    assert (policy.state_dict()['num_plans'] > 3) is goes_on
    assert rest.changes == [
        f'the next plans are drawn by {policy!r} instead of {before!r}'
    ]
    rest.run(60)
    # Until annealing.
    assert {round(policy.keep * SIZE),
            SIZE} <= {epoch.kept
                      for epoch in rest.epochs}


def numpy_numbers(scores, rng):
    plan = MeanThreshold()(scores, rng)
    tiers = tuple(Tier(np.int64(n), np.int64(kept)) for n, kept in plan.tiers)
    return replace(plan, threshold=np.float32(plan.threshold), tiers=tiers)


def test_policies_that_give_numbers_of_numpy():
    part = Training(numpy_numbers, 3, 1)
    part.run(20)
    assert not part.resumed(Training(numpy_numbers, 3, 1)).changes


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
    (dict(indices=np.empty(0, int), weights=np.empty(
        0, np.float32)), 'pruned every image'),
    (None, 'must return an EpochPlan'),
])
def test_plans_that_cannot_be_trained_on(changes, message):
    """They stop when they are drawn, and the policy is named."""

    def policy(scores, rng):
        return changes and full_plan(scores, rng, **changes)

    with pytest.raises((TypeError, ValueError), match=message) as error:
        Training(policy, 3, 1).run(20)
    assert repr(as_policy(policy)) in str(error.value)
    assert '`custom_hooks`' in str(error.value)


def test_weights_from_0_on_can_be_trained_on():

    def policy(scores, rng):
        return full_plan(
            scores, rng, weights=np.linspace(0, 2, SIZE, dtype=np.float32))

    training = Training(policy, 3, 1)
    training.run(20)
    assert {0, 0.5, 2} < {weight for _, weight in training.slots}


def test_scores_are_read_only():
    """The view of a policy alone, and not what a checkpoint has."""
    with pytest.raises(ValueError, match='read-only'):
        Training(lambda scores, rng: scores.sort(), 3, 1).run(20)
    part = Training(full_plan, 3, 1)
    part.run(20)
    assert part.planner.plan_scores.flags.writeable
    part.resumed(Training(full_plan, 3, 1)).run(60)


def test_normalized_weights():
    """The same plans with mean weight 1, and the same V."""
    plain, normalized = (Training(QuantileTiers(), 1, 0) for _ in range(2))
    normalized.planner.normalize = True
    for training in (plain, normalized):
        training.run(51)
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


def test_pruning_that_starts_later():
    training = Training(QuantileTiers(), 2, 0)
    training.planner.clock.start_at = 20
    training.run(60)
    sizes = [epoch.kept for epoch in training.epochs if epoch.start < 40]
    assert sizes == [SIZE] * 4  # The last of them begins before.
    assert training.epochs[4].kept < SIZE


def test_biased_plans_have_no_ratio():
    """Nor do full passes."""
    for policy in (QuantileTiers(rescale=False), MeanThreshold(0)):
        training = Training(policy, 2, 0)
        training.run(60)
        assert {epoch.variance_ratio for epoch in training.epochs} == {None}
    unbiased = Training(RandomPruning(), 2, 0)
    unbiased.run(60)
    ratios = [
        epoch.variance_ratio for epoch in unbiased.epochs
        if epoch.variance_ratio
    ]
    np.testing.assert_allclose([r.value for r in ratios], 1, rtol=1e-5)


def test_scores_are_read_once_within_the_lookahead():
    """The next plans are drawn from the same ones, without waiting."""
    training = Training(QuantileTiers(), 2, 9)
    planner, plans = training.planner, []
    planner.observers = [
        lambda epoch, plan: plan is not None and plans.append(
            (epoch.start, planner.plan_scores))
    ]
    training.run(60)
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

        training, checksums = Training(policy, 2, 9), []
        merge = training.planner.visits.merge
        training.planner.visits.merge = lambda checksum: (
            checksums.append(checksum) or merge(checksum))
        training.run(51)
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
    training = Training(Listening(), 1, 0)
    slots = []
    training.planner.observers = [
        lambda epoch, plan: slots.append((epoch, plan))
    ]
    training.run(51)
    plans = [(epoch, plan) for epoch, plan in slots if plan is not None]
    assert np.isnan(training.planner.policy.told[0].mean_squares).all()
    for (epoch, plan), norms in zip(plans, training.planner.policy.told[1:]):
        # The losses of `Training.run` are the squares of its norms.
        iters = np.arange(epoch.start, epoch.start + len(plan))
        losses = (plan.indices + 1) / (2. + iters)
        expected = [
            losses[plan.tier_of_slot == tier].mean()
            for tier in range(1, 1 + len(plan.tiers))
        ]
        np.testing.assert_allclose(norms.mean_squares, expected, rtol=1e-6)
