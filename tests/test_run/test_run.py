# Copyright (c) mmib contributors. All rights reserved.
"""Runs as plans and visits have them, and what they go on with. Runs in
iterations are in tests/test_openmmlab, and those of a Runner in tests/system.
"""
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmib import Session
from mmib.errors import Refusal
from mmib.pruning import (EpochPlan, EpsilonGreedy, MeanThreshold, Neyman,
                          QuantileTiers, RandomPruning)
from mmib.ranks import World
from mmib.run.run import Run
from mmib.run.states import mismatch, to_current
from mmib.stream.schedule import Schedule, StepSize, outcome
from tests.helpers.runs import (POLICIES, SIZE, DrivenRun, baseline_epoch,
                                baseline_stream, dealt, facts, loop, losses_of,
                                state_of)


@given(POLICIES, st.integers(1, 7), st.integers(0, 9), st.integers(1, 60),
       st.sampled_from([40, 51, 60]), st.sampled_from([0, 0, 20]))
@settings(max_examples=25)
def test_a_resumed_run_is_the_same(policy, batch_size, lookahead, at,
                                   annealing_step, given_up):
    """Slots, weights, tables and accounts, with plans of less than the
    lookahead too, without annealing, and where something was trained that is
    given up."""
    whole, part, rest = (
        DrivenRun(
            policy(), batch_size, lookahead, annealing_step=annealing_step)
        for _ in range(3))
    whole.train(60)
    rest.train(given_up)
    rest.slots, rest.records = [], []
    part.train(at).resumed_by(rest).train(60)
    assert not rest.changes
    assert part.slots + rest.slots == whole.slots
    assert facts(part.records + rest.records) == facts(whole.records)
    assert str(state_of(rest.run)) == str(state_of(whole.run))
    # A plan is dealt as it is.
    assert whole.slots == dealt(whole.plans)[:60 * batch_size]


def by_epochs(policy, batch_size, drop_last=False, **kwargs):
    """A run of 6 epochs, the last of which is annealing."""
    return DrivenRun(
        policy,
        batch_size,
        max_steps=6,
        annealing_step=5,
        by_epoch=True,
        drop_last=drop_last,
        **kwargs)


@given(POLICIES, st.integers(1, 7), st.booleans(), st.data())
@settings(max_examples=25)
def test_a_resumed_run_by_epochs_is_the_same(policy, batch_size, drop_last,
                                             data):
    """Within an epoch, between two of them, and after the end."""
    whole, part, rest = (
        by_epochs(policy(), batch_size, drop_last) for _ in range(3))
    whole.train()
    at, given_up = (
        data.draw(st.integers(0, whole.num_steps)) for _ in range(2))
    rest.train(given_up)
    rest.slots, rest.records = [], []
    part.train(at).resumed_by(rest).train()
    assert part.slots + rest.slots == whole.slots
    assert facts(part.records + rest.records) == facts(whole.records)
    assert str(state_of(rest.run)) == str(state_of(whole.run))


@pytest.mark.parametrize('world_size', [2, 3, 16])
@pytest.mark.parametrize('policy', [RandomPruning(0.5), MeanThreshold(0)])
def test_slots_that_are_repeated_for_other_ranks(policy, world_size):
    """In a plan that prunes, these are random slots, in whichever order the
    plan is: repeating the first ones would give the first image of a dataset
    twice the weight. A full plan repeats its first slots, as the baseline. The
    plans stay those of one rank."""
    again = []
    for seed in range(40):
        training, plain = (
            by_epochs(policy, 1, shuffle=False) for _ in range(2))
        for each in (training, plain):
            each.run.set_ranks(World(), seed)
            each.train(SIZE)
        run = training.run
        run.set_ranks(World(0, world_size))
        for each in (run, plain.run):
            each.next_plan(training.step)
        rest = plain.run.stream.slots_left().indices.tolist()
        own = len(rest)
        for _ in range(2):  # The second time, nothing is repeated.
            run.go_on_with(run.rest_for(StepSize(world_size, False)))
        padded = run.stream.slots_left().indices.tolist()
        assert padded[:own] == rest and len(padded) % world_size == 0
        assert len(padded) - own == -own % world_size
        again.append(padded[own:])
        for each in (run, plain.run):
            each.stream.advance(each.stream.end)
            each.next_plan(training.step)
        assert (run.stream.slots_left().indices[-3:] ==
                plain.run.stream.slots_left().indices[-3:]).all()
    if own == SIZE:
        assert all(each == rest[:len(each)] for each in again)
    else:
        # Of 7 slots, each is about as often among the repeated ones.
        images = np.bincount(np.concatenate(again), minlength=SIZE)
        assert images.max() < 0.5 * images.sum() and (images > 0).sum() > 7


@pytest.mark.parametrize('worlds', [(2, ), (3, ), (16, ), (4, 1, 3)])
def test_a_budget_does_not_depend_on_the_ranks(worlds):
    """Slots that are repeated for other ranks aren't spent, also where a run
    goes on with other ranks within an epoch."""
    kept = {}
    for sizes in ((1, ), worlds):
        # No visits but those of the first epoch: merges are of one process.
        training = DrivenRun(
            Neyman(0.6, num_tiers=2, min_keep=0.2),
            1,
            max_steps=20,
            annealing_step=17,
            by_epoch=True).train(SIZE)
        training.run.merge()
        for epoch in range(1, 20):
            run, size = training.run, sizes[epoch % len(sizes)]
            run.set_ranks(World(0, size))
            run.next_plan(training.step)
            run.go_on_with(run.rest_for(training.step))
            run.stream.advance(run.stream.newest.first_slot + 3)
            # Another number of ranks has the rest.
            run.set_ranks(World(0, sizes[-1]))
            run.load_state_dict(state_of(run))
            run.go_on_with(run.rest_for(training.step))
            run.stream.advance(run.stream.end)
        kept[sizes] = [record.kept for record, _ in training.plans]
    one, several = kept.values()
    assert several == one and len({*one}) > 2


def twice(scores, rng):
    """A plan of a user, with each of some images in two slots."""
    indices = np.repeat(np.arange(5), 2)
    return EpochPlan(indices, np.full(10, len(scores) / 10, np.float32))


def as_many(scores, rng):
    """A plan of a user that has as many slots as a pass, and prunes."""
    indices = np.repeat(np.arange(len(scores) // 2), 2)
    return EpochPlan(indices, np.ones(len(scores), np.float32))


@given(POLICIES, st.integers(2, 7), st.booleans(), st.booleans(),
       st.integers(1, 6))
@example(lambda: twice, 4, False, False, 1)
@example(lambda: as_many, 5, True, False, 1)
@settings(max_examples=60)
def test_a_rest_left_out_as_a_plan_is(policy, batch_size, drop_last, normalize,
                                      at):
    """Where the rest of a plan is dealt in other steps, it doesn't end in a
    smaller step than the baseline's either. The slots that are given up count
    as pruned."""
    size = 24  # In most steps a full pass has whole ones.
    kwargs = dict(size=size, normalize=normalize)
    part = by_epochs(policy(), 1, **kwargs).train(size + at)
    rest = by_epochs(policy(), batch_size, drop_last, **kwargs)
    run = part.resumed_by(rest).run
    plan, slots = run.stream.newest, run.stream.slots_left()
    record, pruned = plan.record, run.table.pruned.copy()
    is_full, before = plan.keeps is None, len(slots.indices)
    tail = 0 if is_full else rest.step.tail(before, size)
    for _ in range(2):  # The second time, nothing is cut.
        run.go_on_with(run.rest_for(rest.step))
    left, newest = run.stream.slots_left(), run.stream.newest
    assert len(left.indices) == before - tail
    last = len(left.indices) % batch_size
    assert (is_full or last == 0 or len(left.indices) < batch_size
            or not drop_last and last >= (size % batch_size or batch_size))
    assert newest.kept == newest.record.kept == record.kept - tail
    left_out = np.isin(
        np.arange(size),
        slots.indices) & ~np.isin(np.arange(size), left.indices)
    assert (run.table.pruned - pruned).tolist() == left_out.tolist()
    if not is_full:
        bits, now = (
            np.unpackbits(each, count=size)
            for each in (plan.keeps, newest.keeps))
        assert now.tolist() == (bits & ~left_out).tolist()
    # The other slots stay in their order. If weights make up for what is
    # pruned, they do so for what is cut.
    scale = np.float32(1)
    if record.mean_weight != 1 and tail:
        scale = np.float32(before / (before - tail))
    assert newest.mean_weight == plan.mean_weight * scale
    assert newest.record.mean_weight == pytest.approx(
        record.mean_weight * scale, rel=1e-5)
    if len({*slots.indices.tolist()}) == before:
        stay = slots.at(np.isin(slots.indices, left.indices))
        weights = stay.weights * scale
        expected = stay._replace(
            weights=weights, relative_weights=weights / newest.mean_weight)
        for column, its_expected in zip(left, expected):
            assert column.tolist() == its_expected.tolist()
    # The counts of the tiers are those of the plan as it was drawn, and the
    # weights are those of the rest.
    tiers = newest.record.tiers
    assert [tier[:3] for tier in tiers] == [tier[:3] for tier in record.tiers]
    for tier, weight in zip(left.tiers.tolist(), left.weights.tolist()):
        # A plan of a user may have no tiers, or tiers without a weight.
        if 0 < tier <= len(tiers) and tiers[tier - 1].weight is not None:
            assert tiers[tier - 1].weight == pytest.approx(weight, rel=1e-6)
    rest.train()
    assert run.epoch == 6
    # Except for what `drop_last` leaves.
    dealt = [*zip(left.indices.tolist(), left.weights.tolist())]
    dealt = dealt[:len(dealt) - (len(dealt) % batch_size) * drop_last]
    assert rest.slots[:len(dealt)] == dealt


@pytest.mark.parametrize('seed', range(5))
def test_a_repeated_slot_that_goes_was_trained_on(seed):
    """4 ranks have 8 slots of a plan with 7, one of which comes twice.
    After the first step the run goes on with 3 ranks."""

    def sevens(scores, rng):
        indices = np.random.default_rng(seed).permutation(len(scores))[:7]
        return EpochPlan(indices, np.full(7, 12 / 7, np.float32))

    part, rest = (by_epochs(sevens, 4, size=12) for _ in range(2))
    run = part.train(3).run
    run.set_ranks(World(0, 4))
    run.next_plan(StepSize(1, False))
    run.go_on_with(run.rest_for(StepSize(1, False)))
    indices = run.stream.slots_left().indices.tolist()
    assert len(indices) == 8 and indices[7] in indices[:7]
    run.stream.advance(run.stream.position + 4)
    run = part.resumed_by(rest).run
    run.set_ranks(World(0, 3))
    pruned = run.table.pruned.copy()
    run.go_on_with(run.rest_for(StepSize(3, drop_last=True)))
    assert run.stream.slots_left().indices.tolist() == indices[4:7]
    assert (run.table.pruned == pruned).all()


def test_a_rest_is_padded_for_its_own_ranks():
    """A plan of 10 slots has 12 on 4 ranks, and 8 were trained on."""
    part = by_epochs(tens, 4, size=14)
    run = part.train(4).run
    run.set_ranks(World(0, 4))
    run.next_plan(StepSize(4, False))
    run.go_on_with(run.rest_for(StepSize(4, False)))
    indices = run.stream.slots_left().indices.tolist()
    assert len(indices) == 12 and {*indices[10:]} <= {*indices[:10]}
    run.stream.advance(run.stream.position + 8)
    for world_size, repeated in ((4, 2), (1, 0), (2, 0), (3, 1)):
        run = part.resumed_by(by_epochs(tens, 4, size=14)).run
        run.set_ranks(World(0, world_size))
        for _ in range(2):
            run.go_on_with(run.rest_for(StepSize(world_size, False)))
            left = run.stream.slots_left().indices.tolist()
            assert left[:2] == indices[8:10] and len(left) == 2 + repeated
        assert world_size != 4 or left == indices[8:]


def tens(scores, rng):
    indices = rng.permutation(len(scores))[:10]
    return EpochPlan(indices, np.full(10, 1.4, np.float32), is_shuffled=True)


def test_a_later_start_keeps_what_was_learned():
    """Of the last plans before a resume, V is known where pruning begins."""
    part = by_epochs(QuantileTiers(), 3).train(13)
    state = state_of(part.run)
    rest = by_epochs(QuantileTiers(), 3, start=0.8)
    rest.run.load_state_dict(state)
    # V needs 6 visits.
    assert state['tables']['sums'][:, 0].sum() == 6
    expected = rest.run.worth
    while rest.run.epoch < 5:
        rest.run.stream.advance(rest.run.stream.end)
        rest.run.next_plan(rest.step)
    assert not rest.run.schedule.may_prune(4 * SIZE)
    assert str(rest.run.worth) == str(expected)


def test_slots_from_before_a_cut_are_refused():
    """Their numbers are those of other images now."""
    session = Session(
        range(24), RandomPruning(0.5), epochs=4, delta=1., seed=0)
    loop(session, 4, 6)
    batches = iter(session.loader(7))
    slots, _ = next(batches)
    session.weigh(*losses_and(slots))
    looked, _ = next(batches)
    # 5 of 12 images are left, of which steps of 2 leave one.
    newest, _ = next(iter(session.loader(2)))
    assert len(looked) == 5 and session._run.stream.newest.kept == 12
    session.weigh(*losses_and(newest))
    assert session._run.stream.newest.kept == 11
    with pytest.raises(Refusal, match='`slots` belong to another Session'):
        session.weigh(*losses_and(looked))


def losses_and(slots):
    losses, predictions = losses_of(slots.indices, 0)
    return losses, slots, predictions


def test_weights_of_a_rest_make_up_for_what_left_out():
    """On average over many cuts each image of the rest has the weight that it
    had, whatever the order of the plan is."""
    run = by_epochs(RandomPruning(0.3), 3, shuffle=False).train(6).run
    slots = run.stream.slots_left()
    assert len(slots.indices) == 7
    count, totals = 2000, np.zeros(SIZE)
    for seed in range(count):
        left = run.stream.rest_for(
            StepSize(4, drop_last=True), np.random.default_rng(seed),
            run.world, run.seed).stream.slots_left()
        assert len(left.indices) == 4
        totals[left.indices] += left.weights
    # Of a weight w, the mean of so many has a standard error of 0.016 w.
    np.testing.assert_allclose(totals[slots.indices] / count, slots.weights,
                               0.08)


@given(POLICIES, st.integers(1, 7), st.integers(1, 7), st.integers(0, 4),
       st.integers(0, 4), st.integers(1, 59))
@settings(max_examples=20)
def test_another_length(policy, before, after, lookahead, next_lookahead, at):
    """Every slot of every plan is trained on once. Plans that are drawn from
    here on are cut where annealing begins now."""
    part = DrivenRun(policy(), before, lookahead).train(at)
    rest = part.resumed_by(DrivenRun(policy(), after, next_lookahead))
    assert rest.changes == [
        f'annealing begins after {51 * after / SIZE:.6g} passes instead of '
        f'{51 * before / SIZE:.6g}'
    ] * (
        before != after)
    assert rest.saved == part.saved
    rest.train(60)
    slots = dealt(part.plans + rest.plans)
    assert part.slots + rest.slots == slots[:at * before + (60 - at) * after]
    annealing = 51 * after
    for record, plan in rest.plans:
        assert record.annealing == (record.first_slot >= annealing)
        assert record.annealing <= plan.is_full
        assert record.annealing or record.first_slot + len(plan) <= annealing
    covered = [record.covered_epochs for record in part.records + rest.records]
    assert covered == sorted(covered)


@pytest.mark.parametrize('changes, says', [
    (dict(), []),
    (dict(batch_size=4),
     ['annealing begins after 15.6923 passes instead of 7.84615']),
    (dict(annealing_step=30),
     ['annealing begins after 4.61538 passes instead of 7.84615']),
    (dict(policy=MeanThreshold(0.4)), [
        'the next plans are drawn by MeanThreshold(ratio=0.4) instead of '
        'MeanThreshold(ratio=0.5)'
    ]),
    (dict(ema=0.25), ['`ema` is 0.25 instead of 0.0']),
    (dict(normalize=True), ['from the next plan on the mean weight is 1']),
    (dict(lookahead=3), []),
])
def test_what_changed(changes, says):
    """And what changes back."""
    part = DrivenRun().train(20)
    rest = part.resumed_by(DrivenRun(**changes))
    assert rest.changes == says
    # Nothing is said twice.
    again = rest.resumed_by(DrivenRun(**changes))
    assert again.changes == []
    back = rest.resumed_by(DrivenRun())
    assert len(back.changes) == len(says)


@pytest.mark.parametrize('notes, shown', [
    (['a', '', 'b', ''], []),
    (['a', 'b', 'c', 'd'], ['b']),
    (['', '', 'c', 'd'], ['d']),
])
def test_a_note_is_shown_once_if_two_plans_in_a_row_have_one(notes, shown):
    """The first plan that prunes is drawn from few scores."""
    left = iter(notes)

    def policy(scores, rng):
        return replace(RandomPruning(0.5)(scores, rng), note=next(left, ''))

    assert DrivenRun(policy).train(40).warnings == shown


@pytest.mark.parametrize('policy', [
    QuantileTiers(),
    QuantileTiers(rescale=False),
    EpsilonGreedy(),
    Neyman(ratio=0.6)
])
@pytest.mark.parametrize('start', [0, 0.2, 0.3])
def test_a_run_is_as_it_was_forecast(policy, start):
    """Except for the rounding of small plans. Pruning begins at the first edge
    after ``start``."""
    training = DrivenRun(policy, 2, 0, 120, 102, start)
    schedule = training.run.schedule
    share = policy.expected_share(schedule.first_progress())
    training.train(120)
    pruned = [record for record in training.records if record.kept < SIZE]
    assert pruned[0].first_slot == SIZE * max(1, -(-int(240 * start) // SIZE))
    spent, covered = outcome(schedule, share)
    assert spent == 240
    assert 240 + training.saved == pytest.approx(covered, rel=0.03)
    weights = [
        plan.weights for record, plan in training.plans if record.kept < SIZE
    ]
    recorded = np.average([record.mean_weight for record in pruned],
                          weights=[record.kept for record in pruned])
    np.testing.assert_allclose([1 / share if policy.rescale else 1, recorded],
                               np.concatenate(weights).mean(),
                               rtol=0.05)


@pytest.mark.parametrize('lookahead', [0, 7])
def test_every_slot_of_a_pass_is_a_visit_or_pruned(lookahead):
    """Those of the plan that annealing cuts short may be neither."""
    training = DrivenRun(
        QuantileTiers(), lookahead=lookahead, annealing_step=50).train(60)
    training.run.merge()
    tables = training.table
    indices = [index for index, _ in training.slots]
    assert len(indices) == 120
    assert tables.visits.tolist() == np.bincount(indices).tolist()
    # Slots until the visit, of 50 steps before annealing.
    assert tables.last_visit.max() == 100
    either = tables.visits + tables.pruned
    # The last full pass isn't over, and its rest isn't counted yet.
    passes = len(training.records)
    assert (passes - 2 <= either).all() and (either <= passes).all()
    # Before pruning begins the log is merged too.
    assert len(DrivenRun(start=0.5).train(29).run.log) <= 7
    # Images of low scores are pruned more.
    assert tables.pruned[:4].mean() > tables.pruned[-4:].mean()
    # Each plan covers a pass, but for the plan that annealing cuts short.
    for record, following in zip(training.records, training.records[1:]):
        trained = following.first_slot - record.first_slot
        assert following.covered_epochs == pytest.approx(
            record.covered_epochs + trained / record.kept)
    place = training.run.stream.place
    assert place.spent == 120
    record = training.records[-1]
    assert place.covered == pytest.approx(
        SIZE * (record.covered_epochs +
                (120 - record.first_slot) / record.kept))


def test_a_repeated_dataset():
    """Full passes are pieces of the baseline's shuffle of all repeats, and
    pruning begins when each image was asked for."""
    training = DrivenRun(
        QuantileTiers(), 2, 1, images=np.arange(15) % 5, size=5).train(60)
    records = training.records
    assert [record.first_slot for record in records[:4]] == [0, 5, 10, 15]
    assert [record.kept for record in records[:3]] == [5, 5, 5]
    assert records[3].kept < 5
    assert [index
            for index, _ in training.slots[:15]] == baseline_stream(15, 15)
    assert training.table.visits.sum() == 120
    assert max(plan.indices.max() for _, plan in training.plans[3:-4]) < 5


@pytest.mark.parametrize('resumed', [False, True])
@pytest.mark.parametrize('at', [1, 20, 26, 33, 50, 51, 58])
def test_begin_within_a_run(at, resumed):
    """Full passes until each image was asked for once, then pruned ones,
    unless annealing begins before: also at its edge."""
    training = DrivenRun(lookahead=2)
    training.run.start_afresh(2 * at)
    training.num_steps, schedule = at, training.run.schedule
    assert schedule.fresh_from == 2 * at
    assert training.run.stream.place == (2 * at, 2 * at)
    records, slots = training.records, training.slots
    if resumed:
        # Before the first full pass has begun.
        training.train(at + 1)
        training = training.resumed_by(DrivenRun(lookahead=2))
    training.train(60)
    records += training.records * resumed
    slots += training.slots * resumed
    baseline = baseline_stream(SIZE, 120)[2 * at:]
    pruned = [record for record in records if record.kept < SIZE]
    assert bool(pruned) is (at < 50 - SIZE) is not schedule.prunes_nothing
    until = pruned[0].first_slot - 2 * at if pruned else 120
    assert slots[:until] == [(index, 1) for index in baseline[:until]]
    if pruned:
        assert SIZE <= until < 2 * SIZE
        assert pruned[0].first_slot == schedule.prune_from
        assert pruned[0].covered_epochs == pytest.approx(pruned[0].first_slot /
                                                         SIZE)
    else:
        assert training.saved == 0


@pytest.mark.parametrize('resumed', [False, True])
@pytest.mark.parametrize('size', [500, 1000, 1050])
def test_the_budget_after_beginning_within_a_run_by_epochs(size, resumed):
    """What was saved before isn't spent, whatever the size of the dataset."""

    def new():
        schedule = Schedule(size, 100, size, 0.85, 0., by_epoch=True)
        return Run(
            np.arange(size),
            Neyman(),
            schedule,
            warn=[].append,
            seed=0,
            every_rank_trains=True)

    run = new()
    # 40 epochs, of which 18 were saved.
    run.start_afresh(40 * size, 18. * size)
    for epoch in (40, 41):
        run.next_plan(StepSize(1, False))
        assert run.epoch == epoch + 1
        run.table.last_visit[:] = 1
        if epoch == 40:
            run.stream.advance(run.stream.end)
            if resumed:
                state = state_of(run)
                run = new()
                run.load_state_dict(state)
    # In passes: of 60 23 are spent, and 15 are those of annealing. Of 100 41
    # are covered, and 15 are those of annealing.
    newest = run.stream.newest
    assert newest.kept == size // 2 and not newest.record.note
    assert newest.record.epoch == 42


@pytest.mark.parametrize('epoch', range(7))
def test_begin_within_a_run_by_epochs(epoch):
    """A full epoch of the baseline, then pruned ones, but in annealing."""
    training = by_epochs(MeanThreshold(), 2)
    training.run.start_afresh(SIZE * epoch, 5.)
    assert training.run.schedule.prune_from == SIZE * (epoch + 1)
    training.train()
    assert len(training.plans) == 6 - epoch and training.run.epoch == 6
    for number, (record, plan) in enumerate(training.plans, epoch):
        assert record.covered_epochs == number
        assert plan.is_full is (number == epoch or number == 5)
        if plan.is_full:
            assert plan.indices.tolist() == baseline_epoch(SIZE, number)
    place = training.run.stream.place
    assert place == (SIZE * epoch + sum(len(p)
                                        for _, p in training.plans), 6 * SIZE)


@pytest.mark.parametrize('plans_ahead', [0, 1, 3])
def test_a_shorter_run_ends_within_the_plan_in_training(plans_ahead):
    """The plans that were drawn ahead, which would begin after its end, are
    gone."""

    def session(epochs):
        return Session(
            range(40),
            RandomPruning(0.5),
            epochs,
            delta=1.,
            stream=True,
            seed=0)

    longer, shorter = session(20), session(4)
    assert (longer.num_samples, shorter.num_samples) == (480, 96)
    loop(longer, 3, 29)
    for _ in range(plans_ahead):
        longer._run.next_plan()
    stream = longer._run.stream
    indices, last = stream.indices(87, World(), 9), stream.current
    assert (last.first_slot, last.end) == (80, 100)
    with pytest.warns(UserWarning, match='after 2.4 passes instead of 12'):
        shorter.load_state_dict(state_of(longer))
    stream = shorter._run.stream
    assert len(stream.plans) == 1 and stream.end == 96
    steps = loop(shorter, 4, drop_last=True)
    assert [index for images, *_ in steps for index in images] == indices[:8]
    assert shorter.progress == 1 and not shorter._run.next_plan()


@pytest.mark.parametrize('before, policy, goes_on', [
    (QuantileTiers(), EpsilonGreedy(), False),
    (EpsilonGreedy(), EpsilonGreedy(keep=0.3), True),
    (QuantileTiers(), Neyman(num_tiers=3, min_keep=0.3), False),
    (Neyman(num_tiers=1), Neyman(num_tiers=3, min_keep=0.3), True),
], ids=repr)  # yapf: disable
def test_another_policy(before, policy, goes_on):
    """It goes on with the state of its type, learns nothing from the tiers of
    the last one, and the log says what changed."""
    part = DrivenRun(before, 3, 1).train(20)
    rest = part.resumed_by(DrivenRun(policy, 3, 1))
    assert rest.changes == [
        f'the next plans are drawn by {policy!r} instead of {before!r}'
    ]
    states = [str(run.policy.state_dict()) for run in (rest.run, part.run)]
    assert (states[0] == states[1]) is goes_on
    tiers = rest.run.stream.slots_left().tiers
    assert len(tiers) and not tiers.any()
    assert not rest.table.sums.any()
    rest.train(60)
    assert rest.plans[0][0].variance_ratio is None


def test_other_data_or_scores():
    """A run says what differs, and is left as it was. The run may begin within
    the run of the checkpoint."""
    part = DrivenRun(EpsilonGreedy()).train(30)
    state = state_of(part.run)
    rest = DrivenRun(EpsilonGreedy(), size=11)
    before = str(state_of(rest.run))
    reason = 'the checkpoint is of 13 images, and the dataset has 11 images'
    assert mismatch(to_current(state), rest.run.state_dict()) == reason
    with pytest.raises(Refusal, match=f"The run can't go on: {reason}."):
        rest.run.load_state_dict(state)
    assert str(state_of(rest.run)) == before
    rest.run.start_afresh(60)
    rest.num_steps = 30
    assert rest.train(45).table.pruned.any()
    for run, reason in ((Session(range(SIZE), epochs=3)._run,
                         'the checkpoint is of a run that counts no epochs'),
                        (DrivenRun(score='gradient').run,
                         '"loss", and those of this run are "gradient"')):
        assert reason in mismatch(to_current(state), run.state_dict())
    state = state_of(DrivenRun(by_epoch=True).train(30).run)
    assert mismatch(to_current(state), part.run.state_dict()) == (
        'the checkpoint is of a run that counts epochs')
    repeated = DrivenRun(
        images=np.arange(3 * SIZE) % SIZE, size=3 * SIZE, by_epoch=True).run
    assert mismatch(to_current(state), repeated.state_dict()) == (
        'the checkpoint is of 13 images, and the dataset has 13 images, 39 '
        'with repeats')


def test_normalized_weights():
    """The same plans with mean weight 1. After a resume the open plan keeps
    its weights."""
    plain, normalized = (
        DrivenRun(RandomPruning(0.5), 3, 1, normalize=value).train(20)
        for value in (False, True))
    images, weights = np.array(plain.slots).T
    np.testing.assert_array_equal(np.array(normalized.slots).T[0], images)
    np.testing.assert_allclose(np.array(normalized.slots).T[1], 1, rtol=1e-6)
    assert weights[-9:].min() == weights.max() == np.float32(SIZE / 7)
    rest = plain.resumed_by(
        DrivenRun(RandomPruning(0.5), 3, 1, normalize=True))
    assert rest.changes == ['from the next plan on the mean weight is 1']
    left = rest.run.stream.left
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

    training = DrivenRun(policy, 4, 1).train(51)
    ratios = [r.variance_ratio for r in training.records if r.variance_ratio]
    assert len(ratios) > 5
    assert all(ratio[:3] == (1, 1, 1) for ratio in ratios)
    for annealing_step in (44, 47, 51):
        training = DrivenRun(
            QuantileTiers(),
            annealing_step=annealing_step).train(annealing_step - 1)
        record, plan = training.plans[-1]
        assert not record.annealing and len(plan) < min(record.kept, 13)
        rest = training.run.stream.slots_left()
        np.testing.assert_allclose(rest.weights / rest.relative_weights,
                                   record.mean_weight, 1e-5)
    # Nothing is known of biased plans or of full passes.
    for policy in (QuantileTiers(rescale=False), MeanThreshold(0)):
        training = DrivenRun(policy).train(60)
        assert {r.variance_ratio for r in training.records} == {None}


def test_scores_are_read_once_within_the_lookahead():
    """The next plans are drawn from the same ones, without waiting."""
    plans = []
    training = DrivenRun(
        QuantileTiers(),
        lookahead=9,
        observers=[
            lambda record, plan: plan.is_full or plans.append(
                (record.first_slot, training.run.reading.scores))
        ])
    training.train(60)
    (read, scores), *plans = plans
    reads = 1
    for start, others in plans:
        assert (others is not scores) == (start - read >= 2 * 9)
        if others is not scores:
            read, scores, reads = start, others, reads + 1
    assert 2 < reads < len(plans)
    # Nor has each a line of log, except for the one that begins annealing.
    *pruned, annealing = [
        r for r in training.records if r.first_slot <= 2 * 51
    ]
    logged = [record.first_slot for record in pruned if record.logged]
    assert (np.diff(logged) >= 2 * 9).all() and len(logged) < len(pruned)
    assert annealing.logged and annealing.first_slot - logged[-1] < 2 * 9
    assert [r.annealing for r in training.records][-2:] == [True, True]
    assert not any(record.annealing for record in pruned)


def test_scores_are_counted_for_a_report_alone():
    """A Session has no report that would show a histogram."""
    for wanted in (False, True):
        training = DrivenRun(QuantileTiers(), with_histograms=wanted).train(20)
        record = training.run.stream.newest.record
        assert record.kept < training.run.schedule.pass_length
        assert (record.histogram is not None) == wanted


def test_the_checksum_is_that_of_each_plan():
    """Of those too that were drawn without reading scores."""

    def last_checksum(changed=None):
        numbers = itertools.count()

        def policy(scores, rng):
            plan = RandomPruning()(scores, rng)
            if next(numbers) != changed:
                return plan
            return replace(plan, indices=plan.indices[::-1].copy())

        training, checksums = DrivenRun(policy, lookahead=9), []
        merge = training.run.log.merge
        training.run.log.merge = lambda *args: (
            checksums.append(args[2]) or merge(*args))
        training.train(51)
        assert 2 < len(checksums) < next(numbers) - 3
        return checksums[-1]

    assert last_checksum() == last_checksum()
    assert len({last_checksum(changed) for changed in (None, 0, 1, 2, 3)}) == 5


def test_policies_get_the_norms_of_their_tiers():
    """Those of the visits since the last plan, which are of it where nothing
    is in flight."""

    class Listening(QuantileTiers):

        def begin_plan(self, progress):
            got.append(progress.norms)

    got = []
    training = DrivenRun(Listening(), batch_size=1)
    got.clear()  # Of the trial before the run.
    training.train(51)
    plans = [pair for pair in training.plans if not pair[1].is_full]
    assert np.isnan(got[0][0]).all() and len(got) == len(plans)
    for (record, plan), norms in zip(plans, got[1:]):
        # The losses are the squares of the norms.
        losses = (plan.indices + 1) / (2. + record.first_slot +
                                       np.arange(len(plan)))
        expected = [
            losses[plan.tier_of_slot == tier].mean()
            for tier in range(1, 1 + len(plan.tiers))
        ]
        np.testing.assert_allclose(norms[0], expected, rtol=1e-6)


def test_the_mean_v_of_a_run():
    """It lies between the V of its plans, and each plan records the mean over
    the plans before it."""
    training = DrivenRun(QuantileTiers(), batch_size=1).train(60)
    training.run.merge()
    records = [r for r in training.records if r.variance_ratio]
    values = [record.variance_ratio.value for record in records]
    assert len(values) > 3 and max(values) - min(values) > 0.01
    assert records[0].mean_ratio.value == pytest.approx(values[0])
    for number, record in enumerate(records, 1):
        low, high = min(values[:number]), max(values[:number])
        assert low - 1e-9 <= record.mean_ratio.value <= high + 1e-9
    assert min(values) < records[-1].mean_ratio.value < max(values)
    assert 0 < training.run.worth.value < 2
