# Copyright (c) mmib contributors. All rights reserved.
"""The log of visits, and what is made of it."""
import io
import itertools
import math
from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mmib.errors import Refusal
from mmib.pruning import RandomPruning
from mmib.ranks import World
from mmib.run.run import Run
from mmib.scores.log import Entry, Merged, VisitLog
from mmib.scores.table import (AVERAGE, ImageTable, check_ema, is_sampled,
                               rounds)
from mmib.stream.schedule import Schedule
from mmib.stream.slots import Columns
from mmib.worth import tier_sums
from tests.helpers.processes import run_ranks

INF, NAN = math.inf, math.nan


def slots_of(indices, weights=1., tiers=0, means=1.):
    weights, means = (
        np.full(len(indices), value, np.float32) for value in (weights, means))
    return Columns(
        np.array(indices), weights, np.full(len(indices), tiers, np.int16),
        weights / means)


def add(tables, slots, iteration, scores, norms):
    """A step alone."""
    tables.add(slots, np.full(len(scores), iteration, np.int32),
               np.float32(scores), np.float32(norms))


def arrays_of(tables):
    return {
        name: value.numpy()
        for name, value in tables.state_dict().items()
        if torch.is_tensor(value)
    }


def saved_and_loaded(tables):
    """Tables that go on from the state of other ones."""
    buffer = io.BytesIO()
    torch.save(tables.state_dict(), buffer)
    buffer.seek(0)
    loaded = ImageTable(np.array(tables.images), tables.ema, tables.score)
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    return loaded


# The log ---------------------------------------------------------------------


def tensor_of(*values):
    return torch.tensor(values, dtype=torch.float32)


NUMBERS = st.lists(st.integers(3, 20), max_size=4)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(['scored', 'without norms', 'unscored']), NUMBERS),
        max_size=150), st.integers(3, 9))
@example([('scored', [5])] * 65, 3)
@example([('scored', [number % 18 + 3]) for number in range(130)], 4)
def test_the_log_keeps_the_last_score_of_each_slot(entries, first):
    """However many were packed in between. A visit without a score counts
    once, and not if the slot was scored as well. Slots that the stream has
    forgotten are left out."""
    log, scored, unscored = VisitLog(), {}, set()
    values = itertools.count(1)
    for kind, numbers in entries:
        own = [(next(values), next(values)) for _ in numbers]
        numbers = np.array(numbers, np.int64)
        if kind == 'unscored':
            log.record_unscored(numbers)
            unscored |= {*numbers.tolist()}
            continue
        scores, norms = np.float32(own).reshape(-1, 2).T
        if kind != 'scored':
            norms = np.full_like(norms, NAN)
        scored.update(zip(numbers.tolist(), zip(scores, norms)))
        log.record(
            Entry(numbers, tensor_of(*scores),
                  tensor_of(*norms) if kind == 'scored' else None))
    assert len(log) == len(entries)
    merged = log.merge(first, 77, 0)
    assert len(log) == 0 and merged.position == 77
    expected = sorted(number for number in scored if number >= first)
    assert merged.numbers.tolist() == expected
    np.testing.assert_array_equal(merged.scores,
                                  [scored[number][0] for number in expected])
    np.testing.assert_array_equal(merged.norms,
                                  [scored[number][1] for number in expected])
    assert merged.unscored.tolist() == sorted(
        number for number in unscored - {*scored} if number >= first)
    again = log.merge(first, 78, 0)
    assert not len(again.numbers)


@pytest.mark.parametrize('accumulated', [30, 100])
def test_norms_follow_in_the_backward_pass(accumulated):
    """Of an entry in the log, as where several batches are weighed before.
    The norm is that of the image's own loss, whatever flows into it."""
    log, entries, size = VisitLog(), [], 4 * 230
    gradient = torch.tensor([[3., 4.], [6., 8.], [1., 0.], [0., 0.]])
    for number in range(0, size, 4):
        entries.append(
            Entry(np.arange(number, number + 4), tensor_of(1, 2, 3, 4)))
        entries[-1].awaits_norms = True
        log.record(entries[-1])
        if len(entries) == accumulated:
            for factor, entry in enumerate(entries, 1):
                # A compiled step shows nothing.
                entry.note_gradient(None)
                entry.note_flow(tensor_of(-2, 1, 0, 5))
                entry.note_gradient(factor * gradient)
            entries.clear()
    # All others are packed.
    assert len(log._entries) < accumulated + 64
    merged = log.merge(0, size, 0)
    for call, row in enumerate(merged.norms.reshape(-1, 4)):
        factor = call % accumulated + 1
        if call < 230 // accumulated * accumulated:
            assert row.tolist() == [2.5 * factor, 10 * factor, INF, 0]
        else:
            # Their backward pass never came.
            assert np.isnan(row).all()
    alone = Entry(np.arange(1), tensor_of(1))
    alone.note_gradient(gradient[:1])
    assert alone.norms is None


def test_what_the_log_takes_on_the_device():
    """8 bytes a visit, and nothing that a model has computed besides."""
    log = VisitLog()
    for step in range(96):
        large = torch.zeros(2, 1000)
        log.record(
            Entry(
                np.array([2 * step, 2 * step + 1]), large[:, 0].clone(),
                large[:, 1]))
    assert not log._entries
    kept = sum(rows.untyped_storage().nbytes() for rows in log._packed)
    assert kept == 8 * 2 * 96


def test_a_backward_pass_that_never_comes():
    """The entries after it wait with it, for some time, because of two entries
    with the same slot the later one counts."""
    log = VisitLog()
    for step in range(1100):
        entry = Entry(np.array([max(step, 1)]), tensor_of(step), tensor_of(1))
        entry.awaits_norms = step == 0
        log.record(entry)
        assert len(log._entries) <= 1024 + 32
        assert step < 1056 or len(log._packed)
    merged = log.merge(0, 1100, 0)
    assert merged.numbers.tolist() == [*range(1, 1100)]
    assert merged.scores.tolist() == [*range(1, 1100)]


def waiting(log, numbers):
    """Record an entry that awaits its backward pass."""
    numbers = np.array(numbers)
    entry = Entry(numbers, tensor_of(*range(len(numbers))))
    entry.awaits_norms = True
    log.record(entry)
    return entry


def test_norms_of_visits_that_were_merged_before():
    """As where a state is written between the loss and the backward pass: the
    norms are in the next merge, apart from other visits, and once."""
    log = VisitLog()
    first, second, never = (
        waiting(log, numbers) for numbers in ([8, 6], [2, 9, 3], [7]))
    merged = log.merge(0, 10, 0)
    assert merged.numbers.tolist() == [2, 3, 6, 7, 8, 9]
    assert np.isnan(merged.norms).all() and not len(merged.late_numbers)
    second.note_flow(tensor_of(2, 0.5, 0))
    second.note_gradient(torch.tensor([[6., 8.], [0., 0.], [0., 0.]]))
    log.record(Entry(np.array([10]), tensor_of(5), tensor_of(6)))
    merged = log.merge(0, 11, 0)
    # A norm of 0 counts, and one that isn't known doesn't.
    assert merged.late_numbers.tolist() == [2, 3, 9]
    assert merged.late_norms.tolist() == [5, INF, 0]
    assert merged.numbers.tolist() == [10] and merged.norms.tolist() == [6]
    # By now slot 6 is forgotten, and 8 isn't.
    first.note_flow(tensor_of(1, 1))
    first.note_gradient(torch.tensor([[3.], [4.]]))
    merged = log.merge(7, 11, 0)
    assert merged.late_numbers.tolist() == [8]
    assert merged.late_norms.tolist() == [3]
    assert not len(merged.numbers)
    for _ in range(2):
        merged = log.merge(8, 11, 0)
        assert not len(merged.late_numbers)
        never.note_flow(tensor_of(1))
        never.note_gradient(torch.ones(1, 1))


@pytest.mark.parametrize('error, is_other', [(0., False), (0.04, False),
                                             (0.06, True), (3., True)])
def test_another_term_that_uses_the_predictions(error, is_other):
    """Norms that differ from those of the losses alone by more than rounding
    are those of another term. From then on, no norm is known."""
    log = VisitLog()
    entry = log.probe = waiting(log, range(4))
    entry.own_norms = tensor_of(1, 2, 0, NAN)
    late = waiting(log, [4])
    # A backward pass that hasn't come says nothing.
    log.merge(0, 5, 0)
    assert log.probe is entry and not log.has_other_term
    for each, norms in ((entry, [1, 2, 3, 4]), (late, [1])):
        rows = tensor_of(*norms)[:, None] * (1 + error)
        each.note_flow(torch.full((len(rows), ), -2.))
        each.note_gradient(2 * rows)
    merged = log.merge(0, 5, 0)
    assert log.has_other_term == is_other and log.probe is None
    assert merged.late_numbers.tolist() == ([] if is_other else [*range(5)])
    log.record(Entry(np.array([5]), tensor_of(1), tensor_of(6)))
    assert np.isnan(log.merge(0, 6, 0).norms).all() == is_other


def test_a_probe_follows_after_many_entries():
    """In small epochs, a probe in each would take much of the time."""
    log, probes = VisitLog(), []
    for number in range(200):
        if number % 10 == 0:
            log.begin_plan()
        entry = Entry(np.array([number]), tensor_of(1))
        if log.wants_probe:
            log.note_probe(entry)
            probes.append(number)
        log.record(entry)
    assert probes == [0, 40, 80, 120, 160]
    # In a long epoch, only the first entry is a probe.
    assert not log.wants_probe


# The tables ------------------------------------------------------------------


class OneByOne:
    """What tables are, visit by visit."""

    def __init__(self, images, ema, score):
        self.images, self.score = images, score
        self.emas = np.float32([ema, ema or AVERAGE])
        self.rows = np.ones((2, images.max() + 1), np.float32)
        self.last_visit = np.zeros(images.max() + 1, int)
        self.visits, self.non_finite = [], 0

    def add(self, iteration, index, loss, norm, weight, tier, mean, delivered):
        image = self.images[index]
        score = np.float32(loss)
        is_first = self.last_visit[image] == 0
        if self.score == 'gradient':
            score = np.float32(norm)
            delivered &= weight > 0
        if not delivered:
            return
        if not math.isfinite(score):
            self.non_finite += 1
            return
        for row, ema in zip(self.rows, self.emas):
            row[image] = score if is_first else (ema * row[image] +
                                                 (np.float32(1) - ema) * score)
        self.last_visit[image] = iteration
        if tier and weight and math.isfinite(norm) and not is_first:
            self.visits.append((tier, weight / mean, norm))


FLOATS = st.sampled_from([0., 1., 0.25, 3., -1., 8., NAN, INF, -INF])
VISITS = st.tuples(
    st.integers(0, 29), FLOATS, st.sampled_from([0., 0.5, 2., 7., NAN, INF]),
    st.sampled_from([0., 1., 2.5]), st.integers(0, 3),
    st.sampled_from([1., 1.6]), st.booleans())


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=30),
    st.lists(
        st.lists(VISITS, min_size=1, max_size=5), min_size=1, max_size=70),
    st.sampled_from([0., 0.5, 0.8]), st.sampled_from(['loss', 'gradient']),
    st.integers(0, 70))
def test_tables_are_those_of_one_visit_after_another(images, steps, ema, score,
                                                     loaded_at):
    """To the bit, also of images that come again in a step or have several
    indices, across a checkpoint, and however many visits come at once."""
    images = np.array(images)
    expected = OneByOne(images, ema, score)
    one, late = (ImageTable(images, ema, score) for _ in range(2))
    columns, iterations, rows = Columns(), [], []
    for iteration, step in enumerate(steps, 1):
        if iteration == loaded_at:
            one = saved_and_loaded(one)
        step = [(visit[0] % len(images), *visit[1:]) for visit in step]
        for visit in step:
            expected.add(iteration, *visit)
        # Without a score a visit is counted alone.
        scored = [visit[:-1] for visit in step if visit[-1]]
        if not scored:
            continue
        indices, losses, norms, weights, tiers, means = map(list, zip(*scored))
        slots = slots_of(indices, weights, tiers, means)
        add(one, slots, iteration, losses, norms)
        columns = columns.followed_by(slots)
        iterations += len(scored) * [iteration]
        rows += zip(losses, norms)
    losses, norms = np.float32(rows).reshape(-1, 2).T
    numbers = np.arange(len(losses))
    with mock.patch('mmib.scores.log._BLOCK', 7):
        merged = Merged(0, numbers, losses, norms, numbers[:0])
        for numbers, losses, norms in merged.blocks():
            late.add(
                columns.at(numbers),
                np.int32(iterations)[numbers], losses, norms)
    for tables in (one, late):
        np.testing.assert_array_equal(tables.scores, expected.rows[0])
        np.testing.assert_array_equal(tables.averages, expected.rows[1])
        np.testing.assert_array_equal(tables.last_visit, expected.last_visit)
        np.testing.assert_array_equal(
            tables.by_index(len(images)), expected.rows[0][images])
        assert tables.non_finite == expected.non_finite
        assert tables.knows_scores == expected.last_visit.any()
        sums = tier_sums(*map(np.array, zip(
            *expected.visits)), 3) if expected.visits else np.zeros((3, 11))
        assert not sums[len(tables.sums):].any()
        np.testing.assert_allclose(tables.sums, sums[:len(tables.sums)], 1e-5)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9), st.integers(0, 3),
            st.sampled_from([0., 1., 2.5]),
            st.sampled_from([0., 0.5, 7., NAN, INF])),
        min_size=1,
        max_size=20), st.integers(1, 20))
def test_norms_may_follow_later(visits, size):
    """The sums are those of norms that were known at once, to the bit, and
    scores stay."""
    indices, tiers, weights, norms = map(np.array, zip(*visits))
    slots = slots_of(indices)._replace(
        tiers=tiers.astype(np.int16), weights=np.float32(weights))
    one, late = (ImageTable(np.arange(10)) for _ in range(2))
    norms, scores = np.float32(norms), np.arange(len(norms))
    # Of 10 images there may be a sample.
    with mock.patch('mmib.scores.table._SAMPLED', size):
        for tables in (one, late):
            # All visits below are later ones of their images.
            add(tables, slots_of([*range(10)]), 1, np.ones(10), np.ones(10))
        add(one, slots, 2, scores, norms)
        add(late, slots, 2, scores, np.full(len(norms), NAN))
        late.add_late(slots, norms)
    np.testing.assert_array_equal(late.sums, one.sums)
    np.testing.assert_array_equal(late.scores, one.scores)
    np.testing.assert_array_equal(late.last_visit, one.last_visit)


def test_norms_of_first_visits_do_not_follow():
    """They don't count either where they are known at once."""
    slots = slots_of([0, 1, 2], tiers=1)
    one, late = (ImageTable(np.arange(3)) for _ in range(2))
    for table in (one, late):
        add(table, slots_of([1], tiers=1), 1, [2.], [2.])
    add(one, slots, 2, [1., 2., 3.], [1., 2., 3.])
    add(late, slots, 2, [1., 2., 3.], 3 * [NAN])
    late.add_late(slots, np.float32([1, 2, 3]))
    assert late.visits.tolist() == one.visits.tolist() == [1, 2, 1]
    assert one.sums[0, 0] == 1
    np.testing.assert_array_equal(late.sums, one.sums)


@given(st.lists(st.integers(0, 6), max_size=30))
def test_rounds_have_an_image_once(images):
    count, expected = Counter(), {}
    for visit, image in enumerate(images):
        expected.setdefault(count[image], []).append(visit)
        count[image] += 1
    numbers = np.arange(len(images))
    found = [numbers[each].tolist() for each in rounds(np.array(images, int))]
    assert found == list(expected.values()) or not images


def test_images_that_a_dataset_repeats_are_counted_once_for_each_slot():
    tables = ImageTable(np.array([0, 1, 2, 0, 0]))
    tables.count_visits(np.array([0, 3, 1]))
    tables.count_visits(np.array([3, 3]))
    assert tables.visits.tolist() == [4, 1, 0]
    tables.count_pruned(np.isin(np.arange(5), [0, 2, 3]))
    assert tables.pruned.tolist() == [2, 0, 1]
    # By iterations a pass has each image once.
    tables.count_pruned(np.isin(np.arange(3), [0, 2]))
    assert tables.pruned.tolist() == [3, 0, 2]


@pytest.mark.parametrize('repeats', [1, 2])
@mock.patch('mmib.scores.table._SAMPLED', 30)
def test_v_of_many_images_is_estimated_from_a_sample(repeats):
    """The same images on each rank and after a checkpoint, with all of their
    indices."""
    images = np.repeat(np.arange(100), repeats)
    first, second, third = np.float32(
        np.random.default_rng(0).gamma(2, size=(3, len(images))))
    every = [*range(len(images))]
    tables = ImageTable(images)
    add(tables, slots_of(every), 1, first, first)
    other = saved_and_loaded(tables)
    sampled = []
    for index, score in enumerate(second):
        before = tables.sums[:, 0].sum()
        add(tables, slots_of([index], 2., 1, 1.6), 2, [score], [score])
        sampled += [index] * int(tables.sums[:, 0].sum() - before)
    of, counts = np.unique(images[sampled], return_counts=True)
    assert 20 < len(of) < 40 and len(np.unique(np.diff(of))) > 1
    assert (counts == repeats).all()
    np.testing.assert_array_equal(tables.scores, second[repeats - 1::repeats])
    add(other, slots_of(every, 2., 1, 1.6), 2, second, third)
    weights = np.full(len(sampled), np.float32(2) / np.float32(1.6))
    np.testing.assert_array_equal(
        other.sums,
        tier_sums(np.ones(len(sampled), int), weights, third[sampled], 1))


@given(st.integers(2**18 + 1, 2**27), st.data())
def test_a_sample_is_spread_evenly(size, data):
    """Over each part of a dataset, and over images at equal distances."""
    count = data.draw(st.integers(2**15, 2**17))
    step = data.draw(st.integers(1, size // count))
    begin = data.draw(st.integers(0, size - count * step))
    images = begin + step * np.arange(count)
    expected = count * 2**18 / size
    # As good as a random choice: six standard deviations.
    error = abs(is_sampled(images, size).sum() - expected)
    assert error <= 6 * expected**0.5 + 2


def test_a_state_is_a_copy_and_small():
    tables = ImageTable(np.arange(1000))
    tables.count_visits(np.array([2, 0]))
    state = tables.state_dict()
    tables.count_visits(np.array([2]))
    other = saved_and_loaded(tables)
    assert other.visits[:3].tolist() == [1, 0, 2]
    assert state['visits'][:3].tolist() == [1, 0, 1]
    other.load_state_dict(state)
    other.count_visits(np.array([2]))
    assert state['visits'][2] == 1
    assert sum(value.nbytes for value in state.values()
               if torch.is_tensor(value)) == 20 * 1000


def test_a_state_of_another_ema():
    """Scores become averages, and go on as they were."""
    tables = ImageTable(np.arange(2), ema=0.)
    for score in (4., 2.):
        add(tables, slots_of([0]), 1, [score], [1.])
    other = ImageTable(np.arange(2), ema=0.5)
    other.load_state_dict(tables.state_dict())
    assert other.averages.tolist() == other.scores.tolist() == [2, 1]
    back = ImageTable(np.arange(2))
    back.load_state_dict(tables.state_dict())
    assert back.averages.tolist() != back.scores.tolist() == [2, 1]


# Ranks ---------------------------------------------------------------------

# Of two ranks, which have every second slot from number 24 on in batches of
# two: the batches that each weighs. Batch -1 lies in the plan before, whose
# slots are forgotten, and a batch in brackets has no scores.
WAYS = {
    'all': ([0, 1, 2, 3], [0, 1, 2, 3]),
    'in another order': ([2, 0, 1, 3], [3, 2, 1, 0]),
    'one skips a batch': ([0, 1, 2, 3], [0, 2, 3]),
    'each skips another': ([1, 2, 3], [0, 1, 3]),
    'both skip the same': ([0, 3], [0, 3]),
    'one is behind': ([0, 1, 2, 3], [0, 1]),
    'one has nothing': ([], [0, 1]),
    'one is ahead of the other': ([0, 1], [2, 3]),
    'nobody has anything': ([], []),
    'a batch twice': ([0, 1, 0, 2], [0, 1, 2]),
    'all of it twice': ([0, 1, 0, 1], [0, 1, 0, 1]),
    'late, after the stream forgot': ([-1], [-1]),
    'one late, and both on': ([-1, 0, 1], [0, 1, -1]),
    'without scores': ([0, 1, 2, [1], [3]], [0, 1, 2]),
    'late without scores': ([0, [-1]], [0]),
}


def fill(log, rank, batches, has_norms=True):
    """Write what a rank weighs, with scores that follow from slot and call."""
    for call, batch in enumerate(batches):
        number, = np.ravel(batch)
        numbers = 24 + 4 * number + rank + np.array([0, 2])
        if isinstance(batch, list):
            log.record_unscored(numbers)
            continue
        scores = torch.from_numpy(np.float32(100 * call + numbers))
        log.record(Entry(numbers, scores, 2 * scores if has_norms else None))


def run_of(ends):
    """A run in its second epoch, with 24 slots of 12 images in each. So far,
    a rank has weighed until some slots."""
    run = Run(
        np.arange(24) // 2,
        RandomPruning(),
        Schedule(24, 3, 24, delta=1., start=0., by_epoch=True),
        warn=[].append,
        seed=0,
        ema=0.5)
    run.next_plan()
    run.next_plan()
    for end in ends:
        run.stream.advance(end)
    run.merge()
    # These bits are no number.
    run.checksum = 0x7f800001
    return run


def known_of(run):
    arrays = {
        name: value.tolist()
        for name, value in arrays_of(run.table).items()
    }
    return dict(
        arrays,
        position=run.stream.position,
        first=run.stream.known_from,
        lacks_norms=run.lacks_norms)


def late_norms_of(ranks, world=World()):
    """What these ranks merge after norms have followed on the first rank, and
    after norms have followed on both ranks."""
    log, merges = VisitLog(), []
    entries = {rank: waiting(log, [24 + rank, 26 + rank]) for rank in ranks}
    log.merge(24, 30, 0, world)
    for then in (0, 1, None):
        for rank, entry in entries.items():
            if rank == then:
                entry.note_flow(tensor_of(1, 1))
                entry.note_gradient(tensor_of(1 + rank, 3)[:, None])
        if then == 1:
            # With a visit of this merge.
            for rank in ranks:
                number = np.array([28 + rank])
                log.record(Entry(number, tensor_of(rank), tensor_of(8)))
        merged = log.merge(24, 30, 0, world)
        merges.append([column.tolist() for column in merged[1:]])
    return merges


def merge_on_ranks(rank, results):
    results[rank] = {'late norms': late_norms_of([rank], World(rank, 2))}
    for way, of_ranks in WAYS.items():
        # The second rank has skipped the edge of the plans.
        run = run_of([20] if rank else [22, 24, 26])
        # One rank alone sees norms.
        fill(run.log, rank, of_ranks[rank], rank == 0)
        run.stream.advance(40 + rank)
        run.merge()
        results[rank][way] = known_of(run)
    fill(run.log, rank, [0])
    run.checksum = 2**32 - 1 - rank
    with pytest.raises(Refusal, match='drew different plans.*`rng`'):
        run.merge()


def test_ranks_know_the_visits_of_all():
    """As one rank that has written all of it, whatever each has skipped."""
    results = run_ranks(merge_on_ranks, 2)
    expected = late_norms_of([0, 1])
    assert [merge[4:] for merge in expected] == [[[24, 26], [1, 3]],
                                                 [[25, 27], [2, 3]], [[], []]]
    assert [merge[0] for merge in expected] == [[], [28, 29], []]
    assert [result['late norms'] for result in results] == 2 * [expected]
    visits = set()
    for way, of_ranks in WAYS.items():
        run = run_of([24, 26])
        for rank, batches in enumerate(of_ranks):
            fill(run.log, rank, batches, rank == 0)
        run.stream.advance(41)
        run.merge()
        expected = known_of(run)
        for result in results:
            assert str(result[way]) == str(expected), way
        assert (expected['first'], expected['position']) == (24, 41)
        visits.add(sum(expected['visits']))
    assert visits == {0, 4, 8, 12, 14, 16}


# Arguments -------------------------------------------------------------------


@pytest.mark.parametrize('ema, match', [
    ('0', "`ema` of a Session must be a number, but got '0'"),
    (None, '`ema` of a Session must be a number, but got None'),
    (1, r'`ema` of a Session .* must be in \[0, 1\), but got 1'),
    (-0.1, r'must be in \[0, 1\), but got -0.1'),
    (NAN, r'must be in \[0, 1\), but got nan'),
])
def test_shares_out_of_range(ema, match):
    with pytest.raises(Refusal, match=match):
        check_ema(ema, 'of a Session')
    for fits in (0, 0.8, np.float64(0.5)):
        check_ema(fits, 'of a Session')
