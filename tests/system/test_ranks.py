# Copyright (c) mmib contributors. All rights reserved.
"""Trainings with several real processes over gloo."""
import functools
import tempfile
from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch.distributed as dist
from mmengine.dist import master_only
from mmengine.hooks import Hook

from mmib import InfoBatchHook
from mmib.errors import Refusal
from mmib.pruning import MeanThreshold
from tests.helpers.processes import run_ranks
from tests.helpers.segmentors import (ANNEALING_ITER, BASELINE, MAX_ITERS,
                                      build, distribute, infobatch_hook,
                                      small_runner, train)

GLOBAL_BATCH = 8
# Each pass is about 7 iterations, or 5 where images are pruned.
SIZE = 53

# They wait for all ranks.
COLLECTIVES = ('all_reduce', 'all_gather', 'all_gather_object', 'broadcast',
               'broadcast_object_list', 'barrier', 'gather', 'gather_object',
               'all_gather_into_tensor', 'reduce', 'scatter')


def train_with_global_batch(rank, results, **changes):
    world_size = dist.get_world_size()
    with tempfile.TemporaryDirectory() as work_dir:
        runner = build(
            work_dir, **{
                'train_dataloader.dataset.size': SIZE,
                'train_dataloader.batch_size': GLOBAL_BATCH // world_size,
                'train_dataloader.num_workers': 2,
                'default_hooks.checkpoint.interval': 9,
                **changes
            })
        distribute(runner)
        # After how many iterations a checkpoint was written, and when a plan
        # was drawn.
        saves, plans, hook = [], [], infobatch_hook(runner)
        save = runner.save_checkpoint
        runner.save_checkpoint = lambda *args, **kwargs: (saves.append(
            runner.iter + 1), save(*args, **kwargs))
        if hook:
            hook.plan_observers.append(lambda *drawn: plans.append(
                (runner.iter, *drawn)))
        with mock.patch.multiple(
                dist,
                **{n: mock.Mock(wraps=getattr(dist, n))
                   for n in COLLECTIVES}):
            steps = train(runner)
            collectives = Counter(
                {n: getattr(dist, n).call_count
                 for n in COLLECTIVES})
        results[rank] = dict(
            steps=steps,
            plans=[epoch for _, epoch, _ in plans],
            drawn=[
                at for at, epoch, plan in plans
                if epoch.annealing or not plan.is_full
            ],
            saves=saves,
            lookahead=hook and hook.run.schedule.min_gap,
            scores=hook and hook.run.table.scores,
            collectives=collectives)


@pytest.fixture(scope='module')
def trainings():
    """The same training on 1 and 2 ranks."""
    return {n: run_ranks(train_with_global_batch, n) for n in (1, 2)}


def test_ranks_train_as_one_with_the_same_global_batch(trainings):
    """The same slots with the same weights in each step, and the same scores,
    over three virtual epochs that prune and more."""
    one, = trainings[1]
    ranks = trainings[2]
    assert sum(plan.kept < SIZE for plan in one['plans']) >= 3
    for rank in ranks:
        # 2 workers have 2 batches each, and slots of all ranks count.
        assert rank['lookahead'] == 2 * 2 * GLOBAL_BATCH
        for ours, theirs in zip(one['plans'], rank['plans'], strict=True):
            for field in ('first_slot', 'kept'):
                assert getattr(ours, field) == getattr(theirs, field)
            for tier, other in zip(ours.tiers, theirs.tiers, strict=True):
                assert tier[:2] + tier[3:] == other[:2] + other[3:]
            # Upper edges are scores.
            uppers = ([tier.upper or 0 for tier in plan.tiers]
                      for plan in (ours, theirs))
            np.testing.assert_allclose(*uppers, rtol=1e-5)
            assert ours.mean_score == pytest.approx(theirs.mean_score, 1e-5)
    for number, expected in enumerate(one['steps']):
        together = [rank['steps'][number] for rank in ranks]
        # Rank k has the slots k, k + 2, ...
        for k, theirs in enumerate(together):
            for name in ('images', 'weights', 'relative_weights'):
                assert theirs[name] == expected[name][k::2]
            assert ('scores' in theirs) is (number < ANNEALING_ITER)
            if 'scores' in theirs:
                np.testing.assert_allclose(
                    theirs['scores'], expected['scores'][k::2], rtol=1e-5)
        mean = np.mean([theirs['loss'] for theirs in together])
        assert mean == pytest.approx(expected['loss'], rel=1e-5)
    # Merged for the last checkpoint.
    for rank in ranks:
        np.testing.assert_array_equal(rank['scores'], ranks[0]['scores'])
    assert (one['scores'] != 1).all()
    np.testing.assert_allclose(ranks[0]['scores'], one['scores'], rtol=1e-5)


def test_two_collectives_a_plan_and_a_checkpoint(trainings):
    """A small one, and one of what was recorded. And one at the start, whether
    ranks have the same images. None where nothing was recorded since the last
    one: the last checkpoint is in annealing, and the one before has what was
    in flight when the plan of annealing was drawn."""
    baseline = run_ranks(
        functools.partial(train_with_global_batch, **BASELINE), 2)
    for rank, before in zip(trainings[2], baseline, strict=True):
        assert rank['saves'] == before['saves'] == [9, 18, 27, 36, MAX_ITERS]
        assert sum(at < ANNEALING_ITER for at in rank['drawn']) > 3
        merges = {*rank['drawn'], 9, 18, 27, 36}
        assert rank['collectives'] - before['collectives'] == Counter(
            all_gather=2 * len(merges) + 1)
        assert not before['collectives'] - rank['collectives']


class SaveOnce(Hook):
    """Saves on one rank alone, and ends the run."""

    @master_only
    def save(self, runner):
        runner.save_checkpoint(runner.work_dir, 'mine.pth')

    def after_train_iter(self, runner, **kwargs):
        self.save(runner)
        raise StopIteration


def save_on_one_rank(rank, results):
    with tempfile.TemporaryDirectory() as work_dir:
        runner = small_runner(work_dir)
        runner.register_hook(SaveOnce())
        distribute(runner)
        with pytest.raises(StopIteration if rank else Refusal) as stop:
            runner.train()
        results[rank] = rank or str(stop.value)


def test_a_checkpoint_of_one_rank_alone():
    """It would wait for the other ranks forever."""
    text, _ = run_ranks(save_on_one_rank, 2)
    assert '`@master_only`' in text


def draw_with_a_generator_of_the_rank(rank, results):
    rngs = np.random.default_rng(rank)
    with tempfile.TemporaryDirectory() as work_dir:
        runner = small_runner(work_dir, custom_hooks=[])
        runner.register_hook(
            InfoBatchHook(lambda scores, rng: MeanThreshold()(scores, rngs)))
        distribute(runner)
        with pytest.raises(
                Refusal, match='ranks drew different plans.*'
                'its argument `rng`'):
            runner.train()
        results[rank] = runner.iter


def test_ranks_that_draw_different_plans():
    """They stop when they next look."""
    assert set(run_ranks(draw_with_a_generator_of_the_rank, 2)) == {3}
