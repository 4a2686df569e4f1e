# Copyright (c) mmib contributors. All rights reserved.
"""Trainings with several real processes over gloo."""
import contextlib
import tempfile
from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch.distributed as dist

from mmib import InfoBatchHook
from mmib.pruning import MeanThreshold
from mmib.scores import ScoreTable
from tests.system.processes import run_ranks
from tests.system.small_training import BASELINE, distribute, small_runner
from tests.test_hook import train

GLOBAL_BATCH = 8
SIZE = 53
# Each pass is about 7 iterations, or 5 where images are pruned.
ITERS = 40

# They wait for all ranks.
COLLECTIVES = ('all_reduce', 'all_gather', 'all_gather_object', 'broadcast',
               'broadcast_object_list', 'barrier', 'gather', 'gather_object',
               'all_gather_into_tensor', 'reduce', 'scatter')


@contextlib.contextmanager
def count_collectives():
    """Yields a function that tells how often each was called so far."""
    with contextlib.ExitStack() as stack:
        mocks = {
            name: stack.enter_context(
                mock.patch.object(dist, name, wraps=getattr(dist, name)))
            for name in COLLECTIVES
        }
        yield lambda: Counter({n: m.call_count for n, m in mocks.items()})


def train_with_global_batch(rank, results):
    world_size = dist.get_world_size()
    with tempfile.TemporaryDirectory() as work_dir:
        runner = small_runner(
            work_dir, **{
                'model.type': 'RecordingSegmentor',
                'train_dataloader.dataset.size': SIZE,
                'train_dataloader.batch_size': GLOBAL_BATCH // world_size,
                'train_dataloader.num_workers': 2,
                'train_cfg.max_iters': ITERS,
                'default_hooks.checkpoint.interval': 9,
            })
        model = runner.model
        if world_size > 1:
            distribute(runner)
        # What was recorded when a plan was drawn or a checkpoint written.
        records, plans, saves = [], [], []
        record, draw = ScoreTable.record, MeanThreshold.__call__
        save_checkpoint = runner.save_checkpoint
        runner.save_checkpoint = lambda *args, **kwargs: (saves.append(
            len(records)), save_checkpoint(*args, **kwargs))
        ScoreTable.record = lambda *args: (records.append(1), record(*args))[1]
        MeanThreshold.__call__ = lambda *args: (plans.append(len(records)),
                                                draw(*args))[1]
        with count_collectives() as collectives:
            spy = train(runner)
        ScoreTable.record, MeanThreshold.__call__ = record, draw
    results[rank] = dict(
        steps=model.steps,
        tables=spy.tables,
        epochs=spy.epochs,
        losses=spy.losses,
        saves=saves,
        plans=plans,
        collectives=collectives())


@pytest.fixture(scope='module')
def trainings():
    """The same training on 1, 2 and 4 ranks."""
    return {n: run_ranks(train_with_global_batch, n) for n in (1, 2, 4)}


@pytest.mark.parametrize('world_size', [2, 4])
def test_ranks_train_as_one_with_the_same_global_batch(trainings, world_size):
    """The same slots with the same weights in each step, and the same scores,
    over three virtual epochs that prune and more."""
    one, = trainings[1]
    ranks = trainings[world_size]
    assert sum(epoch.size < SIZE for epoch in one['epochs']) >= 3
    for rank in ranks:
        for ours, theirs in zip(one['epochs'], rank['epochs'], strict=True):
            assert ours[:3] == theirs[:3] and ours.tiers == theirs.tiers
            assert ours.mean_score == pytest.approx(theirs.mean_score, 1e-5)
    for step in range(ITERS):
        indices, raw, weights = one['steps'][step]
        together = [rank['steps'][step] for rank in ranks]
        # Rank k has the slots k, k + W, ...
        for k, (theirs, their_raw, their_weights) in enumerate(together):
            assert theirs == indices[k::world_size]
            np.testing.assert_array_equal(their_weights,
                                          weights[k::world_size])
            np.testing.assert_allclose(
                their_raw, raw[k::world_size], rtol=1e-5)
        mean = np.mean([rank['losses'][step] for rank in ranks])
        assert mean == pytest.approx(one['losses'][step], rel=1e-5)
    # Merged for the checkpoint of the last iteration.
    for rank in ranks:
        np.testing.assert_array_equal(rank['tables'][-1],
                                      ranks[0]['tables'][-1])
    latest = np.stack([rank['tables'][-1] for rank in ranks]).max(0)
    assert (latest != 1).all()
    np.testing.assert_allclose(latest, one['tables'][-1], rtol=1e-5)


def train_baseline(rank, results):
    with tempfile.TemporaryDirectory() as work_dir:
        runner = small_runner(
            work_dir, **{
                **BASELINE, 'train_cfg.max_iters': ITERS,
                'default_hooks.checkpoint.interval': 9
            })
        distribute(runner)
        with count_collectives() as collectives:
            runner.train()
    results[rank] = collectives()


def test_one_collective_a_plan_and_a_checkpoint(trainings):
    """And no more than those of the baseline. None where nothing was
    recorded since the last one: the last checkpoint is in annealing."""
    baseline = run_ranks(train_baseline, 2)
    for rank, of_baseline in zip(trainings[2], baseline, strict=True):
        assert rank['saves'] == [9, 18, 27, 34, 34] and len(rank['plans']) > 3
        assert rank['collectives'] - of_baseline == Counter(
            all_reduce=len({*rank['plans'], *rank['saves']}))
        assert not of_baseline - rank['collectives']


def draw_with_a_generator_of_the_rank(rank, results):
    rngs = np.random.default_rng(rank)
    with tempfile.TemporaryDirectory() as work_dir:
        runner = small_runner(work_dir, custom_hooks=[])
        runner.register_hook(
            InfoBatchHook(lambda scores, rng: MeanThreshold()(scores, rngs)))
        distribute(runner)
        with pytest.raises(
                RuntimeError,
                match='ranks drew different plans.*'
                'its argument `rng`'):
            runner.train()
        results[rank] = runner.iter


def test_ranks_that_draw_different_plans():
    """They stop when they next look."""
    assert set(run_ranks(draw_with_a_generator_of_the_rank, 2)) == {3}
