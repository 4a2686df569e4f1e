# Copyright (c) mmib contributors. All rights reserved.
"""The log of visits, and what is made of it."""
import io
import math
from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmib.errors import Refusal
from mmib.pruning import Slots
from mmib.visits import AVERAGE, Tables, VisitLog, rounds
from mmib.worth import pair_sums, tier_sums
from tests.system.processes import run_ranks

INF, NAN = math.inf, math.nan


def slots_of(indices, weights=1., tiers=0, means=1.):
    return Slots(
        np.array(indices),
        *(np.full(len(indices), value, kind)
          for value, kind in ((weights, np.float32), (tiers, np.int16),
                              (means, np.float32))))


def record(log, slots, iteration, scores, norms, delivered=None):
    log.record(slots, iteration, torch.tensor(scores), torch.tensor(norms),
               None if delivered is None else torch.tensor(delivered))


def merge(log, tables, checksum=0):
    for visits in log.merge(checksum):
        tables.add(visits)


def add(tables, *args, **kwargs):
    """A step alone."""
    log = VisitLog()
    record(log, *args, **kwargs)
    merge(log, tables)


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
    loaded = Tables(tables.images, tables.ema, tables.score)
    assert not loaded.load_state_dict(torch.load(buffer, weights_only=True))
    return loaded


class OneByOne:
    """What tables are, visit by visit."""

    def __init__(self, images, ema, score):
        self.images, self.score = images, score
        self.emas = np.float32([ema, ema or AVERAGE])
        self.rows = np.ones((2, images.max() + 1), np.float32)
        self.last_visit = np.zeros(images.max() + 1, int)
        self.visits, self.pairs, self.non_finite = [], [], 0

    def add(self, iteration, index, loss, norm, weight, tier, mean, delivered):
        image = self.images[index]
        before, score = self.rows[0, image], np.float32(loss)
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
            self.pairs.append((before, score))


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
    indices, across a checkpoint, and whenever the log is merged."""
    images = np.array(images)
    expected = OneByOne(images, ema, score)
    one, late = (Tables(images, ema, score) for _ in range(2))
    log = VisitLog()
    for iteration, step in enumerate(steps, 1):
        if iteration == loaded_at:
            one = saved_and_loaded(one)
        step = [(visit[0] % len(images), *visit[1:]) for visit in step]
        for visit in step:
            expected.add(iteration, *visit)
        indices, losses, norms, weights, tiers, means, delivered = map(
            list, zip(*step))
        slots = slots_of(indices, weights, tiers, means)
        mask = None if all(delivered) else delivered
        add(one, slots, iteration, losses, norms, mask)
        record(log, slots, iteration, losses, norms, mask)
    assert len(log) == len(steps)
    with mock.patch('mmib.visits._BLOCK', 7):
        merge(log, late)
    assert len(log) == 0 and not list(log.merge(0))
    for tables in (one, late):
        np.testing.assert_array_equal(tables.scores, expected.rows[0])
        np.testing.assert_array_equal(tables.averages, expected.rows[1])
        np.testing.assert_array_equal(tables.last_visit, expected.last_visit)
        np.testing.assert_array_equal(
            tables.by_index(len(images)), expected.rows[0][images])
        assert tables.non_finite == expected.non_finite
        sums = tier_sums(*map(np.array, zip(
            *expected.visits)), 3) if expected.visits else np.zeros((3, 11))
        assert not sums[len(tables.sums):].any()
        np.testing.assert_allclose(tables.sums, sums[:len(tables.sums)], 1e-5)
        pairs = np.array(expected.pairs).reshape(-1, 2).T
        np.testing.assert_allclose(tables.pairs, pair_sums(*pairs), 1e-5)


@given(st.lists(st.integers(0, 6), max_size=30))
def test_rounds_have_an_image_once(images):
    count, expected = Counter(), {}
    for visit, image in enumerate(images):
        expected.setdefault(count[image], []).append(visit)
        count[image] += 1
    seen = np.zeros(7, bool)
    numbers = np.arange(len(images))
    found = [
        numbers[each].tolist() for each in rounds(np.array(images, int), seen)
    ]
    assert found == list(expected.values()) or not images
    assert not seen.any()


def test_images_that_a_data_set_repeats_are_counted_once_for_each_slot():
    tables = Tables(np.array([0, 1, 2, 0, 0]))
    tables.count_visits(np.array([0, 3, 1]))
    tables.count_visits(np.array([3, 3]))
    assert tables.visits.tolist() == [4, 1, 0]
    tables.count_pruned(np.array([1, 4]), 5)
    assert tables.pruned.tolist() == [2, 0, 1]
    # By iterations a pass has each image once.
    tables.count_pruned(np.array([1]), 3)
    assert tables.pruned.tolist() == [3, 0, 2]


def test_v_of_many_images_is_told_by_some_at_random():
    """The same ones on each rank and after a checkpoint."""
    first, second, third = np.float32(
        np.random.default_rng(0).gamma(2, size=(3, 100)))
    with mock.patch('mmib.visits._TELLING', 30):
        tables = Tables(np.arange(100))
        add(tables, slots_of([*range(100)]), 1, first, first)
        other = saved_and_loaded(tables)
    told = []
    for image, score in enumerate(second):
        before = tables.pairs[0]
        add(tables, slots_of([image], 2., 1, 1.6), 2, [score], [score])
        told += [image] * int(tables.pairs[0] - before)
    assert len(told) == 30 and len(np.unique(np.diff(told))) > 1
    np.testing.assert_array_equal(tables.scores, second)
    add(other, slots_of([*range(100)], 2., 1, 1.6), 2, second, third)
    np.testing.assert_array_equal(other.pairs,
                                  pair_sums(first[told], second[told]))
    weights = np.full(30, np.float32(2) / np.float32(1.6))
    np.testing.assert_array_equal(
        other.sums, tier_sums(np.ones(30, int), weights, third[told], 1))


def test_a_state_is_a_copy_and_small():
    tables = Tables(np.arange(1000))
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
               if torch.is_tensor(value)) == 20 * 1000 + 6 * 8


def test_a_state_of_another_ema():
    """Scores become averages, and go on as they were."""
    tables = Tables(np.arange(2), ema=0.)
    for score in (4., 2.):
        add(tables, slots_of([0]), 1, [score], [1.])
    other = Tables(np.arange(2), ema=0.5)
    assert other.load_state_dict(
        tables.state_dict()) == ['`ema` is 0.5 instead of 0.0']
    assert other.averages.tolist() == other.scores.tolist() == [2, 1]
    back = Tables(np.arange(2))
    assert back.load_state_dict(
        other.state_dict()) == ['`ema` is 0.0 instead of 0.5']


def test_what_the_log_takes_on_the_device():
    """8 bytes a visit, and nothing that a model has computed besides."""
    log = VisitLog()
    for step in range(64):
        large = torch.zeros(2, 1000)
        log.record(slots_of([0, 1]), step, large[:, 0], large[:, 1])
    kept = [*log._packed, *log._scores, *log._norms]
    assert sum(x.untyped_storage().nbytes() for x in kept) == 8 * 128


# Ranks ---------------------------------------------------------------------

# Slots of steps of two ranks with two images each.
STEPS = [[0, 1, 1, 2], [1, 1, 3, 0], [4, 4, 4, 4], [2, 5, 5, 2]]


def scores_of(step):
    """Also one that isn't finite, and one that was not delivered."""
    scores = 1.5 + 4 * step + np.arange(4, dtype=np.float32)
    if step == 2:
        scores[2] = NAN
    return scores, 2 * scores, np.arange(4) != 3 - step


def merge_on_ranks(rank, results):
    log, tables = VisitLog(), Tables(np.arange(6), 0.5)
    for step, indices in enumerate(STEPS):
        own = [each[rank::2] for each in scores_of(step)]
        if own[-1].all():
            own[-1] = None
        record(log, slots_of(indices, 2., 1, 2.), step + 1, *own)
        if step in (1, 3):
            # These bits are no number.
            merge(log, tables, 0x7f800001)
    results[rank] = arrays_of(tables), tables.non_finite
    record(log, slots_of([0, 1]), 9, [1.], [1.])
    with pytest.raises(Refusal, match='drew different plans.*`rng`'):
        log.merge(2**32 - 1 - rank)


def test_ranks_know_the_visits_of_all():
    """In the order of the stream: of an image that several of them visit no
    visit is lost."""
    tables = Tables(np.arange(6), 0.5)
    for step, indices in enumerate(STEPS):
        add(tables, slots_of(indices, 2., 1, 2.), step + 1, *scores_of(step))
    for arrays, non_finite in run_ranks(merge_on_ranks, 2):
        assert non_finite == 1
        for name, expected in arrays_of(tables).items():
            np.testing.assert_allclose(arrays[name], expected, 1e-12, 0, name)
        np.testing.assert_array_equal(arrays['scores'], tables.scores)
