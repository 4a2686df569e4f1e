# Copyright (c) mmib contributors. All rights reserved.
"""The sampler against those of the baseline, and against the run that it reads
from."""
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
from mmib.openmmlab.config.outlook import iterations_of
from mmib.pruning import EpochPlan, ScoreOnly, as_policy
from mmib.run.run import Run
from mmib.stream.schedule import Schedule, StepSize
from tests.helpers.runs import dealt, plans_of, state_of
from tests.test_openmmlab.test_datasets import Listed

SIZE = 11
RANKS = st.integers(1, 4)


def sampler_of(dataset=range(SIZE), shuffle=True, seed=5):
    return InfoBatchSampler(dataset, shuffle, seed)


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


def run_of(sampler, policy=None, by_epoch=False):
    """A run for a sampler, of full passes by default. It knows scores, so that
    a policy draws each plan but the first."""
    size, indices = sampler.num_images, sampler.num_indices
    if by_epoch:
        schedule = Schedule(indices, 9, indices, 1., 0., by_epoch=True)
    else:
        schedule = Schedule(
            size, 10**6, 1, 1., 0., by_epoch=False, first_pass=indices)
    run = Run(
        np.arange(indices) % size,
        as_policy(policy or ScoreOnly()),
        schedule,
        warn=[].append,
        shuffle=sampler.shuffle,
        seed=sampler.seed,
        every_rank_trains=True)
    run.table.last_visit[:] = 1
    return run


def connected(sampler, *args, **kwargs):
    """A run that a sampler reads from."""
    run = run_of(sampler, *args, **kwargs)
    sampler.connect(run)
    return run


def take(sampler, run, batch_size):
    """Train on a batch, and return the slots of all ranks."""
    size = sampler.batch_size(batch_size) * sampler.world_size
    slots = run.stream.slots_left().at(slice(size))
    run.stream.advance(run.stream.position + size)
    return slots


def any_length(scores, rng):
    """Plans whose lengths and images the generator decides. Weights are those
    of the images."""
    indices = rng.permutation(SIZE)[:rng.integers(1, SIZE + 1)]
    return EpochPlan(indices, np.float32(indices + 0.5))


def keep(kept):
    """Plans have so many images."""

    def policy(scores, rng):
        weights = np.full(kept, len(scores) / kept, np.float32)
        return EpochPlan(rng.permutation(len(scores))[:kept], weights)

    return policy


def head(iterable, count):
    return list(itertools.islice(iterable, count))


def pairs(slots):
    return list(zip(slots.indices.tolist(), slots.weights.tolist()))


# By iterations ---------------------------------------------------------------


@given(
    st.sampled_from([1, 3, 16, 101]), st.integers(1, 3), RANKS, st.booleans(),
    st.booleans())
def test_full_passes_are_those_of_infinite_sampler(size, times, world_size,
                                                   shuffle, with_run):
    """A repeated dataset is shuffled as a whole, and dealt in pieces of one
    pass."""
    dataset = repeated(size, times)
    for rank in range(world_size):
        baseline = on_rank(
            InfiniteSampler(dataset, shuffle, seed=3), rank, world_size)
        ours = on_rank(sampler_of(dataset, shuffle, 3), rank, world_size)
        plans = plans_of(connected(ours)) if with_run else []
        count = 3 * times * size // world_size + 5
        assert head(ours, count) == head(baseline, count)
        assert [record.first_slot for record, _ in plans
                ] == [size * i for i in range(len(plans))]
        assert len(ours) == (
            size if with_run else -(-times * size // world_size))


@pytest.mark.parametrize('shuffle', [True, False])
@pytest.mark.parametrize('is_shuffled', [True, False])
def test_the_order_of_plans(shuffle, is_shuffled):
    """Without shuffle a plan in random order has that of the dataset, with its
    weights. Any other plan keeps its own."""
    indices = np.array([4, 9, 2, 2])
    plan = EpochPlan(
        indices, np.float32(indices + 0.5), is_shuffled=is_shuffled)
    sampler = sampler_of(shuffle=shuffle)
    run = connected(sampler, lambda *args: plan)
    issued = iter(sampler)
    assert head(issued, SIZE) == take(sampler, run, SIZE).indices.tolist()
    expected = [4, 9, 2, 2] if shuffle or not is_shuffled else [2, 2, 4, 9]
    assert head(issued, 4) == expected
    assert pairs(take(sampler, run, 4)) == [(i, i + 0.5) for i in expected]


@pytest.mark.parametrize('size', [3, 1000])
def test_a_loader_that_ran_ahead_of_the_hook(size):
    """OpenMMLab's loop starts the workers when it is built."""
    sampler = sampler_of(range(size))
    loader = DataLoader(
        range(size), batch_size=3, sampler=sampler, num_workers=2)
    iterator = iter(loader)
    run = run_of(sampler)
    plans = plans_of(run)
    sampler.connect(run)
    expected = head(InfiniteSampler(range(size), seed=5), 30)
    for step in range(10):
        batch = next(iterator).tolist()
        assert batch == expected[3 * step:3 * step + 3]
        assert take(sampler, run, 3).indices.tolist() == batch
    starts = [record.first_slot for record, _ in plans]
    assert starts == [size * i for i in range(len(starts))]


def test_iterating_again_goes_on():
    """Recent torch calls `iter` more than once, and reads from one. Where no
    plan follows, the stream ends."""
    sampler = sampler_of()
    iter(sampler)
    issued = iter(sampler)
    iter(sampler)
    expected = head(InfiniteSampler(range(SIZE), seed=5), 30)
    assert head(issued, 12) == expected[:12]
    run = connected(sampler)
    iter(sampler)
    assert take(sampler, run, 12).indices.tolist() == expected[:12]
    assert head(issued, 18) == expected[12:]
    sampler = sampler_of()
    run = run_of(sampler)
    run.schedule.stream_end = SIZE
    sampler.connect(run)
    assert len(list(sampler)) == SIZE


@given(st.integers(1, 20), st.integers(0, 70), st.sampled_from([1, 2, 3]))
def test_a_position_of_the_full_passes(size, num_samples, world_size):
    """Where a run goes on without the state of a checkpoint."""
    for rank in range(world_size):
        baseline, one = (
            on_rank(each, rank, world_size)
            for each in (InfiniteSampler(range(size), seed=5),
                         sampler_of(range(size))))
        head(one, 4)
        run = run_of(one)
        run.start_afresh(world_size * num_samples)
        one.connect(run)
        if num_samples == 0:
            # Nothing was trained on: what is in flight is dealt again.
            assert run.stream.end >= 4 * world_size
            continue
        # As MMEngine's loop does, later.
        one.skip(7)
        assert run.stream.position == world_size * num_samples
        assert head(one, 9) == head(baseline, num_samples + 9)[num_samples:]


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
                sampler_of(seed=99 if state else 5), rank, world_size)
            run = run_of(sampler, any_length)
            if state is not None:
                run.load_state_dict(state)
            sampler.connect(run)
            issued = head(sampler, (steps + lookahead) * batch_size)
            taken = take(sampler, run, steps * batch_size)
            taken = taken.at(slice(rank, None, world_size))
            assert taken.indices.tolist() == issued[:steps * batch_size]
            of_ranks.append(pairs(taken))
            states.add(str(state_of(run)))
        assert len(states) == 1
        state = state_of(run)
        together += [slot for step in zip(*of_ranks) for slot in step]
        assert state['stream']['position'] == len(together)
    sampler = sampler_of()
    plans = plans_of(connected(sampler, any_length))
    head(sampler, len(together))
    assert together == dealt(plans)[:len(together)]


def test_memory_does_not_grow():
    """The plans before the plan in training are forgotten with the next plan.
    """
    sampler = sampler_of(range(100))
    run = connected(sampler)
    issued = iter(sampler)
    for _ in range(300):
        head(issued, 10)
        take(sampler, run, 10)
        assert run.stream.end - run.stream.known_from <= 200


# By epochs -----------------------------------------------------------------


def begin_epoch(sampler, run, epoch):
    """As the hook does, except for the tail of a plan."""
    step = StepSize(1, drop_last=False)
    sampler.set_epoch(epoch)
    run.stream.advance(run.stream.end)
    assert run.next_plan(step) and run.epoch == epoch + 1
    run.go_on_with(run.rest_for(step))
    sampler.issue_rest()


@given(st.integers(1, 101), RANKS, st.booleans(), st.booleans())
def test_full_epochs_are_those_of_default_sampler(size, world_size, shuffle,
                                                  with_run):
    """Before a run is connected, a loop by epochs asks for the length."""
    for rank in range(world_size):
        baseline = on_rank(
            DefaultSampler(range(size), shuffle, seed=3), rank, world_size)
        ours = on_rank(sampler_of(range(size), shuffle, 3), rank, world_size)
        assert len(ours) == len(baseline)
        if not with_run:
            continue
        run = connected(ours, by_epoch=True)
        assert len(ours) == len(baseline)
        for epoch in range(4):
            baseline.set_epoch(epoch)
            begin_epoch(ours, run, epoch)
            assert len(ours) == len(baseline)
            assert list(ours) == list(baseline)
            take(ours, run, len(ours))
            ours.end_epoch()


@given(st.integers(1, SIZE), RANKS, st.integers(1, 5), st.booleans())
def test_ranks_share_the_slots_of_an_epoch(kept, world_size, batch_size,
                                           drop_last):
    sizes = []
    for rank in range(world_size):
        sampler = on_rank(sampler_of(), rank, world_size)
        run = connected(sampler, keep(kept), by_epoch=True)
        sizes.append([])
        for epoch in range(3):
            begin_epoch(sampler, run, epoch)
            begin = run.stream.position
            distinct = kept if epoch else SIZE
            per_rank = -(-distinct // world_size)
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
                taken = take(sampler, run, batch_size).indices
                assert taken[rank::world_size].tolist() == batch
                slots += taken.tolist()
                sizes[-1].append(len(batch))
            if not drop_last:
                # No image is left out, and those that come twice fill a step.
                assert len({*slots}) == distinct
                assert len(slots) == world_size * per_rank
            sampler.end_epoch()
            run.stream.advance(run.stream.end)
            assert run.stream.position == begin + world_size * per_rank
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
    iterations = iterations_of(cfg, InfoBatchHook(), size, batch_size,
                               world_size)
    for rank in range(world_size):
        sampler = on_rank(sampler_of(range(size)), rank, world_size)
        begin_epoch(sampler, connected(sampler, by_epoch=True), 0)
        loader = DataLoader(
            range(size), batch_size, sampler=sampler, drop_last=drop_last)
        assert len(list(loader)) == len(loader) == iterations.iters_per_epoch


def test_a_position_by_epochs():
    """Between two epochs: as a run begins that goes on afresh."""
    sampler = on_rank(sampler_of(), 1, 2)
    run = run_of(sampler, keep(4), by_epoch=True)
    run.start_afresh(2 * SIZE)
    sampler.connect(run)
    position = 2 * SIZE
    for epoch, kept, per_rank in ((2, SIZE, 6), (3, 4, 2)):
        begin_epoch(sampler, run, epoch)
        assert run.stream.newest.kept == kept
        assert run.stream.position == position
        assert len(list(sampler)) == len(sampler) == per_rank
        sampler.end_epoch()
        position += 2 * per_rank


@pytest.mark.parametrize('rank', [0, 1])
def test_other_readers_by_epochs(rank):
    """They get full passes of the baseline, which touch nothing, except for
    one that reads before the first batch of the loop: nobody could tell their
    batches apart."""
    sampler = on_rank(sampler_of(), rank, 2)
    baseline = on_rank(DefaultSampler(range(SIZE), seed=5), rank, 2)
    baseline.set_epoch(1)
    run = connected(sampler, keep(4), by_epoch=True)
    begin_epoch(sampler, run, 0)
    list(sampler)
    take(sampler, run, SIZE)
    begin_epoch(sampler, run, 1)
    loop = iter(sampler)
    before = str(run.stream.state_dict())
    first = next(loop)
    with pytest.raises(Refusal, match='than the training loop reads from'):
        next(iter(sampler))
    assert run.stream.slots_left().indices[rank] == first
    assert str(run.stream.state_dict()) == before
    take(sampler, run, 1)
    before = str(run.stream.state_dict())
    assert list(sampler) == list(baseline)
    assert str(run.stream.state_dict()) == before
    assert list(loop) == run.stream.slots_left().indices[rank::2].tolist()
    take(sampler, run, 1)
    sampler.end_epoch()
    assert list(sampler) == list(baseline)


def test_what_is_refused():
    with pytest.raises(
            Refusal,
            match='`sed` in `train_dataloader.sampler`.*d'
            'id you mean `seed`'):
        InfoBatchSampler(range(3), sed=1)
    with pytest.raises(Refusal, match='got an empty dataset: check `data_ro'):
        InfoBatchSampler([])
    sampler = sampler_of()
    head(sampler, 3)
    connected(sampler)
    with pytest.raises(Refusal, match='than the training loop reads from'):
        head(sampler, 1)
    # Or before there was a run.
    sampler = sampler_of()
    head(sampler, 3)
    head(sampler, 3)
    with pytest.raises(Refusal, match='than the training loop reads from'):
        connected(sampler)


def test_a_batch_is_never_larger_than_what_was_issued():
    """So that a batch from elsewhere is seen, see `check_batch`."""
    sampler = sampler_of()
    run = connected(sampler)
    issued = iter(sampler)
    head(issued, 3)
    assert sampler.batch_size(2) == 2 and sampler.batch_size(4) == 3
    take(sampler, run, 2)
    assert sampler.batch_size(4) == 1
