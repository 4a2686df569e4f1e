# Copyright (c) mmib contributors. All rights reserved.
"""Iterations of runs that count slots: how many were made and saved until a
slot, and which iteration a slot was visited in."""
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.dataset import DefaultSampler, InfiniteSampler, RepeatDataset

from mmib import Session
from mmib.openmmlab.console.forecast import forecast
from mmib.openmmlab.data.datasets import image_numbers
from mmib.openmmlab.runner.iterations import Iterations
from mmib.pruning import (EpochPlan, EpsilonGreedy, MeanThreshold, Neyman,
                          QuantileTiers, RandomPruning, as_policy)
from mmib.run.run import Run
from mmib.scores.log import Entry
from mmib.stream.schedule import Place, StepSize
from mmib.stream.stream import Stream
from tests.helpers.iterations import DrivenIterations
from tests.helpers.runs import (POLICIES, SIZE, dealt, facts, loop, plans_of,
                                state_of)
from tests.test_openmmlab.test_datasets import Listed

# Counting --------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.booleans(), st.integers(1, 30)),
        min_size=1,
        max_size=12), st.integers(1, 8), st.integers(0, 9), st.booleans())
def test_epochs_slot_by_slot(epochs, size, begin, drop_last):
    """The last iteration of an epoch has what is left. With `drop_last`, slots
    that fill no iteration are given up with the last one, and visited in none.
    Marks of epochs whose visits are merged are forgotten, and the loop may
    begin the rest of an epoch anew, as after an error."""
    iterations = Iterations(20, size, 99, 0.8, iters_per_epoch=5)
    stream, iteration = Stream(20, Place(begin, begin)), 0
    expected = {}
    for length, merges, split in epochs:
        plan = EpochPlan(np.zeros(length, int), np.ones(length, np.float32))
        stream.deal(plan, length)
        if merges:
            stream.forget_trained()
            first = stream.known_from
            expected = {
                slot: value
                for slot, value in expected.items() if slot >= first
            }
        # At most this many iterations before the loop fails and goes on.
        for most in (split, 99):
            iters = stream.left // size if drop_last else -(-stream.left //
                                                            size)
            iterations.note_epoch(stream, iteration, iters)
            for _ in range(min(iters, most)):
                end = min(stream.position + size, stream.end)
                iteration += 1
                for slot in range(stream.position, end):
                    expected[slot] = iteration
                stream.advance(end)
                assert iterations.before(end) == iteration
        stream.advance(stream.end)
        assert iterations.before(stream.end) == iteration
    numbers = np.array(sorted(expected), int)
    found = iterations.of_visits(numbers)
    assert found.tolist() == [expected[slot] for slot in numbers]


def test_many_short_epochs_between_two_merges():
    """As of a dataset of few images, where scores are read after many epochs:
    2,500 epochs of 2 or 3 iterations, with the right last visits at the end.
    """
    sizes, size = np.random.default_rng(0).integers(4, 8, 2500), 3
    numbers = itertools.cycle(sizes.tolist())

    def policy(scores, rng):
        kept = next(numbers)
        indices = np.sort(rng.permutation(len(scores))[:kept])
        return EpochPlan(indices, np.ones(kept, np.float32))

    iterations = Iterations(10, size, 2501, 1, iters_per_epoch=4)
    # Scores are read once, and then the visits of all epochs wait in the log.
    iterations.schedule.min_gap = 10 * 2501
    run = Run(
        np.arange(10),
        as_policy(policy),
        iterations.schedule,
        warn=print,
        seed=0,
        visited_at=iterations.of_visits,
        every_rank_trains=True)
    expected, iteration = np.zeros(10, int), 0
    for epoch in range(2501):
        run.next_plan(StepSize(size, False))
        stream, plan = run.stream, run.stream.newest
        iters = -(-stream.left // size)
        iterations.note_epoch(stream, iteration, iters)
        indices, begin = plan.columns.indices, plan.first_slot
        for low in range(0, len(indices), size):
            iteration += 1
            expected[indices[low:low + size]] = iteration
        visited = np.arange(begin, plan.end)
        run.log.record(Entry(visited, torch.ones(len(visited))))
        stream.advance(plan.end)
    assert iteration > 2 * 2500 and run.table.last_visit.max() == 4
    run.merge()
    assert run.table.last_visit.tolist() == expected.tolist()
    assert iterations.before(stream.end) == iteration
    assert iterations.saved_at(stream.place) == 4 * 2501 - iteration


@given(
    st.integers(0, 99), st.integers(-9, 99), st.integers(1, 9),
    st.lists(st.integers(0, 99), max_size=9))
def test_iterations_of_a_stream(position, iteration, size, slots):
    """By iterations, each has as many slots, from where the count begins."""
    iterations = Iterations(10, size, 50, 0.8)
    numbers = np.array(sorted({*slots}), int)
    assert iterations.of_visits(numbers).tolist() == [
        1 + slot // size for slot in numbers
    ]
    run = Run(np.arange(10), RandomPruning(), iterations.schedule, print)
    run.start_afresh(position)
    iterations.resume(run, iteration, 0.)
    assert iterations.of_visits(position + numbers).tolist() == [
        iteration + 1 + slot // size for slot in numbers
    ]
    for slot in slots:
        assert iterations.before(position + slot) == (
            pytest.approx(iteration + slot / size))
    state = iterations.state_dict(Place(position, position))
    assert state == dict(
        iteration=iteration, saved=0, slots_per_iter=size, annealing_at=40)


@pytest.mark.parametrize('lookahead, slots, iters, expected', [
    (40, 10, 60, 40),
    (0, 3, 9999, 27),
    (0, 3, 999, 0),
])
def test_the_least_slots_between_two_reads(lookahead, slots, iters, expected):
    """A thousandth of the run, or what may be in flight."""
    iterations = Iterations(100, slots, iters, 1, lookahead=lookahead)
    assert iterations.schedule.min_gap == expected
    by_epochs = Iterations(100, slots, 9, 1, iters_per_epoch=iters // 9)
    assert by_epochs.schedule.min_gap == iters // 9 * 9 // 1000 * slots
    assert by_epochs.schedule_iters == iters // 9 * 9


def test_the_same_in_slots():
    """Of the schedule, which counts nothing else."""
    iterations = Iterations(100, 8, 30, 0.5, 0.3, first_pass=200)
    schedule = iterations.schedule
    assert (iterations.unit, iterations.annealing_at) == ('iteration', 15)
    assert (schedule.length, schedule.start_at,
            schedule.annealing_from) == (240, 72, 120)
    assert schedule.first_pass == 200 and not schedule.by_epoch
    assert schedule.stream_end is None and iterations.schedule_iters == 30
    iterations = Iterations(100, 8, 30, 0.5, 0.3, iters_per_epoch=13)
    schedule = iterations.schedule
    assert (iterations.unit, iterations.annealing_at) == ('epoch', 15)
    assert (schedule.length, schedule.start_at,
            schedule.annealing_from) == (3000, 900, 1500)
    assert schedule.by_epoch and iterations.schedule_iters == 390
    # Of 1500 slots of pruned epochs a half is saved.
    half = iterations.outcome(0.5)
    assert half == pytest.approx((390 - 13 * 6 / 2, 390, 30))


def test_another_batch_size_moves_annealing():
    """Slots of annealing follow from the iterations to come."""
    before = Iterations(100, 10, 60, 1, lookahead=40)
    run = Run(np.arange(100), RandomPruning(), before.schedule, print, seed=0)
    run.start_afresh(70)
    before.resume(run, 7, 0.)
    after = Iterations(100, 20, 60, 0.5)
    other = Run(np.arange(100), RandomPruning(), after.schedule, print)
    other.load_state_dict(state_of(run))
    other.next_plan()
    other.stream.advance(160)
    after.resume(other, 16, 0.)
    schedule = after.schedule
    assert schedule.fresh_from == 70
    assert (after.slots_per_iter, after.annealing_at) == (20, 30)
    # 14 iterations are left until annealing.
    assert schedule.room(other.stream.place) == 14 * 20
    assert schedule.clock(Place(440, 0)) == schedule.annealing_from
    assert after.before(180) == 17


# Going on --------------------------------------------------------------------


def by_epochs(policy, batch_size, drop_last=False, **kwargs):
    """A run of 6 epochs, the last of which is annealing."""
    return DrivenIterations(
        policy,
        batch_size,
        max_steps=6,
        annealing_step=5,
        by_epoch=True,
        drop_last=drop_last,
        **kwargs)


@given(POLICIES, st.integers(1, 7), st.integers(0, 9), st.integers(1, 60))
@settings(max_examples=20)
def test_a_resumed_run_is_the_same(policy, batch_size, lookahead, at):
    """Tables have the iteration of each visit, to the last one. What is saved
    follows from the plans alone."""
    whole, part, rest = (
        DrivenIterations(policy(), batch_size, lookahead) for _ in range(3))
    whole.train(60)
    part.train(at).resumed_by(rest).train(60)
    assert not rest.changes
    assert part.slots + rest.slots == whole.slots
    assert facts(part.records + rest.records) == facts(whole.records)
    check_same(rest, whole)
    whole.run.merge()
    assert whole.table.last_visit.max() == max(
        number // batch_size + 1 for number, slot in enumerate(whole.slots)
        if number < 51 * batch_size)


@given(POLICIES, st.integers(1, 7), st.booleans(), st.data())
@settings(max_examples=20)
def test_a_resumed_run_by_epochs_is_the_same(policy, batch_size, drop_last,
                                             data):
    """Within an epoch, between two of them, and after the end."""
    whole, part, rest = (
        by_epochs(policy(), batch_size, drop_last) for _ in range(3))
    whole.train()
    at = data.draw(st.integers(0, whole.num_steps))
    part.train(at).resumed_by(rest).train()
    assert not rest.changes
    assert part.slots + rest.slots == whole.slots
    assert facts(part.records + rest.records) == facts(whole.records)
    check_same(rest, whole)
    iters = SIZE // batch_size if drop_last else -(-SIZE // batch_size)
    # With the slots that are given up.
    whole.run.stream.advance(whole.run.stream.end)
    assert whole.saved == pytest.approx(6 * iters - whole.num_steps)


def check_same(rest, whole):
    """Compare a resumed run with a whole one, to the last bit."""
    assert str(state_of(rest.run)) == str(state_of(whole.run))
    assert rest.saved == whole.saved


@given(POLICIES, st.integers(1, 7), st.integers(1, 7), st.integers(0, 4),
       st.integers(0, 4), st.integers(1, 59))
@settings(max_examples=40)
def test_another_batch_size(policy, before, after, lookahead, next_lookahead,
                            at):
    """Every slot of every plan is trained on once. Plans that are drawn from
    here on are cut where annealing begins now."""
    part = DrivenIterations(policy(), before, lookahead).train(at)
    rest = part.resumed_by(DrivenIterations(policy(), after, next_lookahead))
    text = f'an iteration has {after} images instead of {before}'
    assert rest.changes == [text] * (before != after)
    assert rest.saved == pytest.approx(part.saved, abs=1e-9)
    rest.train(60)
    slots = dealt(part.plans + rest.plans)
    assert part.slots + rest.slots == slots[:at * before + (60 - at) * after]
    annealing = at * before + (51 - at) * after
    for record, plan in rest.plans:
        assert record.annealing == (record.first_slot >= annealing)
        assert record.annealing <= plan.is_full
        assert record.annealing or record.first_slot + len(plan) <= annealing
    iters = [
        training.iterations.before(record.first_slot)
        for training in (part, rest) for record in training.records
    ]
    assert iters == sorted(iters)


@pytest.mark.parametrize('changes, says', [
    (dict(), []),
    (dict(batch_size=4), ['an iteration has 4 images instead of 2']),
    (dict(annealing_step=30),
     ['annealing begins at iteration 30 instead of 51']),
    (dict(batch_size=4, annealing_step=30), [
        'an iteration has 4 images instead of 2',
        'annealing begins at iteration 30 instead of 51'
    ]),
    (dict(policy=MeanThreshold(0.4)), [
        'the next plans are drawn by MeanThreshold(ratio=0.4) instead of '
        'MeanThreshold(ratio=0.5)'
    ]),
    (dict(lookahead=3), []),
])
def test_what_changed(changes, says):
    """And what changes back."""
    part = DrivenIterations().train(20)
    rest = part.resumed_by(DrivenIterations(**changes))
    assert rest.changes == says
    # Nothing is said twice.
    again = rest.resumed_by(DrivenIterations(**changes))
    assert again.changes == []
    back = rest.resumed_by(DrivenIterations())
    assert len(back.changes) == len(says)


def test_what_changed_by_epochs():
    part = by_epochs(MeanThreshold(), 2).train(20)
    rest = part.resumed_by(
        DrivenIterations(
            batch_size=3, max_steps=6, annealing_step=4, by_epoch=True))
    assert rest.changes == [
        'an iteration has 3 images instead of 2',
        'annealing begins at epoch 4 instead of 5'
    ]


def test_savings_with_another_batch_size():
    """What was saved before stays, and full passes save nothing. A budget is
    met with iterations of another size."""
    part = DrivenIterations().train(40)
    rest = part.resumed_by(
        DrivenIterations(MeanThreshold(ratio=0), 6, annealing_step=40))
    assert len(rest.changes) == 3 and part.saved > 3
    left = rest.run.stream.left
    saved = part.saved + left * (SIZE / part.records[-1].kept - 1) / 6
    assert rest.train(60).saved == pytest.approx(saved)
    part = DrivenIterations(Neyman(ratio=0.6), 4).train(30)
    rest = part.resumed_by(DrivenIterations(Neyman(ratio=0.6), 8)).train(60)
    assert 60 + rest.saved == pytest.approx(100, abs=1.5)


@given(st.integers(1, 7), st.integers(1, 7), st.data())
@settings(max_examples=20)
def test_savings_by_epochs_with_another_batch_size(before, after, data):
    """The baseline makes the rest of its epochs in iterations of this size."""
    part = by_epochs(QuantileTiers(), before)
    part.train(data.draw(st.integers(1, 6 * SIZE // before)))
    rest = part.resumed_by(by_epochs(QuantileTiers(), after))
    assert rest.saved == pytest.approx(part.saved, abs=1e-9)
    begin = part.run.stream.place.covered
    rest.train()
    whole = (6 * SIZE - begin) / SIZE * -(-SIZE // after)
    made = rest.num_steps - part.num_steps
    assert rest.saved == pytest.approx(part.saved + whole - made, abs=1e-6)


def test_a_checkpoint_that_counts_an_iteration_too_many():
    """As FlexibleRunner's are after a validation: annealing lies where the
    iterations to come say."""
    part = DrivenIterations(lookahead=1).train(20)
    rest = part.resumed_by(DrivenIterations(lookahead=1), 21).train(60)
    annealing = [r.first_slot for r in rest.records if r.annealing]
    assert annealing[0] == 2 * 50
    assert {weight for _, weight in rest.slots[2 * (51 - 21):]} == {1}


def test_plans_drawn_ahead_are_counted_anew():
    part = DrivenIterations(QuantileTiers(), 2, lookahead=9).train(30)
    rest = part.resumed_by(DrivenIterations(QuantileTiers(), 3, 9), 31)
    stream, iterations = rest.run.stream, rest.iterations
    current, *later = stream.plans
    assert later and stream.current is current
    for plan in later:
        ahead = plan.first_slot - stream.position
        assert iterations.before(plan.first_slot) == pytest.approx(31 +
                                                                   ahead / 3)
        saved = part.saved + (plan.covered -
                              stream.place.covered) / 3 - ahead / 3
        assert iterations.saved_at(Place(plan.first_slot,
                                         plan.covered)) == pytest.approx(saved)
    assert rest.saved == pytest.approx(part.saved, abs=1e-9)


# Forecasts and savings -------------------------------------------------------


@pytest.mark.parametrize('policy', [
    QuantileTiers(),
    QuantileTiers(rescale=False),
    EpsilonGreedy(),
    Neyman(ratio=0.6)
])
@pytest.mark.parametrize('start', [0, 0.2, 0.3])
def test_a_run_is_as_it_was_forecast(policy, start):
    """Except for the rounding of small plans."""
    training = DrivenIterations(policy, 2, 0, 120, 102, start)
    expected = forecast(policy, training.iterations)
    training.train(120)
    pruned = [record for record in training.records if record.kept < SIZE]
    assert pruned[0].first_slot == SIZE * max(1, -(-int(240 * start) // SIZE))
    assert 120 + training.saved == pytest.approx(expected.full_iters, rel=0.03)
    weights = [
        plan.weights for record, plan in training.plans if record.kept < SIZE
    ]
    np.testing.assert_allclose(
        expected.mean_weight, np.concatenate(weights).mean(), rtol=0.05)


@pytest.mark.parametrize('lookahead', [0, 7])
def test_each_plan_adds_what_is_left_out(lookahead):
    """To the savings, which are whole again after a run without pruning."""
    training = DrivenIterations(
        QuantileTiers(), lookahead=lookahead, annealing_step=50).train(60)
    training.run.merge()
    assert training.table.last_visit.max() == 50
    saved = []
    for record in training.records:
        place = Place(record.first_slot, record.covered_epochs * SIZE)
        made = training.iterations.before(record.first_slot)
        assert made == record.first_slot / 2
        saved.append(training.iterations.saved_at(place))
        assert saved[-1] == pytest.approx(record.covered_epochs * SIZE / 2 -
                                          made)
    assert saved == sorted(saved) and training.saved == saved[-1] > 5
    full = DrivenIterations(MeanThreshold(0), 7).train(60)
    # No rounding error, which would show as "-0".
    assert str(full.saved) == '0.0'


def test_a_repeated_dataset():
    """Full passes are pieces of the baseline's shuffle of all repeats, and
    pruning begins when each image was asked for."""
    dataset = RepeatDataset(Listed([f'{i}.png' for i in range(5)]), 3)
    training = DrivenIterations(
        QuantileTiers(), 2, 1, images=image_numbers(dataset), size=5).train(60)
    records = training.records
    assert [record.first_slot for record in records[:4]] == [0, 5, 10, 15]
    assert [record.kept for record in records[:3]] == [5, 5, 5]
    assert records[3].kept < 5
    full = list(itertools.islice(InfiniteSampler(range(15), seed=3), 15))
    assert [index for index, _ in training.slots[:15]] == full
    assert training.table.visits.sum() == 120
    # In a loop of one's own, each index is an image.
    session = Session(dataset, QuantileTiers(), epochs=9, stream=True)
    plans = plans_of(session)
    loop(session, 2)
    assert [plan.is_full for _, plan in plans[:2]] == [True, False]
    assert len(plans[0][1]) == 15


# Starting afresh -------------------------------------------------------------


@pytest.mark.parametrize('resumed', [False, True])
@pytest.mark.parametrize('at', [1, 20, 26, 33, 50, 51, 58])
def test_begin_within_a_run(at, resumed):
    """Full passes until each image was asked for once, then pruned ones,
    unless annealing begins before: also at its edge."""
    training = DrivenIterations(lookahead=2)
    # 5 iterations were saved before.
    training.start_afresh(at, saved=5.)
    assert training.saved == 5
    schedule = training.run.schedule
    assert schedule.fresh_from == 2 * at
    expected = forecast(MeanThreshold(), training.iterations)
    slots, pruned = [], []
    for until in (at + 1, 60) if resumed else (60, ):
        # Before the first full pass has begun.
        if until == 60 and resumed:
            training = training.resumed_by(DrivenIterations(lookahead=2))
        training.train(until)
        slots += training.slots
        pruned += [(training, record) for record in training.records
                   if record.kept < SIZE]
    baseline = InfiniteSampler(range(SIZE), seed=3)
    baseline = list(itertools.islice(baseline, 120))[2 * at:]
    assert bool(pruned) is (at < 50 - SIZE) is not schedule.prunes_nothing
    assert (expected.share == 1) is schedule.prunes_nothing
    until = pruned[0][1].first_slot - 2 * at if pruned else 120
    assert slots[:until] == [(index, 1) for index in baseline[:until]]
    if pruned:
        assert SIZE <= until < 2 * SIZE
        training, first = pruned[0]
        assert first.first_slot == schedule.prune_from
        place = Place(first.first_slot, first.covered_epochs * SIZE)
        assert training.iterations.saved_at(place) == pytest.approx(5)
        # The budget counts what was saved.
        progress = schedule.progress(place)
        assert progress.covered - progress.spent == pytest.approx(10)
    else:
        assert training.saved == pytest.approx(5)


@pytest.mark.parametrize('resumed', [False, True])
@pytest.mark.parametrize('size, batch_size', [(1000, 10), (500, 10),
                                              (1050, 100)])
def test_the_budget_after_beginning_within_a_run_by_epochs(
        size, batch_size, resumed):
    """What was saved before isn't spent, whatever the size of the dataset and
    of a batch then and now."""

    def new():
        return DrivenIterations(
            Neyman(),
            batch_size,
            max_steps=100,
            annealing_step=85,
            size=size,
            by_epoch=True)

    training = new()
    # 40 epochs of 100 iterations, of which 1800 were saved.
    training.start_afresh(2200, 1800., epoch=40)
    for epoch in (40, 41):
        run = training.run
        run.next_plan(StepSize(1, False))
        run.table.last_visit[:] = 1
        if epoch == 40:
            run.stream.advance(run.stream.end)
            if resumed:
                state = state_of(run)
                training = new()
                training.run.load_state_dict(state)
    # In passes: of 60 23 are spent, and 15 are those of annealing. Of 100 41
    # are covered, and 15 are those of annealing.
    newest = training.run.stream.newest
    assert newest.kept == size // 2 and not newest.record.note
    assert newest.record.epoch == 42


@pytest.mark.parametrize('epoch', range(7))
def test_begin_within_a_run_by_epochs(epoch):
    """A full epoch of the baseline, then pruned ones, but in annealing."""
    training = by_epochs(MeanThreshold(), 2)
    training.start_afresh(50, 5., epoch)
    assert training.saved == 5
    assert training.run.schedule.prune_from == SIZE * (epoch + 1)
    training.train()
    assert len(training.plans) == 6 - epoch and training.run.epoch == 6
    baseline = DefaultSampler(range(SIZE), seed=3)
    for number, (record, plan) in enumerate(training.plans, epoch):
        assert record.covered_epochs == number
        assert plan.is_full is (number == epoch or number == 5)
        if plan.is_full:
            baseline.set_epoch(number)
            assert plan.indices.tolist() == list(baseline)
    # 7 iterations an epoch.
    iters = training.num_steps - 50
    assert training.saved == pytest.approx(5 + 7 * (6 - epoch) - iters)
