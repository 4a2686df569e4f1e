# Copyright (c) mmib contributors. All rights reserved.
import numpy as np

from mmib.log.counts import ImageCounts


def test_images_that_a_data_set_repeats_are_counted_once_for_each_slot():
    counts = ImageCounts(np.array([0, 1, 2, 0, 0]))
    counts.visit(np.array([0, 3, 1]))
    counts.visit(np.array([3, 3]))
    assert counts.visits.tolist() == [4, 1, 0]
    counts.prune(np.array([1, 4]))
    assert counts.pruned.tolist() == [2, 0, 1]


def test_state_is_a_copy():
    counts, other = (ImageCounts(np.arange(3)) for _ in range(2))
    counts.visit(np.array([2, 0]))
    state = counts.state_dict()
    counts.visit(np.array([2]))
    counts.prune(np.array([2]))
    other.load_state_dict(state)
    assert other.visits.tolist() == [1, 0, 1]
    assert other.pruned.tolist() == [0, 0, 0]
    assert state['visits'].element_size() == state['pruned'].element_size(
    ) == 4
