# Copyright (c) mmib contributors. All rights reserved.
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmib.scores import AVERAGE, ScoreTable
from tests.system.processes import run_ranks
from tests.visits import make_visits

CPU = torch.device('cpu')
NOTHING = torch.zeros(0, dtype=torch.float64)


def record(table, indices, scores, iteration):
    table.record(make_visits(indices, scores, iteration))


def saved_and_loaded(table, images):
    """A table that goes on from the state of another one."""
    buffer = io.BytesIO()
    torch.save(table.state_dict(), buffer)
    buffer.seek(0)
    loaded = ScoreTable(images, CPU, table.ema)
    assert not loaded.load_state_dict(torch.load(buffer, weights_only=True))
    return loaded


def averages_of(table):
    """Moving averages, which are kept beside losses too."""
    return table.state_dict()['averages'].numpy()


class OneByOne:
    """What scores and averages are, visit by visit."""

    def __init__(self, num_images, ema):
        self.emas = ema, ema or AVERAGE
        self.rows = np.ones((2, num_images))
        self.visited = np.zeros(num_images, bool)
        self.before, self.non_finite = [], 0

    def record(self, images, losses):
        self.before += [
            self.rows[0, i] if self.visited[i] else math.nan for i in images
        ]
        self.non_finite += np.sum(~np.isfinite(losses))
        # An image twice in a batch: its last slot counts.
        for image, loss in dict(zip(images, losses)).items():
            if math.isfinite(loss):
                for row, ema in zip(self.rows, self.emas):
                    row[image] = (
                        ema * row[image] +
                        (1 - ema) * loss if self.visited[image] else loss)
                self.visited[image] = True


LOSSES = st.sampled_from([0., 1., 0.25, 3., 8., math.nan, math.inf, -math.inf])


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=30),
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 29), LOSSES), min_size=1, max_size=3),
        min_size=1,
        max_size=70), st.sampled_from([0., 0.5, 0.8]), st.integers(0, 70))
def test_scores_are_those_of_one_visit_after_another(images, batches, ema,
                                                     loaded_at):
    """Also of images with several indices, across a checkpoint, and whenever
    batches are written."""
    images = np.array(images)
    expected = OneByOne(images.max() + 1, ema)
    tables = [ScoreTable(images, CPU, ema) for _ in range(2)]
    start = tables[0].numpy()
    before = [], []
    for step, batch in enumerate(batches):
        if step == loaded_at:
            tables = [saved_and_loaded(table, images) for table in tables]
        indices, losses = map(list, zip(*batch))
        indices = np.array(indices) % len(images)
        for table, seen in zip(tables, before):
            table.on_write = lambda visits, scores, seen=seen: (
                seen.extend(scores.tolist()))
            record(table, indices, losses, step)
        tables[0].write()
        expected.record(images[indices].tolist(), losses)
    one, grouped = tables
    # What was read stays.
    assert start.dtype == np.float32 and (start == 1).all()
    assert not one.empty
    np.testing.assert_array_equal(grouped.numpy(), one.numpy())
    np.testing.assert_array_equal(*before)
    np.testing.assert_allclose(one.numpy(), expected.rows[0][images], 1e-5)
    np.testing.assert_allclose(averages_of(one), expected.rows[1], 1e-5)
    np.testing.assert_allclose(before[0], expected.before, 1e-5)
    assert one.num_non_finite() == expected.non_finite
    assert grouped.num_non_finite() == expected.non_finite


@pytest.mark.parametrize('ema', [0., 0.5])
def test_what_is_loaded_is_earlier_than_any_visit(ema):
    table = ScoreTable(np.arange(2), CPU, ema)
    record(table, [0], [4.], 50)
    table = saved_and_loaded(table, np.arange(2))
    assert not table.empty
    assert table._last_visit.tolist() == [51, 0]


def memory(table):
    return sum(t.untyped_storage().nbytes() for t in vars(table).values()
               if isinstance(t, torch.Tensor))


def test_memory_of_an_image():
    images = np.arange(10_000)
    assert memory(ScoreTable(images, CPU)) <= 12 * 10_000 + 64
    assert memory(ScoreTable(images, CPU, 0.5)) <= 8 * 10_000 + 64


def merge_on_ranks(rank, results):
    table = ScoreTable(np.arange(6), CPU)
    # Images 1 and 4 are visited by both ranks: once rank 0 is later, once
    # rank 1, with a smaller score. Image 2 as well, but the later visit has no
    # finite score.
    if rank == 0:
        record(table, [4], [7.], 3)
        record(table, [0, 1], [0.1, 0.2], 5)
        record(table, [2], [float('nan')], 7)
    else:
        record(table, [1, 2], [0.9, 0.3], 4)
        record(table, [3, 4, 5], [1e-30, 0.5, 3e38], 6)
    table.merge(NOTHING)
    first = table.numpy().tolist()
    # Each was visited once.
    assert averages_of(table).tolist() == first
    # The next window starts from equal tables.
    record(table, [4 + rank], [float(rank)], 8)
    table.merge(NOTHING)
    # The average of the same visit as the score.
    np.testing.assert_allclose(
        averages_of(table)[4:], [0.8 * 0.5, 0.8 * 3e38 + 0.2], 1e-6)
    large = ScoreTable(np.arange(10_000), CPU)
    record(large, [0], [1.], 0)
    large.merge(NOTHING)
    results[rank] = (first, table.numpy().tolist(), table.num_non_finite(),
                     memory(large))


def merge_averages(rank, results):
    table = ScoreTable(np.arange(4), CPU, 0.5)
    # Each rank has visited one image, and both image 2.
    record(table, [rank, 2], [4., 6. + 2 * rank], rank)
    table.merge(NOTHING)
    tables = [table.numpy().tolist()]
    table = saved_and_loaded(table, np.arange(4))
    # Now the other one: only image 3 is a first visit.
    record(table, [1 - rank, 3], [2., 8. - rank], 5 + rank)
    table.merge(NOTHING)
    results[rank] = [*tables, table.numpy().tolist()]


def test_averages_go_on_over_ranks():
    for result in run_ranks(merge_averages, 2):
        assert result == [[4, 4, 8, 1], [3, 3, 8, 7]]


def test_merge_makes_the_tables_of_all_ranks_equal():
    expected = np.float32([0.1, 0.2, 0.3, 1e-30, 0.5, 3e38]).tolist()
    later = [*expected[:4], 0., 1.]
    for result in run_ranks(merge_on_ranks, 2):
        assert result[:-1] == (expected, later, 1)
        assert result[-1] <= 12 * 10_000 + 64


def exchange_numbers(rank, results):
    table = ScoreTable(np.arange(2), CPU)
    # Any bits travel, also those of negative numbers and of NaN.
    own = [[-1.5, 0., 2.**40], [float('inf'), -0., float('nan')]][rank]
    record(table, [rank], [1.], 0)
    rows = table.merge(torch.tensor(own, dtype=torch.float64))
    # Without anything new there is no collective.
    assert table.merge(rows[rank]) is None
    results[rank] = repr(rows.tolist())


def test_every_rank_knows_the_numbers_of_all():
    for result in run_ranks(exchange_numbers, 2):
        assert result == repr([[-1.5, 0., 2.**40],
                               [float('inf'), -0.,
                                float('nan')]])


def test_a_state_of_another_ema():
    state = ScoreTable(np.arange(3), CPU, ema=0.5).state_dict()
    assert ScoreTable(np.arange(3), CPU).load_state_dict(state) == [
        '`ema` is 0.0 instead of 0.5'
    ]
