# Copyright (c) mmib contributors. All rights reserved.
"""When plans may prune, what they are drawn from, and their last steps."""
import copy

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmib.pruning import (FunctionPolicy, MeanThreshold, QuantileTiers,
                          RandomPruning)
from mmib.run.draw import (Reading, draw, next_reading, read, reads_scores,
                           record_of)
from mmib.scores.table import ImageTable
from mmib.stream.schedule import Place, Schedule, StepSize
from mmib.stream.slots import Columns
from mmib.worth import MeanRatio, from_sums
from tests.helpers.runs import POLICIES, SIZE, DrivenRun, dealt

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
    run = DrivenRun(
        policy(),
        batch_size,
        max_steps=6,
        annealing_step=5,
        by_epoch=True,
        drop_last=drop_last,
        size=size).train()
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
    assert run.table.pruned.tolist() == pruned.tolist()
    if not drop_last:
        assert run.slots == dealt(run.plans)


def test_a_stream_has_no_tails():
    """In a stream, plans are whole, except for the one before annealing."""
    run = DrivenRun(RandomPruning(0.5), 4).train(60)
    lengths = [len(plan) for record, plan in run.plans if record.kept < SIZE]
    assert {*lengths[:-1]} == {7} and len(lengths) > 10


# Drawing ---------------------------------------------------------------------


def tables_of(scores):
    """Tables with these scores, each of one visit, with its root as norm."""
    size = len(scores)
    tables = ImageTable(np.arange(size))
    for _ in range(2):
        tables.add(
            Columns(
                np.arange(size),
                *(np.ones(size, dtype) for dtype in ('f', np.int16, 'f'))),
            np.ones(size, np.int32), np.float32(scores),
            np.sqrt(np.float32(scores)))
    return tables


SCORES = np.random.default_rng(0).lognormal(size=50).astype(np.float32)

EPOCHS = Schedule(50, 10, 50, 0.8, 0, by_epoch=True)


def drawn(policy,
          schedule,
          reading,
          place,
          seed=0,
          epoch=1,
          is_first_of_annealing=False,
          step=None,
          normalize=False):
    """A plan and its record."""
    rng = np.random.default_rng(seed)
    plan = draw(policy, schedule, reading, place, step, rng, normalize)
    return plan, record_of(plan, schedule, reading, place, int(place.spent),
                           epoch, is_first_of_annealing)


def by_epochs(policy, epoch, step=None, seed=0, tables=None, **kwargs):
    """The plan of an epoch after full ones."""
    place = Place(50 * epoch, 50 * epoch)
    reading, tables = Reading(), tables or tables_of(SCORES)
    if EPOCHS.may_prune(EPOCHS.clock(place)) and tables.knows_scores:
        reading = read(tables, reading, 50)
    return drawn(policy, EPOCHS, reading, place, seed, epoch + 1, epoch == 8,
                 step, **kwargs)


def test_reading_changes_nothing():
    """A reading has copies, and V of the visits since the last one."""
    tables, before = tables_of(SCORES), Reading(read_at=7, logged_at=3.)
    state = copy.deepcopy(tables.state_dict())
    reading = read(tables, before, 50)
    assert str(tables.state_dict()) == str(state)
    assert before == Reading(read_at=7, logged_at=3.)
    assert (reading.read_at, reading.logged_at) == (7, 3)
    assert reading.scores.tolist() == SCORES.tolist()
    assert reading.mean_score == pytest.approx(SCORES.mean())
    assert reading.mean_ratio == MeanRatio().add(tables.sums)
    assert reading.variance_ratio == from_sums(tables.sums)
    assert reading.mean_ratio.visits == 50
    tables.scores[:] = 0
    assert reading.scores.tolist() == SCORES.tolist()
    # Of a dataset that has each of 25 images twice, a pass has each once.
    repeated = ImageTable(np.arange(50) % 25)
    assert len(read(repeated, before, 25).scores) == 25


def test_drawing_changes_nothing_but_the_generator():
    """So the same is drawn again."""
    reading = read(tables_of(SCORES), Reading(), 50)
    before = copy.deepcopy(reading)
    where = dict(place=Place(150, 150), epoch=4, step=StepSize(8, False))
    (plan, record), again = (
        drawn(QuantileTiers(), EPOCHS, reading, seed=5, **where)
        for _ in range(2))
    assert str(reading) == str(before)
    assert plan.indices.tolist() == again[0].indices.tolist()
    assert record == again[1]
    assert reading.mean_score == record.mean_score
    assert record.mean_ratio == reading.mean_ratio.mean()
    assert (record.first_slot, record.epoch, record.covered_epochs) == (150, 4,
                                                                        3)
    other, _ = drawn(QuantileTiers(), EPOCHS, reading, seed=6, **where)
    assert other.indices.tolist() != plan.indices.tolist()


@pytest.mark.parametrize('epoch, prunes', [(0, False), (1, True), (7, True),
                                           (8, False), (9, False)])
def test_where_plans_may_prune(epoch, prunes):
    """After the first epoch and before annealing, if there are scores."""
    plan, record = by_epochs(RandomPruning(0.5), epoch)
    assert plan.is_full != prunes
    assert record.kept == (25 if prunes else 50)
    assert record.annealing == (epoch >= 8)
    for policy, tables in ((RandomPruning(0), None),
                           (RandomPruning(0.5), ImageTable(np.arange(50)))):
        plan, record = by_epochs(policy, epoch, tables=tables)
        assert plan.is_full and record.kept == 50
        assert record.mean_weight == 1 and record.tiers == ((50, 50, None,
                                                             None), )


@pytest.mark.parametrize('normalize', [False, True])
def test_the_mean_weight_of_a_plan_without_its_tail(normalize):
    """25 of 50 images in steps of 8 are 24."""
    plan, record = by_epochs(
        RandomPruning(0.5),
        2,
        StepSize(8, drop_last=True),
        normalize=normalize)
    expected = 1 if normalize else 50 / 24
    np.testing.assert_allclose(plan.weights, expected, 1e-6)
    assert record.mean_weight == pytest.approx(expected)
    assert record.tiers[0][:2] == (50, 24)
    # The last step of the baseline has 2 images.
    plan, _ = by_epochs(RandomPruning(0.5), 2, StepSize(8, drop_last=False))
    assert len(plan) == 24
    plan, _ = by_epochs(RandomPruning(0.48), 2, StepSize(8, drop_last=False))
    assert len(plan) == 26


def stream_of(start=0.):
    """The schedule of a run of 5000 slots that reads scores every 60."""
    return Schedule(50, 1000, 5, 0.85, start, by_epoch=False, min_gap=60)


def next_plan(schedule, tables, reading, place, policy):
    """A plan as a run draws the plan: the record, the reading that follows,
    and whether scores were read."""
    reads = reads_scores(schedule, reading, place)
    reading = next_reading(reading, tables, schedule, place, reads)
    _, record = drawn(policy, schedule, reading, place)
    logged_at = place.spent if record.logged else reading.logged_at
    return record, reading._replace(logged_at=logged_at), reads


def test_what_a_policy_gets_of_what_was_learned():
    """Where scores are read, and not again where they aren't."""
    got = []

    class Listening(MeanThreshold):

        def begin_plan(self, progress):
            got.append(progress)

    reading, covered = Reading(), 50.
    for slot in (50, 80, 110, 140):
        record, reading, reads = next_plan(stream_of(), tables_of(SCORES),
                                           reading, Place(slot, covered),
                                           Listening())
        assert (got[-1].norms is not None) == reads == (slot in (50, 110))
        assert (record.variance_ratio is not None) == reads
        assert record.logged == reads
        assert reading.read_at == (50 if slot < 110 else 110)
        assert reading.logged_at == reading.read_at
        assert record.first_slot == got[-1].spent == slot
        assert got[-1].covered == 50 * record.covered_epochs == covered
        covered += 30 * 50 / record.kept
    assert reading.mean_ratio.visits == 100


def test_the_first_plan_of_annealing_is_logged():
    """However soon the plan follows another one."""
    reading = Reading(SCORES, read_at=4240, logged_at=4240)
    for begins, logged in ((True, True), (False, False)):
        _, record = drawn(
            QuantileTiers(),
            stream_of(),
            reading,
            Place(4250, 5000),
            is_first_of_annealing=begins)
        assert record.logged == logged and record.annealing


def test_when_scores_are_read():
    """Not in annealing, not soon after another time, and always for the first
    plan that prunes."""
    schedule, late = stream_of(), stream_of(0.5)
    first, later = Reading(), Reading(SCORES, read_at=100)

    def reads(reading, slot, schedule=schedule):
        return reads_scores(schedule, reading, Place(slot, 2 * slot))

    # Before pruning begins, as the log would grow else.
    assert not reads(first, 59, late) and reads(first, 60, late)
    assert not late.may_prune(2499) and late.may_prune(2500)
    assert not reads(first, 49) and reads(first, 50)
    assert not reads(later, 159) and reads(later, 160)
    assert reads(later, 4249) and not reads(later, 4250)


def test_visits_are_not_merged_for_each_plan_before_pruning_begins():
    reading, merged = Reading(), []
    for slot in range(0, 600, 50):
        record, reading, reads = next_plan(
            stream_of(0.5), tables_of(SCORES), reading, Place(slot, slot),
            QuantileTiers())
        if reads:
            merged.append(slot)
        assert record.kept == 50 and reading.scores is None
    assert merged == [100, 200, 300, 400, 500]
