# Copyright (c) mmib contributors. All rights reserved.
"""When plans may prune, what they are drawn from, and their last steps."""
import copy

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmib.planner import Memory, draw, reads_scores
from mmib.pruning import (FunctionPolicy, MeanThreshold, QuantileTiers,
                          RandomPruning)
from mmib.schedule import PlanStart, Schedule, StepSize
from mmib.slots import Columns
from mmib.visits import Tables
from tests.training import POLICIES, SIZE, DrivenTraining, dealt

# The last steps of epochs ----------------------------------------------------


@given(
    st.integers(1, 300), st.integers(1, 300), st.integers(1, 40),
    st.booleans())
@example(9, 12, 4, False)
@example(9, 13, 4, False)
def test_the_tail_of_an_epoch(kept, pass_length, slots, drop_last):
    """The least number of slots without which the last step is no smaller than
    that of the baseline. A plan that fills no step keeps what it has."""
    tail = StepSize(slots, drop_last).tail(kept, pass_length)
    of_baseline = pass_length % slots or slots

    def fits(count):
        last = (kept - count) % slots or slots
        return last == slots or last >= of_baseline and not drop_last

    if kept < slots:
        assert tail == 0
    else:
        assert fits(tail) and not any(map(fits, range(tail)))
        assert tail < slots


@given(POLICIES, st.integers(1, 7), st.booleans(), st.integers(12, 25))
@settings(max_examples=40)
def test_no_epoch_ends_in_a_smaller_step_than_the_baseline(
        policy, batch_size, drop_last, size):
    """What is recorded of a plan is what is dealt of it. Full plans are
    whole."""
    run = DrivenTraining(
        policy(),
        batch_size,
        max_iters=6,
        annealing_iter=5,
        by_epoch=True,
        drop_last=drop_last,
        dataset=range(size)).train()
    assert len(run.plans) == 6
    pruned = np.zeros(size, int)
    for record, plan in run.plans:
        assert record.kept == len(plan)
        if plan.is_full:
            assert len(plan) == size and (plan.weights == 1).all()
            continue
        pruned += ~np.isin(np.arange(size), plan.indices)
        last = len(plan) % batch_size
        assert last == 0 or len(plan) < batch_size or not drop_last and (
            last >= (size % batch_size or batch_size))
        assert record.mean_weight == pytest.approx(plan.weights.mean(), 1e-5)
        if not isinstance(run.run.policy, FunctionPolicy):
            # Those of a user may say anything.
            assert sum(tier.kept for tier in record.tiers) == len(plan)
        for number, tier in enumerate(record.tiers, 1):
            own = plan.tier_of_slot == number
            assert tier.kept == own.sum() or not plan.tier_of_slot.any()
            assert tier.weight is None or (plan.weights[own] == np.float32(
                tier.weight)).all()
    assert run.tables.pruned.tolist() == pruned.tolist()
    if not drop_last:
        assert run.slots == dealt(run.plans)


def test_a_stream_has_no_tails():
    """By iterations, plans are whole, except for the one before annealing."""
    run = DrivenTraining(RandomPruning(0.5), 4).train(60)
    lengths = [len(plan) for record, plan in run.plans if record.kept < SIZE]
    assert {*lengths[:-1]} == {7} and len(lengths) > 10


# Drawing ---------------------------------------------------------------------


def tables_of(scores):
    """Tables with these scores, each of one visit, with its root as norm."""
    size = len(scores)
    tables = Tables(np.arange(size))
    for _ in range(2):
        tables.add(
            Columns(
                np.arange(size),
                *(np.ones(size, dtype) for dtype in ('f', np.int16, 'f'))),
            np.ones(size, np.int32), np.float32(scores),
            np.sqrt(np.float32(scores)))
    return tables


SCORES = np.random.default_rng(0).lognormal(size=50).astype(np.float32)


def by_epochs(policy, epoch, step=None, seed=0, tables=None, **kwargs):
    """The plan of an epoch after full ones."""
    schedule = Schedule(50, 8, 10, 0.8, iters_per_epoch=7)
    memory = kwargs.pop('memory', Memory())
    start = PlanStart(50 * epoch, 7 * epoch, epoch)
    return draw(policy, schedule, tables or tables_of(SCORES), memory, start,
                reads_scores(schedule, memory, start), None,
                np.random.default_rng(seed), step, **kwargs)


def test_drawing_changes_nothing_but_the_generator():
    """So it gives the same again."""
    tables, memory = tables_of(SCORES), Memory()
    before = copy.deepcopy((tables.state_dict(), memory))
    drawn = [
        by_epochs(
            QuantileTiers(), 3, StepSize(8, False), 5, tables, memory=memory)
        for _ in range(2)
    ]
    assert str((tables.state_dict(), memory)) == str(before)
    (plan, record, after), again = drawn
    assert plan.indices.tolist() == again[0].indices.tolist()
    assert record == again[1] and str(after) == str(again[2])
    # What the next plan is told.
    assert after.scores.tolist() == SCORES.tolist()
    assert after.mean_score == record.mean_score == pytest.approx(
        SCORES.mean())
    assert after.read_at == after.logged_at == 150 == record.first_slot
    assert record.mean_ratio == after.mean_ratio.mean()
    other, *_ = by_epochs(QuantileTiers(), 3, StepSize(8, False), 6)
    assert other.indices.tolist() != plan.indices.tolist()


@pytest.mark.parametrize('epoch, prunes', [(0, False), (1, True), (7, True),
                                           (8, False), (9, False)])
def test_where_plans_may_prune(epoch, prunes):
    """After the first epoch and before annealing, if there are scores."""
    plan, record, memory = by_epochs(RandomPruning(0.5), epoch)
    assert (plan is not None) == prunes
    assert record.kept == (25 if prunes else 50)
    assert record.annealing == (epoch >= 8)
    assert (memory.scores is not None) == prunes
    for policy, tables in ((RandomPruning(0), None), (RandomPruning(0.5),
                                                      Tables(np.arange(50)))):
        plan, record, _ = by_epochs(policy, epoch, tables=tables)
        assert plan is None and record.kept == 50
        assert record.mean_weight == 1 and record.tiers == ((50, 50, None,
                                                             None), )


@pytest.mark.parametrize('normalize', [False, True])
def test_the_mean_weight_of_a_plan_without_its_tail(normalize):
    """25 of 50 images in steps of 8 are 24."""
    plan, record, _ = by_epochs(
        RandomPruning(0.5),
        2,
        StepSize(8, drop_last=True),
        normalize=normalize)
    expected = 1 if normalize else 50 / 24
    np.testing.assert_allclose(plan.weights, expected, 1e-6)
    assert record.mean_weight == pytest.approx(expected)
    assert record.tiers[0][:2] == (50, 24)
    # The last step of the baseline has 2 images.
    plan, *_ = by_epochs(RandomPruning(0.5), 2, StepSize(8, drop_last=False))
    assert len(plan) == 24
    plan, *_ = by_epochs(RandomPruning(0.48), 2, StepSize(8, drop_last=False))
    assert len(plan) == 26


def test_a_policy_is_told_what_was_learned():
    """Where scores are read, and not again where they aren't."""
    told = []

    class Listening(MeanThreshold):

        def begin_plan(self, progress):
            told.append(progress)

    schedule = Schedule(50, 5, 1000, 0.85, lookahead=60)
    tables, memory, last = tables_of(SCORES), Memory(), None
    for slot in (50, 80, 110, 140):
        start = PlanStart(slot, slot // 5)
        reads = reads_scores(schedule, memory, start)
        _, last, memory = draw(Listening(), schedule, tables, memory, start,
                               reads, last, np.random.default_rng(0))
        assert (told[-1].norms is not None) == reads == (slot in (50, 110))
        assert (last.variance_ratio is not None) == reads
        assert last.logged == reads
        assert memory.read_at == (50 if slot < 110 else 110)
        assert last.first_slot == told[-1].spent == slot
        assert told[-1].covered == pytest.approx(slot + 5 * last.saved_iters)


def test_when_scores_are_read():
    """Not in annealing, not soon after another time, and always for the first
    plan that prunes."""
    schedule = Schedule(50, 5, 1000, 0.85, lookahead=60)
    first, later = Memory(), Memory(SCORES, read_at=100)

    def reads(memory, slot):
        return reads_scores(schedule, memory, PlanStart(slot))

    # Before pruning begins, as the log would grow else.
    late = Schedule(50, 5, 1000, 0.85, start=0.5, lookahead=60)
    assert not reads_scores(late, first, PlanStart(59))
    assert reads_scores(late, first, PlanStart(60))
    assert not late.may_prune(PlanStart(2499)) and late.may_prune(
        PlanStart(2500))
    assert not reads(first, 49) and reads(first, 50)
    assert not reads(later, 159) and reads(later, 160)
    assert reads(later, 4249) and not reads(later, 4250)


def test_visits_are_not_merged_for_each_plan_before_pruning_begins():
    schedule = Schedule(50, 5, 1000, 0.85, start=0.5, lookahead=60)
    memory, last, merged = Memory(), None, []
    for slot in range(0, 600, 50):
        start = PlanStart(slot, slot // 5)
        if reads := reads_scores(schedule, memory, start):
            merged.append(slot)
        plan, last, memory = draw(QuantileTiers(), schedule, tables_of(SCORES),
                                  memory, start, reads, last,
                                  np.random.default_rng(0))
        assert plan is None and memory.scores is None
    assert merged == [100, 200, 300, 400, 500]
