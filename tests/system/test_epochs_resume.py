# Copyright (c) mmib contributors. All rights reserved.
"""Trainings that count epochs go on within an epoch."""
import functools

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import FlexibleRunner

from mmib.report.read import read_run
from tests.system.epoch_training import (BATCH, MAX_EPOCHS, SCHEDULES, SIZE,
                                         EdgeLog, by_epoch, edges, train_rank)
from tests.system.processes import run_ranks
from tests.system.small_training import (StepLog, column, infobatch_hook,
                                         read_lines, small_config,
                                         small_runner, train, weights_of)


@HOOKS.register_module()
class SaveAt(Hook):
    """Saves after given iterations, as a checkpoint by iteration does."""

    priority = 'VERY_LOW'

    def __init__(self, iters):
        self.iters = iters

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 in self.iters:
            runner.save_checkpoint(
                runner.work_dir,
                f'at_{runner.iter + 1}.pth',
                by_epoch=False,
                meta=dict(epoch=runner.epoch, iter=runner.iter + 1))


def resume(work_dir, path, **changes):
    changes = dict(changes, resume=True, load_from=str(path))
    runner = small_runner(work_dir, **changes)
    return runner, train(runner)


@pytest.mark.parametrize('drop_last, num_workers', [(False, 2), (True, 0)])
def test_resume_at_any_iteration(tmp_path, drop_last, num_workers):
    """Within an epoch, at its last batch and at its edge: all that follows is
    the same to the last bit."""
    changes = functools.partial(
        by_epoch, dict(type='Neyman', ratio=0.6, num_strata=3, min_keep=0.3),
        **{
            'train_dataloader.drop_last': drop_last,
            'train_dataloader.num_workers': num_workers,
            'param_scheduler': SCHEDULES['warm-up and cosine'],
            'default_hooks.checkpoint.interval': 2,
        })
    runner = small_runner(tmp_path, **changes())
    log, rates = StepLog(), RateLog()
    for hook in (log, rates, SaveAt(range(1, 40, 5))):
        runner.register_hook(hook)
    runner.train()
    steps = log.steps
    assert max(map(max, column(steps, 'weights'))) > 1
    names = [f'at_{i}' for i in range(1, min(len(steps), 40), 5)] + ['epoch_4']
    for name in names:
        again = small_runner(
            tmp_path / name,
            **changes(resume=True, load_from=str(tmp_path / f'{name}.pth')))
        later, later_rates = StepLog(), RateLog()
        for hook in (later, later_rates):
            again.register_hook(hook)
        again.train()
        start = later.steps[0]['iter']
        assert later.steps == steps[start:]
        assert later_rates.rates == rates.rates[start:]
        torch.testing.assert_close(
            weights_of(again), weights_of(runner), rtol=0, atol=0)
        counts = [infobatch_hook(r).counts for r in (runner, again)]
        for array in ('visits', 'pruned'):
            np.testing.assert_array_equal(*(getattr(c, array) for c in counts))


@HOOKS.register_module()
class RateLog(Hook):

    priority = 'LOWEST'

    def __init__(self):
        self.rates = []

    def after_train_iter(self, runner, *args, **kwargs):
        self.rates.append(runner.optim_wrapper.get_lr()['lr'][0])


def test_resume_on_other_ranks(tmp_path):
    """The rest of the epoch goes to them, and no image twice but to fill a
    step."""
    runner = small_runner(tmp_path, **by_epoch())
    log = StepLog()
    for hook in (log, SaveAt([10])):
        runner.register_hook(hook)
    runner.train()
    path = str(tmp_path / 'at_10.pth')
    ranks = run_ranks(
        functools.partial(
            train_rank,
            work_dir=str(tmp_path / 'ranks'),
            changes=by_epoch(resume=True, load_from=path)), 2)
    state = torch.load(path, weights_only=False)['infobatch']
    rest = state['sampler']['indices'].tolist()
    steps = -(-(-(-len(rest) // 2)) // BATCH)
    seen = [
        image for step in range(steps) for pair in zip(*(rank[step]['images']
                                                         for rank in ranks))
        for image in pair
    ]
    assert seen[:len(rest)] == rest
    assert len(ranks[0]) == len(ranks[1]) < len(log.steps) - 10


def test_resume_from_a_training_without_infobatch(tmp_path):
    """It begins anew in its epoch."""
    runner = small_runner(
        tmp_path, **by_epoch(None, **{'default_hooks.checkpoint.interval': 3}))
    runner.train()
    runner, steps = resume(tmp_path / 'pruned', tmp_path / 'epoch_3.pth',
                           **by_epoch())
    images = column(steps, 'images')
    # A full epoch first.
    assert sorted(sum(images[:8], [])) == list(range(SIZE))
    assert len(steps) < 5 * 8
    path, = (tmp_path / 'pruned').glob('*/infobatch.jsonl')
    ends = read_lines(path)[-1]['ends']
    assert ends['visits'] == 5 * SIZE
    assert ends['pruned'] == 5 * SIZE - sum(map(len, images))
    assert read_run(str(tmp_path / 'pruned')).annealing_iter == runner.iter - 8
    assert max(map(max, column(steps, 'weights'))) > 1


def test_an_iteration_based_checkpoint_starts_afresh(tmp_path):
    small_runner(
        tmp_path, **{
            'train_dataloader.dataset.size': SIZE,
            'default_hooks.checkpoint.interval': 24
        }).train()
    runner, steps = resume(tmp_path / 'epochs', tmp_path / 'iter_24.pth',
                           **by_epoch())
    assert infobatch_hook(runner).planner.accounting.unit == 'epoch'


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    """A training of which checkpoints are kept, and what its edges were."""
    work_dir = tmp_path_factory.mktemp('saved')
    runner = small_runner(
        work_dir,
        **by_epoch(
            param_scheduler=SCHEDULES['warm-up and cosine'],
            **{'default_hooks.checkpoint.interval': 4}))
    log = EdgeLog()
    for hook in (log, SaveAt([10])):
        runner.register_hook(hook)
    runner.train()
    return work_dir, [*log.rates, runner.optim_wrapper.get_lr()['lr'][0]]


@pytest.mark.parametrize('batch_size, drop_last', [(1, False), (8, False),
                                                   (8, True)])
@pytest.mark.parametrize('name', ['at_10', 'epoch_4'])
def test_resume_with_another_batch_size(saved, tmp_path, name, batch_size,
                                        drop_last):
    """The learning rate goes on as it was, and what is to come is known."""
    work_dir, rates = saved
    log = edges(
        tmp_path,
        **by_epoch(
            param_scheduler=SCHEDULES['warm-up and cosine'],
            resume=True,
            load_from=str(work_dir / f'{name}.pth'),
            **{
                'train_dataloader.batch_size': batch_size,
                'train_dataloader.drop_last': drop_last,
            }))
    # Where nothing is left of an epoch that fills a batch, the next one makes
    # up for its learning rates.
    np.testing.assert_allclose(log.rates[2:], rates[-len(log.rates) + 2:])
    assert log.expected[-1] == log.iters[-1]
    # Epochs are of 4 or 5 iterations of 3 images.
    assert abs(log.expected[0] - log.iters[-1]) <= 4 * 3 / batch_size + 4


@pytest.mark.parametrize('max_epochs', [MAX_EPOCHS, 14])
def test_resume_of_a_training_that_has_ended(tmp_path, max_epochs):
    changes = {'default_hooks.checkpoint.interval': MAX_EPOCHS}
    small_runner(tmp_path, **by_epoch(**changes)).train()
    runner, steps = resume(tmp_path / 'longer',
                           tmp_path / f'epoch_{MAX_EPOCHS}.pth',
                           **by_epoch(**{'train_cfg.max_epochs': max_epochs}))
    log, = (tmp_path / 'longer').glob('*/*.log')
    log = log.read_text()
    assert ('prunes until' in log) is (max_epochs > MAX_EPOCHS)
    assert ('annealing begins at epoch 12 instead of 7' in log) is bool(steps)
    if steps:
        weights = np.concatenate(column(steps, 'weights'))
        assert weights.sum() == pytest.approx(6 * SIZE, rel=0.01)
        images = column(steps, 'images')
        assert all(
            sorted(sum(part, [])) == list(range(SIZE))
            for part in (images[-8:], images[-16:-8]))
        assert len(steps) < 0.8 * 6 * 8


@HOOKS.register_module()
class SaveAtEdge(Hook):
    """Saves when an epoch is over, before InfoBatchHook has ended it."""

    priority = 'HIGH'

    def after_train_epoch(self, runner):
        if runner.epoch == 2:
            runner.save_checkpoint(runner.work_dir, 'edge.pth')


def test_resume_from_what_a_hook_has_saved_at_an_edge(tmp_path):
    runner = small_runner(tmp_path,
                          **by_epoch(**{'train_dataloader.drop_last': True}))
    runner.register_hook(SaveAtEdge())
    expected = train(runner)
    _, steps = resume(tmp_path / 'resumed', tmp_path / 'edge.pth',
                      **by_epoch(**{'train_dataloader.drop_last': True}))
    assert steps == expected[-len(steps):]
    state = torch.load(tmp_path / 'edge.pth', weights_only=False)
    assert steps[0]['iter'] == state['meta']['iter']
    assert state['infobatch']['sampler']['is_open']


def flexible_runner(work_dir, **changes):
    return FlexibleRunner.from_cfg(
        small_config(
            work_dir,
            **by_epoch(
                env_cfg={},
                strategy=dict(type='SingleDeviceStrategy'),
                **changes)))


def test_flexible_runner(saved, tmp_path):
    changes = {
        'param_scheduler': SCHEDULES['warm-up and cosine'],
        'default_hooks.checkpoint.interval': 3
    }
    runner, log = flexible_runner(tmp_path, **changes), EdgeLog()
    runner.register_hook(log)
    steps = train(runner)
    np.testing.assert_allclose(log.rates, saved[1][:-1])
    resumed = flexible_runner(
        tmp_path / 'resumed',
        resume=True,
        load_from=str(tmp_path / 'epoch_3.pth'),
        **changes)
    later = train(resumed)
    assert later == steps[-len(later):] and len(later) > 20
