# Copyright (c) mmib contributors. All rights reserved.
"""Trainings as plans, visits and savings have it, and what they go on with.
Those of a Runner are in tests/system."""
import functools
import itertools
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.dataset import DefaultSampler, InfiniteSampler, RepeatDataset
from torch.utils.data import DataLoader

from mmib.data.delivery import DeliveryCheck
from mmib.errors import Refusal
from mmib.log.forecast import forecast
from mmib.pruning import (AboveMean, Budget, EpochPlan, EpsilonGreedy,
                          MeanThreshold, Neyman, QuantileTiers, RandomPruning,
                          ScoreOnly, Tier, UpperConfidenceBound)
from mmib.runner.checks import check_ranks
from mmib.session import Session, why_not
from tests.system.processes import run_ranks
from tests.test_datasets import Listed
from tests.training import (SIZE, Training, dealt, facts, loop, losses_of,
                            plans_of, state_of)


def of_any_size(scores, rng):
    """Plans of a user, with repeats, weights of 0 and numbers of numpy."""
    indices = rng.integers(0, len(scores), rng.integers(1, 2 * len(scores)))
    weights = rng.permutation(np.linspace(0, 2, len(indices), dtype='f'))
    return EpochPlan(indices, weights + np.float32(len(indices) == 1),
                     np.float32(rng.choice([0.5, np.nan, np.inf])),
                     (Tier(np.int64(SIZE), np.int64(len(indices))), ))


POLICIES = st.sampled_from([
    MeanThreshold,
    QuantileTiers,
    RandomPruning,
    AboveMean,
    ScoreOnly,
    functools.partial(Budget, max_ratio=0.6, ratio=0.7),
    functools.partial(EpsilonGreedy, epsilon=0.3, period=2),
    functools.partial(UpperConfidenceBound, period=3),
    functools.partial(Neyman, num_strata=3, min_keep=0.3),
    lambda: of_any_size,
])

# Driven by a hook -----------------------------------------------------------


@given(POLICIES, st.integers(1, 7), st.integers(0, 9), st.integers(1, 60),
       st.sampled_from([40, 51, 60]))
@settings(max_examples=60)
def test_a_resumed_training_is_the_same(policy, batch_size, lookahead, at,
                                        annealing_iter):
    """Slots, weights, tables and accounts, with plans of less than the
    lookahead too, and without annealing."""
    whole, part, rest = (
        Training(
            policy(), batch_size, lookahead, annealing_iter=annealing_iter)
        for _ in range(3))
    whole.train(60)
    part.train(at).resumed_by(rest).train(60)
    assert not rest.changes
    assert part.slots + rest.slots == whole.slots
    assert facts(part.records + rest.records) == facts(whole.records)
    for training in (rest, whole):
        training.session.merge()
    assert str(rest.tables.state_dict()) == str(whole.tables.state_dict())
    assert rest.planner.checksum == whole.planner.checksum
    # A plan is dealt as it is.
    assert whole.slots == dealt(whole.plans)[:60 * batch_size]


@given(POLICIES, st.integers(1, 7), st.integers(1, 7), st.integers(0, 4),
       st.integers(0, 4), st.integers(1, 59))
@settings(max_examples=40)
def test_another_batch_size(policy, before, after, lookahead, next_lookahead,
                            at):
    """Every slot of every plan is trained on once. Plans that are drawn from
    here on are cut where annealing begins now."""
    part = Training(policy(), before, lookahead).train(at)
    rest = part.resumed_by(Training(policy(), after, next_lookahead))
    text = f'an iteration has {after} images instead of {before}'
    assert (text in rest.changes) == (before != after)
    assert rest.saved == pytest.approx(part.saved, abs=1e-9)
    rest.train(60)
    slots = dealt(part.plans + rest.plans)
    assert part.slots + rest.slots == slots[:at * before + (60 - at) * after]
    annealing = at * before + (51 - at) * after
    for record, plan in rest.plans:
        assert record.annealing == (record.start >= annealing)
        assert record.annealing <= plan.is_full
        assert record.annealing or record.start + len(plan) <= annealing
    iters = [record.iter for record in part.records + rest.records]
    assert iters == sorted(iters)


def test_savings_with_another_batch_size():
    """What was saved before stays, and full passes save nothing. A budget is
    met with iterations of another size."""
    part = Training().train(40)
    rest = part.resumed_by(
        Training(MeanThreshold(ratio=0), 6, annealing_iter=40))
    assert len(rest.changes) == 3 and part.saved > 3
    left = rest.sampler.num_waiting
    saved = part.saved + left * (SIZE / part.records[-1].kept - 1) / 6
    assert rest.train(60).saved == pytest.approx(saved)
    part = Training(Budget(ratio=0.6), 4).train(30)
    rest = part.resumed_by(Training(Budget(ratio=0.6), 8)).train(60)
    assert 60 + rest.saved == pytest.approx(100, abs=1.5)


def test_a_checkpoint_that_counts_an_iteration_too_many():
    """As FlexibleRunner's are after a validation: annealing lies where the
    iterations to come say."""
    part = Training(lookahead=1).train(20)
    part.session.iteration += 1
    rest = part.resumed_by(Training(lookahead=1)).train(60)
    annealing = [r.start for r in rest.records if r.annealing]
    assert annealing[0] == 2 * 50
    assert {weight for _, weight in rest.slots[2 * (51 - 21):]} == {1}


@pytest.mark.parametrize('policy', [
    QuantileTiers(),
    QuantileTiers(rescale=False),
    EpsilonGreedy(),
    Budget(ratio=0.6)
])
@pytest.mark.parametrize('start', [0, 0.2, 0.3])
def test_a_training_is_as_it_was_forecast(policy, start):
    """But for the rounding of small plans. Pruning begins at the first edge
    after ``start``."""
    training = Training(policy, 2, 0, 120, 102, start)
    expected = forecast(policy, training.session.clock)
    training.train(120)
    pruned = [record for record in training.records if record.kept < SIZE]
    assert pruned[0].start == SIZE * max(1, -(-int(240 * start) // SIZE))
    assert 120 + training.saved == pytest.approx(expected.full_iters, rel=0.03)
    weights = [
        plan.weights for record, plan in training.plans if record.kept < SIZE
    ]
    recorded = np.average([record.mean_weight for record in pruned],
                          weights=[record.kept for record in pruned])
    np.testing.assert_allclose([expected.mean_weight, recorded],
                               np.concatenate(weights).mean(),
                               rtol=0.05)


@pytest.mark.parametrize('lookahead', [0, 7])
def test_every_slot_of_a_pass_is_a_visit_or_pruned(lookahead):
    """Those of the plan that annealing cuts short may be neither."""
    training = Training(
        QuantileTiers(), lookahead=lookahead, annealing_iter=50).train(60)
    training.session.merge()
    tables = training.tables
    indices = [index for index, _ in training.slots]
    assert len(indices) == 120
    assert tables.visits.tolist() == np.bincount(indices).tolist()
    assert tables.last_visit.max() == 50
    either = tables.visits + tables.pruned
    # The last full pass isn't over, and its rest isn't counted yet.
    passes = len(training.records)
    assert (passes - 2 <= either).all() and (either <= passes).all()
    # Before pruning begins the log is merged too.
    assert len(Training(start=0.5).train(29).session.log) <= 7
    # Images of low scores are pruned more.
    assert tables.pruned[:4].mean() > tables.pruned[-4:].mean()
    # Each plan adds what it left out to the savings.
    for record, following in zip(training.records, training.records[1:]):
        trained = following.start - record.start
        assert following.iter == following.start / 2
        assert following.covered == pytest.approx(record.covered +
                                                  trained / record.kept)
        assert following.saved_iters == pytest.approx(following.covered *
                                                      SIZE / 2 -
                                                      following.iter)


def test_a_repeated_data_set():
    """Full passes are pieces of the baseline's shuffle of all repeats, and
    pruning begins when each image was asked for."""
    dataset = RepeatDataset(Listed([f'{i}.png' for i in range(5)]), 3)
    training = Training(QuantileTiers(), 2, 1, dataset=dataset).train(60)
    records = training.records
    assert [record.start for record in records[:4]] == [0, 5, 10, 15]
    assert [record.kept for record in records[:3]] == [5, 5, 5]
    assert records[3].kept < 5
    baseline = InfiniteSampler(range(15), seed=3)
    full = list(itertools.islice(baseline, 15))
    assert [index for index, _ in training.slots[:15]] == full
    assert training.tables.visits.sum() == 120
    assert max(plan.indices.max() for _, plan in training.plans[3:-4]) < 5
    # In a loop of one's own, too.
    session = Session(dataset, QuantileTiers(), epochs=9, stream=True)
    plans = plans_of(session)
    loop(session, 2)
    assert [plan.is_full for _, plan in plans[:4]] == 3 * [True] + [False]


@pytest.mark.parametrize('resumed', [False, True])
@pytest.mark.parametrize('at', [1, 20, 26, 33, 50, 51, 58])
def test_begin_within_a_training(at, resumed):
    """Full passes until each image was asked for once, then pruned ones,
    unless annealing begins before: also at its edge."""
    training = Training(lookahead=2)
    # 5 iterations were saved before.
    training.session.start_afresh(at, 0, 2, saved_iters=5.)
    clock = training.session.clock
    assert clock.fresh_from == 2 * at
    expected = forecast(MeanThreshold(), clock)
    records, slots = training.records, training.slots
    if resumed:
        # Before the first full pass has begun.
        training.train(at + 1)
        training = training.resumed_by(Training(lookahead=2))
    training.train(60)
    records += training.records * resumed
    slots += training.slots * resumed
    baseline = InfiniteSampler(range(SIZE), seed=3)
    baseline = list(itertools.islice(baseline, 120))[2 * at:]
    pruned = [record for record in records if record.kept < SIZE]
    assert bool(pruned) is (at < 50 - SIZE) is not clock.prunes_nothing
    assert (expected.share == 1) is clock.prunes_nothing
    until = pruned[0].start - 2 * at if pruned else 120
    assert slots[:until] == [(index, 1) for index in baseline[:until]]
    if pruned:
        assert SIZE <= until < 2 * SIZE
        assert pruned[0].start == clock.first_pruned
        assert pruned[0].saved_iters == pytest.approx(5)
    else:
        assert training.saved == pytest.approx(5)


@pytest.mark.parametrize('before, policy, goes_on', [
    (UpperConfidenceBound(), EpsilonGreedy(), False),
    (EpsilonGreedy(), EpsilonGreedy(keep=0.3), True),
    (QuantileTiers(), Neyman(num_strata=3, min_keep=0.3), False),
    (Neyman(num_strata=1), Neyman(num_strata=3, min_keep=0.3), True),
], ids=repr)  # yapf: disable
def test_another_policy(before, policy, goes_on):
    """It goes on with the state of its type, learns nothing from the tiers of
    the last one, and the log says what changed."""
    part = Training(before, 3, 1).train(20)
    rest = part.resumed_by(Training(policy, 3, 1))
    assert rest.changes == [
        f'the next plans are drawn by {policy!r} instead of {before!r}'
    ]
    assert (str(policy.state_dict()) == str(before.state_dict())) is goes_on
    assert rest.sampler.num_waiting > 0
    assert not rest.sampler.state_dict()['tiers'].any()
    assert not rest.tables.sums.any() and not rest.tables.pairs.any()
    rest.train(60)
    assert rest.plans[0][0].variance_ratio is None


def test_other_data_or_scores():
    """The session tells what differs, and begins within the training, with
    the savings alone."""
    part = Training(EpsilonGreedy()).train(30)
    state = state_of(part.session)
    rest = Training(EpsilonGreedy(), dataset=range(11))
    assert why_not(rest.session, state) == (
        'the checkpoint is of 13 images, and `train_dataloader.dataset` has '
        '11 images')
    with pytest.raises(Refusal, match="can't go on: the .* is of 13 images,"):
        rest.session.load_state_dict(state)
    rest.session.start_afresh(30, 0, 2, state['saved_iters'])
    assert rest.saved == part.saved > 1
    assert rest.train(45).tables.pruned.any()
    for session, reason in ((own(), 'counts iterations'),
                            (Training(score='gradient').session,
                             '"loss", and those of this training are "grad')):
        assert reason in why_not(session, state)
    repeated = RepeatDataset(Listed([str(i) for i in range(SIZE)]), 3)
    assert why_not(Session(repeated, epochs=3), state_of(own())).endswith(
        ' is of 13 images, and `train_dataloader.dataset` has 13 images, 39 '
        'with repeats')


def test_normalized_weights():
    """The same plans with mean weight 1. After a resume the open plan keeps
    its weights."""
    plain, normalized = (
        Training(RandomPruning(0.5), 3, 1, normalize=value).train(20)
        for value in (False, True))
    images, weights = np.array(plain.slots).T
    np.testing.assert_array_equal(np.array(normalized.slots).T[0], images)
    np.testing.assert_allclose(np.array(normalized.slots).T[1], 1, rtol=1e-6)
    assert weights[-9:].min() == weights.max() == np.float32(SIZE / 7)
    rest = plain.resumed_by(Training(RandomPruning(0.5), 3, 1, normalize=True))
    assert rest.changes == ['from the next plan on the mean weight is 1']
    left = rest.sampler.num_waiting
    weights = np.array(rest.train(40).slots).T[1]
    assert left > 0 and (weights[:left] == np.float32(SIZE / 7)).all()
    np.testing.assert_allclose(weights[left:], 1, rtol=1e-6)
    means = {record.mean_weight for record in plain.records + rest.records}
    assert means == {1, round(SIZE / 7, 6)}
    assert {r.variance_ratio[:3]
            for r in rest.records if r.variance_ratio} == {(1, 1, 1)}


def test_weights_are_relative_to_the_plan_of_each_slot():
    """In batches of two plans too: whatever random plans keep, V is 1. Where
    annealing cuts a plan, the mean is that of the whole plan."""
    shares = itertools.cycle([0.3, 0.7, 0.5])

    def policy(scores, rng):
        return RandomPruning(next(shares))(scores, rng)

    training = Training(policy, 4, 1).train(51)
    ratios = [r.variance_ratio for r in training.records if r.variance_ratio]
    assert len(ratios) > 5
    assert all(ratio[:3] == (1, 1, 1) for ratio in ratios)
    for annealing_iter in (43, 47, 51):
        training = Training(
            QuantileTiers(), annealing_iter=annealing_iter).train(55)
        assert any(
            len(plan) < min(record.kept, 13)
            for record, plan in training.plans)
        for record, plan in training.plans:
            np.testing.assert_allclose(plan.slots().means, record.mean_weight,
                                       1e-5)
    # Nothing is known of biased plans or of full passes.
    for policy in (QuantileTiers(rescale=False), MeanThreshold(0)):
        training = Training(policy).train(60)
        assert {r.variance_ratio for r in training.records} == {None}


def test_scores_are_read_once_within_the_lookahead():
    """The next plans are drawn from the same ones, without waiting."""
    training, plans = Training(QuantileTiers(), lookahead=9), []
    training.planner.observers = [
        lambda record, plan: plan.is_full or plans.append(
            (record.start, training.planner.scores))
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
    *pruned, annealing = [r for r in training.records if r.start <= 2 * 51]
    logged = [record.start for record in pruned if record.logged]
    assert (np.diff(logged) >= 2 * 9).all() and len(logged) < len(pruned)
    assert annealing.logged and annealing.start - logged[-1] < 2 * 9
    assert [r.annealing for r in training.records][-2:] == [True, True]
    assert not any(record.annealing for record in pruned)


def test_the_checksum_is_that_of_each_plan():
    """Of those too that were drawn without reading scores."""

    def last_checksum(changed=None):
        numbers = itertools.count()

        def policy(scores, rng):
            plan = RandomPruning()(scores, rng)
            if next(numbers) != changed:
                return plan
            return replace(plan, indices=plan.indices[::-1].copy())

        training, checksums = Training(policy, lookahead=9), []
        merge = training.session.log.merge
        training.session.log.merge = lambda checksum: (
            checksums.append(checksum) or merge(checksum))
        training.train(51)
        assert 2 < len(checksums) < next(numbers) - 3
        return checksums[-1]

    assert last_checksum() == last_checksum()
    assert len({last_checksum(changed) for changed in (None, 0, 1, 2, 3)}) == 5


def test_policies_are_told_the_norms_of_their_tiers():
    """Those of the visits since the last plan, which are of it where nothing
    is in flight."""

    class Listening(QuantileTiers):

        def begin_plan(self, progress):
            told.append(progress.norms)

    told = []
    training = Training(Listening(), batch_size=1).train(51)
    plans = [pair for pair in training.plans if not pair[1].is_full]
    assert np.isnan(told[0].mean_squares).all() and len(told) == len(plans)
    for (record, plan), norms in zip(plans, told[1:]):
        # The losses are the squares of the norms.
        losses = (plan.indices + 1) / (2. + record.start +
                                       np.arange(len(plan)))
        expected = [
            losses[plan.tier_of_slot == tier].mean()
            for tier in range(1, 1 + len(plan.tiers))
        ]
        np.testing.assert_allclose(norms.mean_squares, expected, rtol=1e-6)


# Loops of one's own ----------------------------------------------------------


def own(policy=None, stream=False, **kwargs):
    arguments = dict(epochs=6, delta=0.7, seed=3, stream=stream)
    return Session(range(SIZE), policy, **{**arguments, **kwargs})


def slots_of(steps):
    return [slot for step in steps for slot in zip(*step[:2])]


@pytest.mark.parametrize('stream', [False, True])
def test_a_loop_of_ones_own(stream):
    """A first pass of the baseline, pruned ones, and annealing, in 0.6 times
    the slots of the baseline."""
    session = own(stream=stream, epochs=10)
    plans = plans_of(session)
    steps = loop(session, 4)
    assert slots_of(steps) == dealt(plans)
    images = [image for image, _ in slots_of(steps)]
    sampler = (InfiniteSampler if stream else DefaultSampler)(
        range(SIZE), seed=3)
    assert images[:SIZE] == list(itertools.islice(sampler, SIZE))
    assert len(images) == pytest.approx(0.6 * 10 * SIZE, abs=2)
    progress = [step[2] for step in steps]
    assert progress == sorted(progress)
    assert progress[-1] == 1 and progress[0] < 0.1
    full = [plan.is_full for _, plan in plans]
    assert full[:2] == [True, False] and full[-1] and sum(full) < len(full) / 2
    # All that was seen is in the tables.
    assert session.tables.visits.tolist() == np.bincount(images).tolist()


@given(POLICIES, st.booleans(), st.booleans(), st.integers(1, 5), st.data())
@settings(max_examples=40)
def test_going_on_is_exact(policy, stream, drop_last, batch_size, data):
    """At any batch, also at the last of an epoch, before the first one and
    after the end. Saving changes nothing."""
    one, two, three = (
        own(policy(), stream, drop_last=drop_last) for _ in range(3))
    whole = loop(one, batch_size, save=True, drop_last=drop_last)
    at = data.draw(st.integers(0, len(whole)))
    part = loop(two, batch_size, at, drop_last=drop_last)
    assert not three.load_state_dict(state_of(two))
    rest = loop(three, batch_size, drop_last=drop_last)
    assert part + rest == whole
    for session in (one, three):
        session.merge()
    assert str(three.tables.state_dict()) == str(one.tables.state_dict())


@pytest.mark.parametrize('stream', [False, True])
@pytest.mark.parametrize('persistent', [False, True])
def test_going_on_with_workers(stream, persistent):
    """What was in flight is drawn again."""
    kwargs = dict(drop_last=True)
    workers = dict(kwargs, num_workers=2, persistent_workers=persistent)
    whole = loop(own(Neyman(), stream, **kwargs), 2, **workers)
    if not stream:
        # By epochs nothing is in flight when a plan is drawn.
        assert whole == loop(own(Neyman(), **kwargs), 2, **kwargs)
    for at in (len(whole) // 2, len(whole) - 3):
        part, rest = (own(Neyman(), stream, **kwargs) for _ in range(2))
        steps = loop(part, 2, at, **workers)
        rest.load_state_dict(state_of(part))
        assert steps + loop(rest, 2, **workers) == whole


@given(POLICIES, st.booleans(), st.integers(1, 5), st.integers(1, 5),
       st.integers(1, 12))
@settings(max_examples=25)
def test_a_loop_with_another_batch_size(policy, stream, before, after, at):
    """Each slot of each plan comes once."""
    part, rest = own(policy(), stream), own(policy(), stream)
    plans = plans_of(part)
    steps = loop(part, before, at)
    rest.load_state_dict(state_of(part))
    rest.planner.observers = part.planner.observers
    assert slots_of(steps + loop(rest, after)) == dealt(plans)
    assert rest.progress == 1


@pytest.mark.parametrize('epoch', range(7))
def test_a_loop_that_begins_afresh(epoch):
    """A full epoch of the baseline, then pruned ones, but in annealing."""
    session, whole = own(), own()
    session.start_afresh(7 * epoch, epoch, 2)
    plans, of_whole = plans_of(session), plans_of(whole)
    loop(session, 2)
    loop(whole, 2)
    assert len(plans) == 6 - epoch
    assert session.clock.first_pruned == epoch + 1
    for number, (record, plan) in enumerate(plans, epoch):
        assert record.covered == number
        assert plan.is_full is (number == epoch or number >= 4)
        if of_whole[number][1].is_full:
            assert dealt([of_whole[number]]) == dealt([(record, plan)])


@pytest.mark.parametrize('stream', [False, True])
def test_what_only_scores(stream):
    """The baseline to the last bit, and a score for each image."""
    session = own(ScoreOnly(), stream)
    for images in DataLoader(range(SIZE), 4, sampler=session.sampler):
        losses, predictions = losses_of(images, session.iteration)
        value = session.mean(losses, predictions)
        assert torch.equal(value, losses.mean())
        value.backward()
        if session.iteration == SIZE:
            break
    session.state_dict()
    assert session.tables.last_visit.all()


def train_on_ranks(rank, results, states):
    """Go on from a state of one rank, and once more from one's own."""
    results[rank] = []
    for stream, state in zip((False, True), states):
        plans, steps, states = [], [], []
        for stop in (2, None):
            session = own(stream=stream)
            session.load_state_dict(state)
            drawn = plans_of(session)
            steps += loop(session, 2, stop)
            plans += [plan.indices.tolist() for _, plan in drawn]
            state = state_of(session)
            states.append(state)
        assert session.progress == 1
        results[rank].append(([step[0] for step in steps], plans, states[0]))


def test_other_ranks():
    """One rank, then two, then one: all draw the same plans, and deal each of
    their slots once, but for those that fill a step by epochs."""
    states = []
    for stream in (False, True):
        part = own(stream=stream)
        loop(part, 2, 9)
        states.append(state_of(part))
    results = run_ranks(functools.partial(train_on_ranks, states=states), 2)
    for stream, state, of_ranks in zip((False, True), states, zip(*results)):
        steps, plans, saved = zip(*of_ranks)
        assert plans[0] == plans[1] and str(saved[0]) == str(saved[1])
        expected = []
        for plan in (state['sampler']['indices'].tolist(), *plans[0]):
            expected += plan if stream else plan + plan[:len(plan) % 2]
        dealt = [
            index for batches in zip(*steps) for slots in zip(*batches)
            for index in slots
        ]
        assert dealt == expected[:len(dealt)]
        assert 0 <= len(expected) - len(dealt) <= stream
        alone = own(stream=stream)
        alone.load_state_dict(saved[0])
        left = saved[0]['sampler']['indices'].tolist()
        indices = [index for step in loop(alone, 2) for index in step[0]]
        assert left and indices[:len(left)] == left


def test_validation_is_left_alone():
    """Losses without a gradient get their mean, anywhere in an epoch."""
    plain, session = own(Neyman()), own(Neyman())
    expected = loop(plain, 4)

    mean = session.mean

    def mean_and_validate(losses, predictions):
        value = mean(losses, predictions)
        with torch.no_grad():
            assert mean(losses * 2).item() == (2 * losses).mean().item()
        assert mean(torch.ones(7, 2)) == 1
        return value

    session.mean = mean_and_validate
    assert loop(session, 4) == expected
    assert str(state_of(session)) == str(state_of(plain))


def step(session, images, scale=1., with_norms=True):
    """A step of a loop of one's own."""
    predictions = torch.ones(len(images), 1, requires_grad=True)
    losses = scale * predictions[:, 0] * (images + 1)
    session.mean(losses, predictions if with_norms else None).backward()


@pytest.mark.parametrize('score', ['loss', 'gradient'])
def test_weight_0_has_a_loss_and_no_gradient(score):
    """The score stays, and this is no loss that isn't finite."""

    def policy(scores, rng):
        return EpochPlan(np.arange(SIZE), np.float32([2, 0, *11 * [1]]))

    session = own(policy, score=score)
    for scale in (1., 2.):
        for images in DataLoader(range(SIZE), 4, sampler=session.sampler):
            step(session, images, scale)
    session.state_dict()
    expected = 2 * np.arange(1., SIZE + 1)
    if score == 'gradient':
        expected[1] = 2.  # Of the first pass.
    np.testing.assert_allclose(session.tables.scores, expected, rtol=1e-5)
    assert session.tables.non_finite == 0


@pytest.mark.parametrize('scale', [1., -1.])
def test_losses_stand_in_for_norms(scale):
    """If the first batch has none, said once. Any loss is a score, also -1."""
    session = own(RandomPruning(0.5))
    loader = DataLoader(range(SIZE), 4, sampler=session.sampler)
    with mock.patch('mmib.session.print_log') as said:
        for images in itertools.chain(loader, loader, loader):
            step(session, images, scale, with_norms=False)
    session.merge()
    scores = [scale * (i + 1) for i in range(SIZE)]
    assert session.tables.scores.tolist() == scores
    assert session.worth.value == 1
    said.assert_called_once()
    assert "can't be seen" in said.call_args.args[0]
    session = own(score='gradient')
    images = next(iter(DataLoader(range(SIZE), 4, sampler=session.sampler)))
    step(session, images, with_norms=False)
    with pytest.raises(Refusal, match='score of an image is the norm of the'):
        session.end_batch()


def test_a_batch_without_norms_does_not_count():
    session = own(RandomPruning(0.5))
    loader = DataLoader(range(SIZE), SIZE, sampler=session.sampler)
    for epoch in range(3):
        step(session, next(iter(loader)), with_norms=epoch < 2)
    session.state_dict()
    assert session.tables.last_visit.max() == session.iteration
    assert not session.lacks_norms and not session.tables.sums.any()


def test_a_loop_that_breaks():
    """A new iterator ends the epoch that is open, up to the last one, and says
    what was left."""
    session = own(RandomPruning(0.5))
    loader = DataLoader(range(SIZE), 2, sampler=session.sampler)
    for epoch in range(6):
        with mock.patch('mmib.session.print_log') as said:
            step(session, next(iter(loader)))
        assert session.clock.epoch == epoch
    assert 'epoch 5 ended with 11 images' in said.call_args.args[0]
    assert session.sampler.position == 13 + 3 * 7 + 13 + 2
    assert session.epoch == 5
    with pytest.raises(Refusal, match='The 6 `epochs` of the Session are ov'):
        next(iter(loader))


@pytest.mark.parametrize('wrong, match', [
    *((dict(epochs=epochs), '`epochs` of a Session must be 2 or more')
      for epochs in (None, 1, 2.5)),
    *((dict(arguments), '`delta` of a Session must be in .* less than `delta`')
      for arguments in (dict(delta=1.2), dict(start=-0.1), dict(start=0.7))),
])
def test_arguments_that_are_refused(wrong, match):
    with pytest.raises(Refusal, match=match):
        own(**wrong)


def test_batches_that_are_refused():
    """Before anything is trained."""
    for stream in (False, True):
        session = own(stream=stream)
        images = iter(DataLoader(range(SIZE), 4, sampler=session.sampler))
        with pytest.raises(Refusal, match=r"shape \(4, 2\).*reduction='none'"):
            session.mean(losses_of(next(images), 0)[0][:, None].repeat(1, 2))
        step(session, torch.arange(4))
        next(images)
        with pytest.raises(
                Refusal, match='got 3 losses where 4 are due: call'):
            step(session, torch.arange(3))
    with pytest.raises(Refusal, match='Something else than the training loop'):
        next(iter(DataLoader(range(SIZE), 4, sampler=session.sampler)))


def check_on_rank(rank, results, others):
    results[rank] = []
    for other in others:
        dataset = Listed(other if rank else PATHS)
        try:
            check_ranks(
                Session(dataset, epochs=2), DeliveryCheck(dataset, None))
        except Refusal as error:
            results[rank].append(str(error))


PATHS = [f'folder/{number}.png' for number in range(SIZE)]


def test_ranks_that_read_other_images():
    """In another order, or fewer."""
    others = [PATHS[::-1], PATHS[:-1], PATHS]
    for errors in run_ranks(
            functools.partial(check_on_rank, others=others), 2):
        assert len(errors) == 2
        assert all('The ranks have read different images, or the same' in error
                   for error in errors)
