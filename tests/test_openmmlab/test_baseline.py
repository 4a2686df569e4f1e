# Copyright (c) mmib contributors. All rights reserved.
"""Full passes are those of MMEngine's samplers."""
import itertools

from hypothesis import given
from hypothesis import strategies as st
from mmengine.dataset import DefaultSampler, InfiniteSampler

from mmib.stream.baseline import BaselineOrder
from tests.helpers.runs import baseline_epoch, baseline_stream


@given(
    st.integers(1, 9), st.integers(1, 3), st.booleans(), st.integers(0, 9),
    st.lists(st.none() | st.integers(1, 12), max_size=12))
def test_the_passes_of_a_stream(size, times, shuffle, seed, limits):
    """Also of a dataset that is repeated, in passes of its images, and where
    annealing cuts a pass."""
    num_indices = size * times
    passes = BaselineOrder(num_indices, shuffle, seed)
    dealt = [
        index for limit in limits
        for index in passes.next(size, limit).tolist()
    ]
    sampler = InfiniteSampler(range(num_indices), shuffle, seed=seed)
    baseline = list(itertools.islice(sampler, len(dealt)))
    assert dealt == baseline
    if shuffle:
        assert baseline_stream(num_indices, len(dealt), seed) == baseline


@given(st.integers(1, 30), st.booleans(), st.integers(0, 9), st.integers(0, 9))
def test_the_pass_of_an_epoch(size, shuffle, seed, epoch):
    baseline = DefaultSampler(range(size), shuffle, seed=seed)
    baseline.set_epoch(epoch)
    passes = BaselineOrder(size, shuffle, seed)
    passes.next(size)
    assert passes.of_epoch(epoch).tolist() == list(baseline)
    if shuffle:
        assert baseline_epoch(size, epoch, seed) == list(baseline)
