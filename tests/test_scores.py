# Copyright (c) mmib contributors. All rights reserved.
import io

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


def test_scores_start_at_1_and_are_those_of_the_last_visit():
    table = ScoreTable(np.arange(5), CPU)
    assert table.empty
    before = table.numpy()
    record(table, [3, 0], [0.5, 2.], 0)
    record(table, [0, 4], [0.25, 3.], 1)
    assert not table.empty
    assert table.numpy().dtype == np.float32
    assert table.numpy().tolist() == [0.25, 1, 1, 0.5, 3]
    # What was read stays.
    assert before.tolist() == [1] * 5


def test_an_image_twice_in_a_batch_keeps_its_last_score():
    table = ScoreTable(np.arange(3), CPU)
    record(table, [1, 2, 1, 0], [5., 6., 7., 8.], 0)
    assert table.numpy().tolist() == [8, 7, 6]


def test_non_finite_losses_are_counted_and_never_scored():
    table = ScoreTable(np.arange(3), CPU)
    record(table, [0, 1, 2], [2., float('nan'), 3.], 0)
    record(table, [0, 1, 2], [float('inf'), 4., -float('inf')], 1)
    assert table.numpy().tolist() == [2, 4, 3]
    assert table.num_non_finite() == 3
    # Also in the first of two slots of an image.
    record(table, [0, 1, 0], [float('nan'), 5., 6.], 2)
    assert table.numpy().tolist() == [6, 5, 3]
    assert table.num_non_finite() == 4


def saved_and_loaded(table):
    """A table that goes on from the state of another one."""
    buffer = io.BytesIO()
    torch.save(table.state_dict(), buffer)
    buffer.seek(0)
    loaded = ScoreTable(np.arange(table.num_images), CPU, table.ema)
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    return loaded


def averages_of(table):
    return table.state_dict()['averages'].numpy()


@given(
    st.lists(
        st.floats(0, 100, width=32, allow_subnormal=False),
        min_size=1,
        max_size=6), st.floats(0.01, 0.99), st.integers(0, 6))
def test_scores_are_moving_averages(visits, ema, loaded_at):
    """The first visit sets the loss; also across a checkpoint."""
    table = ScoreTable(np.arange(2), CPU, ema)
    expected = visits[0]
    for step, loss in enumerate(visits):
        if step == loaded_at:
            table = saved_and_loaded(table)
        record(table, [0], [loss], step)
        # The same for the first one, whose loss is `expected`.
        expected = ema * expected + (1 - ema) * loss
    np.testing.assert_allclose(table.numpy(), [expected, 1], 1e-5)


def test_an_average_is_kept_beside_the_last_loss():
    """The same as the scores with that `ema`, also across a checkpoint."""
    last = ScoreTable(np.arange(3), CPU)
    mean = ScoreTable(np.arange(3), CPU, AVERAGE)
    for step, losses in enumerate([[4., 1.], [2., float('nan')], [8., 3.]]):
        for table in (last, mean):
            record(table, [0, 1], losses, step)
        last = saved_and_loaded(last)
    assert last.numpy().tolist() == [8, 3, 1]
    np.testing.assert_allclose(averages_of(last), [4.48, 1.4, 1], 1e-6)
    np.testing.assert_array_equal(averages_of(last), mean.numpy())
    np.testing.assert_array_equal(averages_of(mean), mean.numpy())


def test_a_first_visit_whose_loss_is_1():
    """What was visited isn't read from the scores."""
    table = ScoreTable(np.arange(2), CPU, 0.5)
    record(table, [0], [1.], 0)
    table = saved_and_loaded(table)
    record(table, [0, 1], [2., 2.], 1)
    assert table.numpy().tolist() == [1.5, 2]


def test_non_finite_losses_are_no_visits_of_an_average():
    table = ScoreTable(np.arange(1), CPU, 0.5)
    for step, (loss, score) in enumerate([(float('nan'), 1), (4., 4),
                                          (float('inf'), 4), (2., 3)]):
        record(table, [0], [loss], step)
        assert table.numpy().tolist() == [score]


def test_an_image_twice_in_a_batch_is_one_visit_of_an_average():
    table = ScoreTable(np.arange(2), CPU, 0.5)
    record(table, [0, 1, 0], [4., 1., 8.], 0)
    assert table.numpy().tolist() == [8, 1]
    record(table, [0, 0], [0., 4.], 1)
    assert table.numpy().tolist() == [6, 1]


@pytest.mark.parametrize('ema', [0., 0.5])
def test_what_is_loaded_is_earlier_than_any_visit(ema):
    table = ScoreTable(np.arange(2), CPU, ema)
    record(table, [0], [4.], 50)
    table = saved_and_loaded(table)
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
    table = saved_and_loaded(table)
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


def test_the_score_before():
    table, before = ScoreTable(np.array([0, 1, 2, 0]), CPU, ema=0.5), []
    table.on_write = lambda visits, scores: before.append(scores.tolist())
    record(table, [0, 1], [2., 3.], 0)
    # Index 3 is image 0 as well.
    record(table, [3, 2, 0, 1], [4., 5., 6., float('nan')], 1)
    np.testing.assert_array_equal(table.numpy(), [4, 3, 5, 4])
    nan = float('nan')
    np.testing.assert_equal(before, [[nan, nan], [2, nan, 2, 3]])


@given(st.data())
def test_it_does_not_matter_when_visits_are_written(data):
    """Batches are written in groups: the same as one by one."""
    size = data.draw(st.integers(1, 60))
    images = np.array(
        data.draw(st.lists(st.integers(0, size - 1), min_size=1)))
    losses = st.floats(0, 9, width=32) | st.just(float('inf'))
    tables, before = [], []
    for _ in range(2):
        tables.append(ScoreTable(images, CPU, 0.5))
        before.append([])
        tables[-1].on_write = lambda visits, scores, seen=before[-1]: (
            seen.extend(scores.tolist()))
    for step in range(data.draw(st.integers(1, 70))):
        batch = data.draw(
            st.lists(st.integers(0,
                                 len(images) - 1), min_size=1, max_size=3))
        scores = data.draw(
            st.lists(losses, min_size=len(batch), max_size=len(batch)))
        for table in tables:
            record(table, batch, scores, step)
        tables[0].write()
    np.testing.assert_array_equal(tables[0].numpy(), tables[1].numpy())
    np.testing.assert_array_equal(*before)
    assert tables[0].num_non_finite() == tables[1].num_non_finite()


def test_states_of_another_ema():
    table = ScoreTable(np.arange(3), CPU, ema=0.5)
    record(table, [1], [3.], 0)
    state = table.state_dict()
    assert ScoreTable(np.arange(3), CPU, 0.5).load_state_dict(state) == []
    assert ScoreTable(np.arange(3), CPU).load_state_dict(state) == [
        '`ema` is 0.0 instead of 0.5'
    ]
