# Copyright (c) mmib contributors. All rights reserved.
"""How long a run is, and how far its schedulers are."""
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib.errors import Refusal
from mmib.ledger import Ledger
from mmib.openmmlab.runner.checks import check_length
from mmib.openmmlab.runner.epochs import ScheduleSteps
from mmib.plan_record import PlanRecord
from mmib.pruning import Neyman
from mmib.schedule import PlanStart, Schedule


@pytest.mark.parametrize('start, first', [(0, 1), (0.05, 1), (0.3, 6)])
def test_annealing_and_pruning_begin_with_an_epoch(start, first):
    schedule = Schedule(100, 10, 20, 0.85, start, iters_per_epoch=10)
    for epoch in range(20):
        assert schedule._unit_at(PlanStart(100 * epoch, epoch=epoch)) == epoch
    assert (schedule.prune_from, schedule.anneal_from) == (first, 17)
    assert schedule.most_slots(PlanStart(100, epoch=1)) is None
    assert schedule.by_epoch


@pytest.mark.parametrize('by_epoch', [True, False])
@pytest.mark.parametrize('policy', [
    Neyman(ratio=0.6),
    Neyman(ratio=0.8),
    Neyman(ratio=0.5, min_keep=0.05),
])
@pytest.mark.parametrize('delta, start', [(0.85, 0.), (1, 0.2)])
def test_the_budget_is_met(by_epoch, policy, delta, start):
    """The shares that follow from what was spent lead to it, and it comes as
    was forecast."""
    length = round(5000 * policy.ratio)
    schedule = Schedule(
        1000, 10, 50, delta,
        start, iters_per_epoch=100) if by_epoch else Schedule(
            1000, 10, length, delta, start)
    end = 10**9 if by_epoch else 10 * length
    last, position, saved, shares = None, 0, 0., []
    for epoch in range(schedule.length):
        if position == end:
            break
        kept = limit = 1000
        start = PlanStart(position, position // 10, epoch)
        unit = schedule._unit_at(start)
        if unit < schedule.anneal_from:
            limit = schedule.most_slots(start) or 10**9
            if unit >= schedule.prune_from:
                progress = schedule.progress(start, saved)
                kept = int(1000 * progress.kept_share(policy.ratio) + 1e-6)
                shares.append(kept / 1000)
        last = PlanRecord(kept, (),
                          last.covered_until(position) if last else 0, 1,
                          position, position / 10)
        position = min(position + kept, position + limit, end)
        saved += schedule.iters_saved_since(last, position, position // 10)
    assert position == pytest.approx(10 * length, rel=0.01)
    assert position / 10 + saved == pytest.approx(5000, rel=0.01)
    first = policy.expected_share(schedule.first_progress())
    assert first == pytest.approx(sum(shares) / len(shares), abs=0.01)
    assert schedule.outcome(first) == pytest.approx((length, 5000, 50),
                                                    rel=0.01)


def test_what_a_policy_is_told_after_starting_afresh():
    """5 epochs were trained on, and one is full before pruning begins. If it
    isn't known what they saved, they count as full ones."""
    schedule = Schedule(100, 10, 20, 0.85, iters_per_epoch=10)
    schedule.start_afresh(500)
    first = schedule.first_progress()
    assert schedule.prune_from == 6
    # 1200 slots, of which 600 are gone and 300 belong to annealing.
    assert first.kept_share(0.6) == (1200 - 600 - 300) / ((17 - 6) * 100)
    assert schedule.progress(PlanStart(600, epoch=6), 6.) == first
    schedule.start_afresh(500, unspent=60.)
    later = schedule.first_progress()
    assert later == first._replace(spent=540)
    assert schedule.progress(PlanStart(600, epoch=6), 6.) == later
    assert schedule.outcome(0.5) == (200 - 0.5 * 110, 200, 20)
    # At the edge of annealing, and after the end.
    for epoch in (16, 17, 20):
        schedule.start_afresh(100 * epoch)
        assert schedule.prunes_nothing
        assert schedule.iteration_at(PlanStart(0, 60, epoch)) == 60
        assert schedule.outcome(0.5)[0] == 200


@pytest.mark.parametrize('lookahead, slots, iters, expected', [
    (40, 10, 60, 40),
    (0, 3, 9999, 27),
    (0, 3, 999, 0),
])
def test_the_least_slots_between_two_reads(lookahead, slots, iters, expected):
    """A thousandth of the run, or what may be in flight."""
    schedule = Schedule(100, slots, iters, 1, lookahead=lookahead)
    assert schedule.min_gap == expected


def test_another_batch_size():
    """Slots of annealing follow from the iterations to come."""
    before = Schedule(100, 10, 60, 1, lookahead=40)
    before.start_afresh(70)
    schedule = Schedule(100, 20, 60, 0.5)
    schedule.load_state_dict(before.state_dict())
    assert schedule.fresh_from == 70
    assert (schedule.slots_per_iter, schedule.annealing_at) == (20, 30)
    schedule.count_from(16, 160)
    assert schedule.most_slots(PlanStart(160)) == 14 * 20
    assert schedule.anneal_from == 440
    assert schedule._unit_at(PlanStart(440)) == 440
    assert schedule.iteration_at(PlanStart(180)) == 17


@pytest.mark.parametrize('schedule, match', [
    (Schedule(100, 10, 19, 1), r'1.90 passes over 100.* 20 iterations'),
    (Schedule(100, 10, 1, 1,
              iters_per_epoch=10), '`train_cfg.max_epochs` is 1'),
    (Schedule(5, 10, 3, 1, iters_per_epoch=0), '`drop_last` leaves them all'),
])
def test_runs_that_are_too_short(schedule, match):
    with pytest.raises(Refusal, match=match):
        check_length(schedule)
    check_length(Schedule(100, 10, 20, 1))
    check_length(Schedule(100, 10, 2, 1, iters_per_epoch=10))


@pytest.mark.parametrize('schedule, fits', [
    (Schedule(100, 10, 19, 1), True),
    (Schedule(100, 10, 1, 1, iters_per_epoch=10), True),
    (Schedule(5, 10, 3, 1, iters_per_epoch=0), False),
])
def test_a_run_that_prunes_nothing_may_be_short(schedule, fits):
    with nullcontext() if fits else pytest.raises(Refusal):
        check_length(schedule, prunes=False)


@given(
    st.integers(1, 50), st.lists(st.integers(1, 400), min_size=2, max_size=5),
    st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 40))
def test_schedulers_make_the_steps_of_the_baseline(per_epoch, sizes,
                                                   slots_per_iter, later,
                                                   drop_last, resumed_at):
    """Whatever the epochs keep, each ends where that of the baseline does,
    also where a run goes on with another batch size. The next epoch makes
    up for one that has no whole batch."""
    run = SimpleNamespace(ledger=Ledger(), plans=SimpleNamespace())
    schedule = ScheduleSteps(run, per_epoch)
    position = iteration = steps = 0
    for epoch, size in enumerate(sizes):
        run.ledger.go_to(position)
        run.epoch = epoch
        run.plans.newest = SimpleNamespace(first_slot=position)
        begin, is_over, made_up = position, False, steps < epoch * per_epoch
        while True:
            left = begin + size - position
            end = position + left - (left % slots_per_iter) * drop_last
            schedule.begin_epoch(end)
            while position < end and iteration != resumed_at:
                position = min(position + slots_per_iter, end)
                iteration += 1
                run.ledger.go_to(position)
                due = schedule.due()
                most = -(-per_epoch * slots_per_iter // max(end - begin, 1))
                assert 0 <= due and (due <= most or made_up
                                     or iteration > resumed_at)
                steps += due
                is_over = position == end
            if iteration != resumed_at:
                break
            resumed_at, slots_per_iter, is_over = -1, later, False
            state = schedule.state_dict()
            schedule = ScheduleSteps(run, 999)
            schedule.load_state_dict(state)
        if is_over:
            assert steps == (epoch + 1) * per_epoch
        # With what `drop_last` leaves.
        position = begin + size
