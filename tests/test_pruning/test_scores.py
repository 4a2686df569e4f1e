# Copyright (c) mmib contributors. All rights reserved.
import numpy as np
import torch

from mmib.pruning import ScoreTable
from tests.utils import run_ranks

CPU = torch.device('cpu')


def record(table, indices, scores, iteration):
    table.record(
        np.array(indices), torch.tensor(scores, dtype=torch.float32),
        iteration)


def test_scores_start_at_1_and_are_those_of_the_last_visit():
    table = ScoreTable(5, CPU)
    assert table.empty
    assert table.numpy().tolist() == [1] * 5
    record(table, [3, 0], [0.5, 2.], 0)
    record(table, [0, 4], [0.25, 3.], 1)
    assert not table.empty
    assert table.numpy().dtype == np.float32
    assert table.numpy().tolist() == [0.25, 1, 1, 0.5, 3]


def test_what_was_read_stays():
    table = ScoreTable(2, CPU)
    before = table.numpy()
    record(table, [0, 1], [2., 3.], 0)
    assert before.tolist() == [1, 1]


def test_an_image_twice_in_a_batch_keeps_its_last_score():
    table = ScoreTable(3, CPU)
    record(table, [1, 2, 1, 0], [5., 6., 7., 8.], 0)
    assert table.numpy().tolist() == [8, 7, 6]


def test_non_finite_losses_are_counted_and_never_scored():
    table = ScoreTable(3, CPU)
    record(table, [0, 1, 2], [2., float('nan'), 3.], 0)
    record(table, [0, 1, 2], [float('inf'), 4., -float('inf')], 1)
    assert table.numpy().tolist() == [2, 4, 3]
    assert table.num_non_finite() == 3
    # Also in the first of two slots of an image.
    record(table, [0, 1, 0], [float('nan'), 5., 6.], 2)
    assert table.numpy().tolist() == [6, 5, 3]
    assert table.num_non_finite() == 4


def memory(table):
    return sum(t.untyped_storage().nbytes() for t in vars(table).values()
               if isinstance(t, torch.Tensor))


def test_memory_of_an_image():
    assert memory(ScoreTable(10_000, CPU)) <= 8 * 10_000 + 64


def merge_on_ranks(rank, results):
    table = ScoreTable(6, CPU)
    # Image 1 is visited by both ranks: rank 0 later, with a smaller score.
    # Image 2 as well, but the later visit has no finite score.
    if rank == 0:
        record(table, [0, 1], [0.1, 0.2], 5)
        record(table, [2], [float('nan')], 7)
    else:
        record(table, [1, 2], [0.9, 0.3], 4)
        record(table, [3, 5], [1e-30, 3e38], 6)
    table.merge()
    results[rank] = table.numpy().tolist(), table.num_non_finite()
    # The next window starts from equal tables.
    record(table, [4 + rank], [float(rank)], 8)
    table.merge()
    results[rank] += (table.numpy().tolist(), table.num_non_finite())
    table = ScoreTable(10_000, CPU)
    table.merge()
    results[rank] += (memory(table), )


def test_merge_makes_the_tables_of_all_ranks_equal():
    expected = np.float32([0.1, 0.2, 0.3, 1e-30, 1, 3e38]).tolist()
    later = [*expected[:4], 0., 1.]
    for result in run_ranks(merge_on_ranks, 2):
        assert result[:-1] == (expected, 1, later, 1)
        assert result[-1] <= 8 * 10_000 + 64
