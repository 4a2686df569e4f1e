# Copyright (c) mmib contributors. All rights reserved.
"""Full passes are shuffled as those of the baseline. That MMEngine's samplers
are the baseline is tested in tests/test_openmmlab."""
from hypothesis import given
from hypothesis import strategies as st

from mmib.stream.baseline import BaselineOrder
from tests.helpers.runs import baseline_epoch, baseline_stream


@given(
    st.integers(1, 9), st.integers(1, 3), st.booleans(),
    st.lists(st.none() | st.integers(1, 12), max_size=12))
def test_a_pass_that_was_left_goes_on(size, times, shuffle, limits):
    """As where annealing cuts it. A dataset that is repeated is shuffled as a
    whole, and comes in passes of its images."""
    num_indices = size * times
    passes = BaselineOrder(num_indices, shuffle, 5)
    dealt = []
    for limit in limits:
        piece = passes.next(size, limit)
        assert len(piece) == min(size - len(dealt) % size, limit or size)
        dealt += piece.tolist()
    in_order = [index % num_indices for index in range(len(dealt))]
    shuffled = baseline_stream(num_indices, len(dealt), seed=5)
    assert dealt == (shuffled if shuffle else in_order)
    # So does a run that begins there, and one that goes on.
    after = BaselineOrder(num_indices, shuffle, 5)
    after.skip(len(dealt), size)
    loaded = passes
    for seed in (9, 99):
        state = loaded.state_dict()
        loaded = BaselineOrder(num_indices, shuffle, seed)
        loaded.load_state_dict(state)
    for _ in range(2 * times):
        expected = passes.next(size).tolist()
        assert after.next(size).tolist() == expected
        assert loaded.next(size).tolist() == expected


@given(st.integers(1, 30), st.booleans(), st.integers(0, 9), st.integers(0, 9))
def test_the_pass_of_an_epoch(size, shuffle, seed, epoch):
    passes = BaselineOrder(size, shuffle, seed)
    passes.next(size)
    shuffled = baseline_epoch(size, epoch, seed)
    assert passes.of_epoch(epoch).tolist() == (
        shuffled if shuffle else [*range(size)])
    again = passes.reseeded(seed + 1)
    assert again.of_epoch(epoch).tolist() == (
        baseline_epoch(size, epoch + 1, seed) if shuffle else [*range(size)])
    # From its beginning.
    first = again.next(size).tolist()
    assert first == BaselineOrder(size, shuffle, seed + 1).next(size).tolist()
