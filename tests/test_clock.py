# Copyright (c) mmib contributors. All rights reserved.
"""How far a training is, and how far its schedulers are."""
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib.clock import EpochClock, IterationClock
from mmib.errors import Refusal
from mmib.openmmlab.runner.checks import check_length
from mmib.openmmlab.runner.epochs import ScheduleSteps
from mmib.plan_record import PlanRecord
from mmib.pruning import Budget, Neyman


@pytest.mark.parametrize('start, first', [(0, 1), (0.05, 1), (0.3, 6)])
def test_annealing_and_pruning_begin_with_an_epoch(start, first):
    clock = EpochClock(100, 10, 10, 20, 0.85, start)
    for epoch in range(20):
        clock.epoch = epoch
        assert clock.place(100 * epoch) == epoch
    assert (clock.first_pruned, clock.first_annealing) == (first, 17)


@pytest.mark.parametrize('by_epoch', [True, False])
@pytest.mark.parametrize('policy', [
    Budget(ratio=0.6, max_ratio=0.9),
    Neyman(ratio=0.8),
    Budget(ratio=0.5, max_ratio=0.95),
])
@pytest.mark.parametrize('delta, start', [(0.85, 0.), (1, 0.2)])
def test_the_budget_is_met(by_epoch, policy, delta, start):
    """The shares that follow from what was spent lead to it, and it comes as
    was forecast."""
    length = round(5000 * policy.ratio)
    clock = EpochClock(1000, 10, 100, 50, delta, start) if by_epoch else (
        IterationClock(1000, 10, length, delta, start))
    end = 10**9 if by_epoch else 10 * length
    last, position, saved, shares = None, 0, 0., []
    for epoch in range(clock.length):
        if by_epoch:
            clock.epoch = epoch
        elif position == end:
            break
        kept = limit = 1000
        place = clock.place(position)
        if place < clock.first_annealing:
            limit = clock.until_annealing(position) or 10**9
            if place >= clock.first_pruned:
                policy.begin_plan(clock.progress(position, saved))
                kept = policy._num_kept(policy._kept_share(), 1000)
                shares.append(kept / 1000)
        last = PlanRecord(kept, (),
                          last.covered_until(position) if last else 0, 1,
                          position, position / 10)
        position = min(position + kept, position + limit, end)
        saved += clock.gain(last, position, position // 10)
    assert position == pytest.approx(10 * length, rel=0.01)
    assert position / 10 + saved == pytest.approx(5000, rel=0.01)
    first = policy.expected_share(clock.first_progress())
    assert first == pytest.approx(sum(shares) / len(shares), abs=0.01)
    assert clock.outcome(first) == pytest.approx((length, 5000, 50), rel=0.01)


def test_what_a_policy_is_told_after_starting_afresh():
    """5 epochs of 80 slots were trained on, and one is full before pruning
    begins. They count as full ones."""
    clock = EpochClock(100, 10, 10, 20, 0.85)
    clock.fresh_from, clock.epoch = 500, 5
    first = clock.first_progress()
    assert clock.first_pruned == 6
    # 1200 slots, of which 600 are gone and 300 belong to annealing.
    assert first.kept_share(0.6) == (1200 - 600 - 300) / ((17 - 6) * 100)
    clock.epoch = 6
    assert clock.progress(600, 6.) == first
    assert clock.outcome(0.5) == (200 - 0.5 * 110, 200, 20)
    # At the edge of annealing, and after the end.
    for epoch in (16, 17, 20):
        clock.fresh_from, clock.epoch = 100 * epoch, epoch
        assert clock.prunes_nothing and clock.iteration_at(0, 60) == 60
        assert clock.outcome(0.5)[0] == 200


def test_what_changed():
    """Slots of annealing follow from the iterations to come."""
    clock = IterationClock(100, 10, 60, 1, lookahead=40)
    assert clock.min_gap == 40 and IterationClock(100, 3, 9999,
                                                  1).min_gap == 27
    resumed = IterationClock(100, 20, 60, 0.5)
    assert resumed.load_state_dict(clock.state_dict()) == [
        'an iteration has 20 images instead of 10',
        'annealing begins at iteration 30 instead of 60'
    ]
    resumed.go_on(16, 160)
    assert resumed.until_annealing(160) == 14 * 20
    assert resumed.first_annealing == resumed.place(440) == 440
    assert resumed.iteration_at(180, 0) == 17
    assert EpochClock(100, 10, 10, 6, 1).load_state_dict(
        EpochClock(100, 10, 10, 6, 1).state_dict()) == []


@pytest.mark.parametrize('clock, match', [
    (IterationClock(100, 10, 19, 1), r'1.90 passes over 100.* 20 iterations'),
    (EpochClock(100, 10, 10, 1, 1), '`train_cfg.max_epochs` is 1'),
    (EpochClock(5, 10, 0, 3, 1), '`drop_last` leaves them all'),
])
def test_trainings_that_are_too_short(clock, match):
    with pytest.raises(Refusal, match=match):
        check_length(clock)
    check_length(IterationClock(100, 10, 20, 1))
    check_length(EpochClock(100, 10, 10, 2, 1))


@pytest.mark.parametrize('clock, fits', [
    (IterationClock(100, 10, 19, 1), True),
    (EpochClock(100, 10, 10, 1, 1), True),
    (EpochClock(5, 10, 0, 3, 1), False),
])
def test_a_training_that_prunes_nothing_may_be_short(clock, fits):
    with nullcontext() if fits else pytest.raises(Refusal):
        check_length(clock, prunes=False)


@given(
    st.integers(1, 50), st.lists(st.integers(1, 400), min_size=2, max_size=5),
    st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 40))
def test_schedulers_make_the_steps_of_the_baseline(per_epoch, sizes,
                                                   slots_per_iter, later,
                                                   drop_last, resumed_at):
    """Whatever the epochs keep, each ends where that of the baseline does,
    also where a training goes on with another batch size. The next epoch makes
    up for one that has no whole batch."""
    schedule = ScheduleSteps(per_epoch)
    position = iteration = steps = 0
    for epoch, size in enumerate(sizes):
        schedule.enter(epoch, position)
        begin, is_over, made_up = position, False, steps < epoch * per_epoch
        while True:
            left = begin + size - position
            end = position + left - (left % slots_per_iter) * drop_last
            schedule.expect(end)
            while position < end and iteration != resumed_at:
                position = min(position + slots_per_iter, end)
                iteration += 1
                due = schedule.due(position)
                most = -(-per_epoch * slots_per_iter // max(end - begin, 1))
                assert 0 <= due and (due <= most or made_up
                                     or iteration > resumed_at)
                steps += due
                is_over = position == end
            if iteration != resumed_at:
                break
            resumed_at, slots_per_iter, is_over = -1, later, False
            state = schedule.state_dict()
            schedule = ScheduleSteps(999)
            schedule.load_state_dict(state)
        if is_over:
            assert steps == (epoch + 1) * per_epoch
        # With what `drop_last` leaves.
        position = begin + size
