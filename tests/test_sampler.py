# Copyright (c) mmib contributors. All rights reserved.
import functools
import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.dataset import DefaultSampler, InfiniteSampler, RepeatDataset
from torch.utils.data import DataLoader

from mmib import InfoBatchHook, InfoBatchSampler
from mmib.errors import Refusal
from mmib.openmmlab.config.outlook import clock_of_config
from mmib.pruning import EpochPlan
from tests.test_datasets import Listed

SIZE = 11
RANKS = st.integers(1, 4)


def by_iterations(dataset=range(SIZE), shuffle=True, seed=5, by_epoch=False):
    """A sampler that the loop of such a training has asked."""
    sampler = InfoBatchSampler(dataset, shuffle, seed)
    sampler.by_epoch = by_epoch
    return sampler


by_epochs = functools.partial(by_iterations, by_epoch=True)


@functools.lru_cache(maxsize=None)
def repeated(size, times):
    return RepeatDataset(Listed([str(i) for i in range(size)]), times)


def on_rank(sampler, rank, world_size):
    """The sampler as another rank has it."""
    sampler.rank, sampler.world_size = rank, world_size
    if isinstance(sampler, InfiniteSampler):
        sampler.indices = sampler._indices_of_rank()
    elif isinstance(sampler, DefaultSampler):
        sampler.num_samples = -(-len(sampler.dataset) // world_size)
        sampler.total_size = sampler.num_samples * world_size
    return sampler


def connected(sampler, draw=None, starts=None):
    """A sampler with a hook, whose plans are full ones by default."""

    def draw_plan(start, rng):
        if starts is not None:
            starts.append(start)
        plan = draw and draw(start, rng)
        return plan or EpochPlan.full(sampler.full_pass())

    sampler.connect(draw_plan)
    return sampler


def prune_by_start(start, rng):
    """A full pass, and then plans whose lengths follow from where they start.
    Weights are those of their images."""
    if start:
        indices = rng.permutation(SIZE)[:1 + (start + 7) % SIZE]
        return EpochPlan(indices, np.float32(indices + 0.5))


def keep(kept):
    """Plans have so many images."""

    def draw(start, rng):
        weights = np.full(kept, SIZE / kept, np.float32)
        return EpochPlan(rng.permutation(SIZE)[:kept], weights)

    return draw


def head(iterable, count):
    return list(itertools.islice(iterable, count))


def pairs(slots):
    return list(zip(slots.indices.tolist(), slots.weights.tolist()))


# By iterations ---------------------------------------------------------------


@given(
    st.sampled_from([1, 3, 16, 101]), st.integers(1, 3), RANKS, st.booleans(),
    st.booleans())
def test_full_passes_are_those_of_infinite_sampler(size, times, world_size,
                                                   shuffle, with_hook):
    """A repeated data set is shuffled as a whole, and dealt in pieces of one
    pass."""
    dataset = repeated(size, times)
    for rank in range(world_size):
        baseline = on_rank(
            InfiniteSampler(dataset, shuffle, seed=3), rank, world_size)
        ours = on_rank(by_iterations(dataset, shuffle, 3), rank, world_size)
        starts = []
        if with_hook:
            connected(ours, starts=starts)
        count = 3 * times * size // world_size + 5
        assert len(ours) == size
        assert head(ours, count) == head(baseline, count)
        assert starts == [size * i for i in range(len(starts))]


@given(
    st.integers(1, 9), st.integers(1, 3),
    st.lists(st.none() | st.integers(1, 12), max_size=12))
def test_a_pass_that_was_left_goes_on(size, times, limits):
    """As where annealing cuts it."""
    dataset = repeated(size, times)
    sampler = by_iterations(dataset)
    dealt = []
    for limit in limits:
        piece = sampler.full_pass(limit)
        assert len(piece) == min(size - len(dealt) % size, limit or size)
        dealt += piece.tolist()
    assert dealt == head(InfiniteSampler(dataset, seed=5), len(dealt))
    # So does a training that begins there, and one that goes on.
    after = by_iterations(dataset)
    after.restart(len(dealt))
    loaded = sampler
    for seed in (9, 99):
        state = loaded.state_dict()
        loaded = by_iterations(dataset, seed=seed)
        loaded.load_state_dict(state)
    expected = sampler.full_pass().tolist()
    assert after.full_pass().tolist() == expected
    assert loaded.full_pass().tolist() == expected


@pytest.mark.parametrize('shuffle', [True, False])
@pytest.mark.parametrize('is_shuffled', [True, False])
def test_the_order_of_plans(shuffle, is_shuffled):
    """Without shuffle a plan in random order has that of the data set, with
    its weights. Any other plan keeps its own."""
    indices = np.array([4, 9, 2, 2])
    plan = EpochPlan(
        indices, np.float32(indices + 0.5), is_shuffled=is_shuffled)
    sampler = connected(by_iterations(shuffle=shuffle), lambda *args: plan)
    head(sampler, 4)
    expected = [4, 9, 2, 2] if shuffle or not is_shuffled else [2, 2, 4, 9]
    assert pairs(sampler.take(4)) == [(i, i + 0.5) for i in expected]


@pytest.mark.parametrize('size', [3, 1000])
def test_a_loader_that_ran_ahead_of_the_hook(size):
    """OpenMMLab's loop starts the workers when it is built."""
    sampler = by_iterations(range(size))
    loader = DataLoader(
        range(size), batch_size=3, sampler=sampler, num_workers=2)
    iterator, starts = iter(loader), []
    connected(sampler, starts=starts)
    expected = head(InfiniteSampler(range(size), seed=5), 30)
    for step in range(10):
        batch = next(iterator).tolist()
        assert batch == expected[3 * step:3 * step + 3]
        assert sampler.take(3).indices.tolist() == batch
    assert starts == [size * i for i in range(len(starts))]


def test_iterating_again_goes_on():
    """Recent torch calls `iter` more than once. Where no plan follows, the
    stream ends."""
    sampler = by_iterations()
    iter(sampler)
    assert head(sampler, 5) + head(sampler, 7) == head(
        InfiniteSampler(range(SIZE), seed=5), 12)
    sampler = by_iterations()
    sampler.connect(lambda start, rng: None
                    if start else EpochPlan.full(sampler.full_pass()))
    assert len(list(sampler)) == SIZE


@given(st.integers(1, 20), st.integers(0, 70), st.sampled_from([1, 2, 3]))
def test_a_position_of_the_full_passes(size, num_samples, world_size):
    """Where a training goes on without the state of a checkpoint."""
    for rank in range(world_size):
        one, two = (
            on_rank(by_iterations(range(size)), rank, world_size)
            for _ in range(2))
        head(one, 4)
        one.restart(world_size * num_samples)
        # As MMEngine's loop does, later.
        one.skip(7)
        assert one.position == world_size * num_samples
        state = one.state_dict()
        one = on_rank(by_iterations(range(size)), rank, world_size)
        one.load_state_dict(state)
        assert head(one, 9) == head(two, num_samples + 9)[num_samples:]


@given(
    st.lists(
        st.tuples(RANKS, st.integers(1, 4), st.integers(1, 9),
                  st.integers(0, 3)),
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
                by_iterations(seed=99 if state else 5), rank, world_size)
            if state is not None:
                sampler.load_state_dict(state)
            connected(sampler, prune_by_start)
            issued = head(sampler, (steps + lookahead) * batch_size)
            taken = sampler.take(steps * batch_size)[rank::world_size]
            assert taken.indices.tolist() == issued[:steps * batch_size]
            of_ranks.append(pairs(taken))
            states.add(str(sampler.state_dict()))
        assert len(states) == 1
        state = sampler.state_dict()
        together += [slot for step in zip(*of_ranks) for slot in step]
        assert state['position'] == len(together)
    whole = connected(by_iterations(), prune_by_start)
    head(whole, len(together))
    assert together == pairs(whole.take(len(together)))


@pytest.mark.parametrize('with_hook', [True, False])
def test_memory_does_not_grow(with_hook):
    """What was taken is forgotten; without a hook that is all issued."""
    sampler = by_iterations(range(100))
    if with_hook:
        connected(sampler)
    iterator = iter(sampler)
    for _ in range(30):
        head(iterator, 100)
        if with_hook:
            sampler.take(100)
    assert len(sampler.queue) <= 100
    base = sampler.queue.slots.indices
    assert (base if base.base is None else base.base).nbytes <= 100 * 8


# By epochs -----------------------------------------------------------------


@given(st.integers(1, 101), RANKS, st.booleans(), st.booleans())
def test_full_epochs_are_those_of_default_sampler(size, world_size, shuffle,
                                                  with_hook):
    for rank in range(world_size):
        baseline = on_rank(
            DefaultSampler(range(size), shuffle, seed=3), rank, world_size)
        ours = on_rank(by_epochs(range(size), shuffle, 3), rank, world_size)
        if with_hook:
            connected(ours)
        for epoch in (0, 1, 4):
            assert len(ours) == len(baseline)
            for sampler in (baseline, ours):
                sampler.set_epoch(epoch)
            if with_hook:
                ours.begin_epoch()
            assert len(ours) == len(baseline)
            assert list(ours) == list(baseline)
            if with_hook:
                ours.take(len(ours))
                ours.end_epoch()


@given(st.integers(1, SIZE), RANKS, st.integers(1, 5), st.booleans())
def test_ranks_share_the_slots_of_an_epoch(kept, world_size, batch_size,
                                           drop_last):
    per_rank, sizes = -(-kept // world_size), []
    for rank in range(world_size):
        sampler = connected(on_rank(by_epochs(), rank, world_size), keep(kept))
        sizes.append([])
        for epoch in range(3):
            sampler.begin_epoch()
            assert len(sampler) == per_rank
            loader = DataLoader(
                range(SIZE),
                batch_size,
                sampler=sampler,
                drop_last=drop_last,
                collate_fn=list)
            slots, batches = [], list(loader)
            assert len(batches) == len(loader)
            for batch in batches:
                taken = sampler.take(len(batch)).indices
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


@given(st.integers(1, 60), RANKS, st.integers(1, 9), st.booleans())
@example(15, 4, 4, True)
def test_a_forecast_counts_the_batches_of_the_loader(size, world_size,
                                                     batch_size, drop_last):
    cfg = Config(
        dict(
            train_cfg=dict(by_epoch=True, max_epochs=3),
            train_dataloader=dict(drop_last=drop_last)))
    clock = clock_of_config(cfg, InfoBatchHook(), size, batch_size, world_size)
    for rank in range(world_size):
        sampler = connected(on_rank(by_epochs(range(size)), rank, world_size))
        sampler.begin_epoch()
        loader = DataLoader(
            range(size), batch_size, sampler=sampler, drop_last=drop_last)
        assert len(list(loader)) == len(loader) == clock.iters_per_epoch


def test_a_position_by_epochs():
    """Between two epochs: as a training begins that goes on afresh."""
    sampler = on_rank(by_epochs(), 1, 2)
    for position in (24, 12):
        sampler.restart(position)
        assert sampler.position == position
    connected(sampler, keep(4)).begin_epoch()
    assert len(list(sampler)) == 2


def test_what_is_refused():
    with pytest.raises(
            Refusal,
            match='`sed` in `train_dataloader.sampler`.*d'
            'id you mean `seed`'):
        InfoBatchSampler(range(3), sed=1)
    with pytest.raises(Refusal, match='got an empty data set: check `data_ro'):
        InfoBatchSampler([])
    sampler = connected(by_iterations())
    head(sampler, 3)
    with pytest.raises(Refusal, match='only 3 are in flight'):
        sampler.take(4)
    with pytest.raises(Refusal, match='Something else than the training loop'):
        head(sampler, 1)
