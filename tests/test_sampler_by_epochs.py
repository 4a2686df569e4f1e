# Copyright (c) mmib contributors. All rights reserved.
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.dataset import DefaultSampler
from torch.utils.data import DataLoader

from mmib import InfoBatchHook, InfoBatchSampler
from mmib.config.outlook import clock_of_config
from mmib.pruning import EpochPlan


def on_rank(sampler, rank, world_size):
    """The sampler as another rank has it."""
    sampler.rank, sampler.world_size = rank, world_size
    if isinstance(sampler, DefaultSampler):
        size = len(sampler.dataset)
        sampler.num_samples = -(-size // world_size)
        sampler.total_size = sampler.num_samples * world_size
    return sampler


def prunes(kept):
    """A planner whose plans have so many of 11 images."""

    def draw(start, rng):
        weights = np.full(kept, 11 / kept, np.float32)
        return EpochPlan(rng.permutation(11)[:kept], weights)

    return draw


@pytest.mark.parametrize('shuffle', [True, False])
@pytest.mark.parametrize('world_size', [1, 2, 4])
@pytest.mark.parametrize('with_hook', [True, False])
@pytest.mark.parametrize('size', [1, 3, 16, 101])
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


@given(
    st.integers(1, 11), st.sampled_from([1, 2, 3, 4]), st.integers(1, 5),
    st.booleans(), st.integers(0, 2))
def test_ranks_share_the_slots_of_a_plan(kept, world_size, batch_size,
                                         drop_last, num_workers):
    issued, taken, plans = [], [], []
    for rank in range(world_size):
        sampler = on_rank(
            InfoBatchSampler(range(11), seed=5), rank, world_size)
        sampler.connect(prunes(kept))
        # Workers ask in advance, here without any.
        for epoch in range(3):
            sampler.begin_epoch()
            loader = DataLoader(
                range(11),
                batch_size,
                sampler=sampler,
                drop_last=drop_last,
                collate_fn=list)
            batches = list(loader)
            assert len(batches) == len(loader)
            for batch in batches:
                length = sampler.batch_length(batch_size)
                slots = sampler.take(length)
                assert slots.indices[rank::world_size].tolist() == batch
                taken.append((rank, epoch, len(batch)))
                if rank == 0:
                    plans.append(slots.indices)
            issued.append((rank, len(sampler)))
            sampler.end_epoch()
            assert sampler.position == (
                epoch + 1) * world_size * -(-kept // world_size)
    # All ranks have as many steps, of as many images.
    by_rank = [[of[1:] for of in taken if of[0] == rank]
               for rank in range(world_size)]
    assert all(steps == by_rank[0] for steps in by_rank)
    assert {length for _, length in issued} == {-(-kept // world_size)}
    if not drop_last:
        # No image is left out, and those that come twice fill a step.
        slots = len(np.concatenate(plans))
        assert len(set(np.concatenate(plans)[:kept].tolist())) == kept
        assert slots == 3 * world_size * -(-kept // world_size)


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
def test_state_within_an_epoch_goes_on_with_the_rest(world_size):
    sampler = InfoBatchSampler(range(11), seed=3)
    sampler.connect(prunes(7))
    sampler.begin_epoch()
    plan = list(sampler)
    sampler.take(2)
    later = on_rank(InfoBatchSampler(range(11), seed=9), 0, world_size)
    later.load_state_dict(sampler.state_dict())
    later.connect(prunes(3))
    later.begin_epoch()
    assert len(later) == -(-5 // world_size)
    assert list(later) == (plan[2:] + plan[2:])[:5 +
                                                -5 % world_size:world_size]
    later.take(len(later))
    later.end_epoch()
    later.begin_epoch()
    assert len(list(later)) == -(-3 // world_size)


def test_state_at_the_last_batch_of_an_epoch():
    sampler = InfoBatchSampler(range(11), seed=3)
    sampler.connect(prunes(4))
    sampler.begin_epoch()
    list(sampler)
    sampler.take(4)
    later = InfoBatchSampler(range(11), seed=3)
    later.load_state_dict(sampler.state_dict())
    later.connect(prunes(4))
    later.begin_epoch()
    assert len(later) == 0 and list(later) == []


def test_skip_is_absolute():
    """Between two epochs: as a training begins that goes on afresh."""
    sampler = on_rank(InfoBatchSampler(range(11), seed=3), 1, 2)
    for position in (12, 6):
        sampler.skip(position)
        assert sampler.position == 2 * position
    sampler.connect(prunes(4))
    sampler.begin_epoch()
    assert len(list(sampler)) == 2
