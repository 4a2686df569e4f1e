# Copyright (c) mmib contributors. All rights reserved.
"""Full passes are those of the baseline's samplers."""
import itertools

from hypothesis import given
from hypothesis import strategies as st
from mmengine.dataset import DefaultSampler, InfiniteSampler

from mmib.passes import FullPasses


@given(
    st.integers(1, 9), st.integers(1, 3), st.booleans(),
    st.lists(st.none() | st.integers(1, 12), max_size=12))
def test_a_pass_that_was_left_goes_on(size, times, shuffle, limits):
    """As where annealing cuts it. A dataset that is repeated is shuffled as a
    whole, and comes in passes of its images."""
    num_indices = size * times
    passes = FullPasses(num_indices, shuffle, 5)
    dealt = []
    for limit in limits:
        piece = passes.next(size, limit)
        assert len(piece) == min(size - len(dealt) % size, limit or size)
        dealt += piece.tolist()
    baseline = InfiniteSampler(range(num_indices), shuffle, seed=5)
    assert dealt == list(itertools.islice(baseline, len(dealt)))
    # So does a run that begins there, and one that goes on.
    after = FullPasses(num_indices, shuffle, 5)
    after.skip(len(dealt), size)
    loaded = passes
    for seed in (9, 99):
        state = loaded.state_dict()
        loaded = FullPasses(num_indices, shuffle, seed)
        loaded.load_state_dict(state)
    for _ in range(2 * times):
        expected = passes.next(size).tolist()
        assert after.next(size).tolist() == expected
        assert loaded.next(size).tolist() == expected


@given(st.integers(1, 30), st.booleans(), st.integers(0, 9), st.integers(0, 9))
def test_the_pass_of_an_epoch(size, shuffle, seed, epoch):
    baseline = DefaultSampler(range(size), shuffle, seed=seed)
    baseline.set_epoch(epoch)
    passes = FullPasses(size, shuffle, seed)
    passes.next(size)
    assert passes.of_epoch(epoch).tolist() == list(baseline)
