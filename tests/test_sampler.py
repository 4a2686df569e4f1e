# Copyright (c) mmib contributors. All rights reserved.
import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import DataLoader

from mmib import InfoBatchHook, InfoBatchSampler
from mmib.config.outlook import clock_of_config
from mmib.pruning import EpochPlan
from tests.system.processes import run_ranks


def by_iterations(*args, **kwargs):
    """A sampler that the loop of such a training has asked."""
    sampler = InfoBatchSampler(*args, **kwargs)
    sampler.by_epoch = False
    return sampler


def on_rank(sampler, rank, world_size):
    """The sampler as another rank has it."""
    sampler.rank, sampler.world_size = rank, world_size
    if isinstance(sampler, InfiniteSampler):
        sampler.indices = sampler._indices_of_rank()
    elif isinstance(sampler, DefaultSampler):
        size = len(sampler.dataset)
        sampler.num_samples = -(-size // world_size)
        sampler.total_size = sampler.num_samples * world_size
    elif sampler.by_epoch is False:
        sampler.skip(0)
    return sampler


def prune_by_start(start, rng):
    """A planner: a full pass, and then plans whose lengths follow from where
    they start. Weights are those of their images."""
    if start == 0:
        return None
    indices = rng.permutation(11)[:1 + (start + 7) % 11]
    return EpochPlan(indices, np.float32(indices + 0.5))


def full_pass(start, rng):
    """A planner that prunes nothing."""


def connected(planner, shuffle=True):
    """A sampler with a hook."""
    sampler = by_iterations(range(11), shuffle, seed=5)
    sampler.connect(planner)
    return sampler


def head(iterable, count):
    return list(itertools.islice(iterable, count))


def pairs(plan):
    return list(zip(plan.indices.tolist(), plan.weights.tolist()))


def prunes(kept):
    """A planner whose plans have so many of 11 images."""

    def draw(start, rng):
        weights = np.full(kept, 11 / kept, np.float32)
        return EpochPlan(rng.permutation(11)[:kept], weights)

    return draw


FULL_PASSES = pytest.mark.parametrize(
    'size, with_hook, world_size, shuffle',
    list(
        itertools.product((1, 3, 16, 101), (True, False), (1, 2, 4),
                          (True, False))))


@FULL_PASSES
def test_full_passes_are_those_of_infinite_sampler(size, with_hook, world_size,
                                                   shuffle):
    for rank in range(world_size):
        baseline, ours = (
            on_rank(kind(range(size), shuffle, seed=3), rank, world_size)
            for kind in (InfiniteSampler, by_iterations))
        if with_hook:
            ours.connect(full_pass)
        count = 3 * size // world_size + 5
        assert head(ours, count) == head(baseline, count)


@FULL_PASSES
def test_full_epochs_are_those_of_default_sampler(size, with_hook, world_size,
                                                  shuffle):
    for rank in range(world_size):
        baseline, ours = (
            on_rank(kind(range(size), shuffle, seed=3), rank, world_size)
            for kind in (DefaultSampler, InfoBatchSampler))
        assert len(ours) == len(baseline)
        if with_hook:
            ours.connect(lambda start, rng: None)
        for epoch in (0, 1, 4):
            for sampler in (baseline, ours):
                sampler.set_epoch(epoch)
            if with_hook:
                ours.begin_epoch()
            assert len(ours) == len(baseline)
            assert list(ours) == list(baseline)
            if with_hook:
                ours.take(len(ours))
                ours.end_epoch()


def baseline_and_ours(rank, results):
    ours = by_iterations(range(11), seed=None)
    own_seed = ours.seed
    results[rank] = own_seed, head(ours, 20), head(
        InfiniteSampler(range(11), seed=own_seed), 20)


def test_real_ranks_agree_on_a_seed():
    results = run_ranks(baseline_and_ours, 2)
    assert len({seed for seed, _, _ in results}) == 1
    for _, ours, baseline in results:
        assert ours == baseline
    stream = [
        i for step in zip(*(ours for _, ours, _ in results)) for i in step
    ]
    for start in (0, 11, 22):
        assert sorted(stream[start:start + 11]) == list(range(11))


@pytest.mark.parametrize('shuffle', [True, False])
def test_plans_without_shuffle_keep_the_order(shuffle):
    sampler = connected(prune_by_start, shuffle)
    head(sampler, 12)
    sampler.take(11)
    plan = sampler._slots
    assert len(plan) == 8
    assert (sorted(plan.indices) == plan.indices.tolist()) is not shuffle
    assert plan.weights.tolist() == [index + 0.5 for index in plan.indices]


@pytest.mark.parametrize('size', [3, 11, 1000])
def test_a_loader_that_ran_ahead_of_the_hook(size):
    """OpenMMLab's loop starts the workers when it is built."""
    sampler = by_iterations(range(size), seed=0)
    loader = DataLoader(
        range(size), batch_size=3, sampler=sampler, num_workers=2)
    iterator = iter(loader)
    starts = []

    def planner(start, rng):
        starts.append(start)

    sampler.connect(planner)
    expected = head(InfiniteSampler(range(size), seed=0), 30)
    for step in range(10):
        batch = next(iterator).tolist()
        assert batch == expected[3 * step:3 * step + 3]
        assert sampler.take(3).indices.tolist() == batch
    assert starts == [size * i for i in range(len(starts))]


def test_iterating_again_goes_on():
    """Recent torch calls `iter` more than once."""
    sampler = by_iterations(range(7), seed=0)
    iter(sampler)
    assert head(sampler, 5) + head(sampler, 7) == head(
        InfiniteSampler(range(7), seed=0), 12)


@given(st.integers(1, 20), st.integers(0, 70), st.sampled_from([1, 2, 3]))
def test_skip_is_absolute(size, num_samples, world_size):
    for rank in range(world_size):
        one, two = (
            on_rank(by_iterations(range(size), seed=5), rank, world_size)
            for _ in range(2))
        head(one, 4)
        one.skip(num_samples)
        assert head(one, 9) == head(two, num_samples + 9)[num_samples:]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 3, 4]), st.integers(1, 4),
            st.integers(1, 9), st.integers(0, 3)),
        min_size=2,
        max_size=4))
@settings(max_examples=50)
def test_state_on_other_ranks_and_batch_sizes(stages):
    """Invariant 6: rank k takes slots k, k + W, ... of one stream, and all
    ranks draw the plans together. They go on with this stream: each slot is
    issued once, with its weight, whatever was in flight."""
    state, together = None, []
    for world_size, batch_size, steps, lookahead in stages:
        of_ranks, states = [], set()
        for rank in range(world_size):
            sampler = on_rank(
                by_iterations(range(11), seed=99 if state else 5), rank,
                world_size)
            if state is not None:
                sampler.load_state_dict(state)
            sampler.connect(prune_by_start)
            issued = head(sampler, (steps + lookahead) * batch_size)
            taken = sampler.take(steps * batch_size)[rank::world_size]
            assert taken.indices.tolist() == issued[:steps * batch_size]
            of_ranks.append(pairs(taken))
            states.add(str(sampler.state_dict()))
        assert len(states) == 1
        state = sampler.state_dict()
        together += [slot for step in zip(*of_ranks) for slot in step]
        assert state['position'] == len(together)
    whole = connected(prune_by_start)
    head(whole, len(together))
    assert together == pairs(whole.take(len(together)))


def test_skip_with_a_hook_does_nothing():
    """The hook knows where the training goes on, also with other batches."""
    sampler = connected(prune_by_start)
    sampler.skip(7)
    assert sampler.position == 0


def test_what_was_read_before_the_state_does_not_count():
    """OpenMMLab's loop reads when it is built, before the checkpoint."""
    one, two = (by_iterations(range(11), seed=5) for _ in range(2))
    head(one, 5)
    head(two, 8)
    two.load_state_dict(one.state_dict())
    two.connect(full_pass)
    assert head(two, 6) == head(one, 6)
    assert two.position == 5


def test_more_is_taken_than_is_in_flight():
    sampler = connected(full_pass)
    head(sampler, 3)
    with pytest.raises(RuntimeError, match='only 3 are in flight'):
        sampler.take(4)


@pytest.mark.parametrize('with_hook', [True, False])
def test_memory_does_not_grow(with_hook):
    """What was taken is forgotten; without a hook that is all issued."""
    sampler = by_iterations(range(100), seed=0)
    if with_hook:
        sampler.connect(full_pass)
    iterator = iter(sampler)
    for _ in range(30):
        head(iterator, 100)
        if with_hook:
            sampler.take(100)
    assert len(sampler._slots) <= 100
    assert sampler._slots.indices.base.nbytes <= 100 * 8


# By epochs -----------------------------------------------------------------


@given(
    st.integers(1, 11), st.sampled_from([1, 2, 3, 4]), st.integers(1, 5),
    st.booleans())
def test_ranks_share_the_slots_of_an_epoch(kept, world_size, batch_size,
                                           drop_last):
    per_rank, sizes = -(-kept // world_size), []
    for rank in range(world_size):
        sampler = on_rank(
            InfoBatchSampler(range(11), seed=5), rank, world_size)
        sampler.connect(prunes(kept))
        sizes.append([])
        for epoch in range(3):
            sampler.begin_epoch()
            assert len(sampler) == per_rank
            loader = DataLoader(
                range(11),
                batch_size,
                sampler=sampler,
                drop_last=drop_last,
                collate_fn=list)
            slots, batches = [], list(loader)
            assert len(batches) == len(loader)
            for batch in batches:
                taken = sampler.take(sampler.batch_length(batch_size)).indices
                assert taken[rank::world_size].tolist() == batch
                slots += taken.tolist()
                sizes[-1].append(len(batch))
            if not drop_last:
                # No image is left out, and those that come twice fill a step.
                assert len({*slots}) == kept
                assert len(slots) == world_size * per_rank
            sampler.end_epoch()
            assert sampler.position == (epoch + 1) * world_size * per_rank
    # All ranks have as many steps, of as many images.
    assert all(of_rank == sizes[0] for of_rank in sizes)


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 9), st.booleans())
@example(15, 4, 4, True)
def test_a_forecast_counts_the_batches_of_the_loader(size, world_size,
                                                     batch_size, drop_last):
    cfg = Config(
        dict(
            train_cfg=dict(by_epoch=True, max_epochs=3),
            train_dataloader=dict(drop_last=drop_last)))
    clock = clock_of_config(cfg, InfoBatchHook(), size, batch_size, world_size)
    for rank in range(world_size):
        sampler = on_rank(
            InfoBatchSampler(range(size), seed=5), rank, world_size)
        sampler.connect(lambda start, rng: None)
        sampler.begin_epoch()
        loader = DataLoader(
            range(size), batch_size, sampler=sampler, drop_last=drop_last)
        assert len(list(loader)) == len(loader) == clock.iters_per_epoch


def test_others_read_full_passes():
    ours, baseline = (
        kind(range(11), seed=3) for kind in (InfoBatchSampler, DefaultSampler))
    ours.connect(prunes(4))
    ours.begin_epoch()
    assert len(list(ours)) == 4
    ours.take(4)
    assert list(ours) == list(baseline)
    ours.end_epoch()
    # As PreciseBNHook does, after an epoch.
    assert list(ours) == list(baseline)
    ours.begin_epoch()
    assert len(list(ours)) == 4


@pytest.mark.parametrize('world_size', [1, 2, 3])
@pytest.mark.parametrize('taken', [2, 7])
def test_state_within_an_epoch_goes_on_with_the_rest(taken, world_size):
    """Also at its last batch."""
    sampler = InfoBatchSampler(range(11), seed=3)
    sampler.connect(prunes(7))
    sampler.begin_epoch()
    plan = list(sampler)
    sampler.take(taken)
    later = on_rank(InfoBatchSampler(range(11), seed=9), 0, world_size)
    later.load_state_dict(sampler.state_dict())
    assert later.seed == 3
    later.connect(prunes(3))
    later.begin_epoch()
    left = -(-(7 - taken) // world_size)
    assert len(later) == left
    assert list(later) == (2 * plan[taken:])[:left * world_size:world_size]
    later.take(left)
    later.end_epoch()
    later.begin_epoch()
    assert len(list(later)) == -(-3 // world_size)


def test_skip_by_epochs():
    """Between two epochs: as a training begins that goes on afresh."""
    sampler = on_rank(InfoBatchSampler(range(11), seed=3), 1, 2)
    for position in (12, 6):
        sampler.skip(position)
        assert sampler.position == 2 * position
    sampler.connect(prunes(4))
    sampler.begin_epoch()
    assert len(list(sampler)) == 2
