# Copyright (c) mmib contributors. All rights reserved.
"""Trainings that count epochs."""
import functools
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine._strategy.deepspeed import DeepSpeedOptimWrapper
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.registry import HOOKS
from mmengine.runner import FlexibleRunner
from mmseg.registry import DATASETS

from mmib.compat import expect_iters
from mmib.report.read import read_run
from tests.system.processes import run_ranks
from tests.system.small_training import (IndexDataset, StepLog, column,
                                         distribute, infobatch_hook,
                                         read_lines, small_config,
                                         small_runner, train, weights_of)

MAX_EPOCHS = 8
# Images of the data set, and of a batch.
SIZE, BATCH = 23, 3
PRUNES = dict(type='Budget', ratio=0.6)
KEEPS = dict(type='RandomPruning', ratio=0.)


def by_epoch(policy=PRUNES, **changes):
    """Changes of ``small_config`` for a training that counts epochs, the
    baseline without a policy."""
    hooks = [dict(type='InfoBatchHook', policy=policy)] if policy else []
    return {
        'train_cfg': dict(
            _delete_=True, type='EpochBasedTrainLoop', max_epochs=MAX_EPOCHS),
        'train_dataloader.dataset.size': SIZE,
        'train_dataloader.batch_size': BATCH,
        'train_dataloader.sampler.type': 'InfoBatchEpochSampler'
        if policy else 'DefaultSampler',
        'custom_hooks': hooks,
        'log_processor.by_epoch': True,
        'default_hooks.checkpoint': dict(interval=1000, by_epoch=True),
        'optim_wrapper.optimizer.momentum': 0.9,
        **changes,
    }


@HOOKS.register_module()
class EdgeLog(Hook):
    """Writes down the learning rate, the iteration and what is expected at
    the edge of each epoch."""

    priority = 'LOWEST'

    def __init__(self):
        self.rates, self.iters, self.expected = [], [], []

    def before_train_epoch(self, runner):
        self.rates.append(runner.optim_wrapper.get_lr()['lr'][0])
        self.iters.append(runner.iter)
        self.expected.append(runner.max_iters)


def edges(work_dir, **changes):
    runner = small_runner(work_dir, **changes)
    log = EdgeLog()
    runner.register_hook(log)
    runner.train()
    log.rates.append(runner.optim_wrapper.get_lr()['lr'][0])
    log.iters.append(runner.iter)
    return log


SCHEDULES = {
    'steps': [dict(type='MultiStepLR', by_epoch=True, milestones=[3, 6])],
    'cosine': [
        dict(type='CosineAnnealingLR', by_epoch=True, T_max=MAX_EPOCHS, end=8)
    ],
    'warm-up and cosine': [
        dict(
            type='LinearLR',
            start_factor=0.01,
            by_epoch=True,
            end=2,
            convert_to_iter_based=True),
        dict(
            type='CosineAnnealingLR',
            by_epoch=True,
            begin=2,
            end=MAX_EPOCHS,
            T_max=MAX_EPOCHS - 2,
            convert_to_iter_based=True)
    ],
    'one cycle': [
        dict(
            type='OneCycleLR',
            eta_max=0.05,
            total_steps=MAX_EPOCHS,
            by_epoch=True,
            convert_to_iter_based=True)
    ],
}


@pytest.mark.parametrize('drop_last', [False, True])
@pytest.mark.parametrize('schedule', SCHEDULES)
def test_the_learning_rate_at_each_edge_is_that_of_the_baseline(
        tmp_path, schedule, drop_last):
    changes = dict(
        param_scheduler=SCHEDULES[schedule],
        **{'train_dataloader.drop_last': drop_last})
    baseline = edges(tmp_path / 'baseline', **by_epoch(None, **changes))
    pruned = edges(tmp_path / 'pruned', **by_epoch(**changes))
    np.testing.assert_allclose(pruned.rates, baseline.rates, rtol=1e-9)
    assert len(set(baseline.rates)) > 2
    assert pruned.iters[-1] < 0.75 * baseline.iters[-1]
    # The remaining time is about right early, and exact in the end.
    assert pruned.expected[-1] == pruned.iters[-1]
    assert abs(pruned.expected[1] - pruned.iters[-1]) <= 6


@pytest.mark.parametrize('drop_last', [False, True])
@pytest.mark.parametrize('num_workers', [0, 2])
def test_ratio_0_is_the_baseline(tmp_path, drop_last, num_workers):
    changes = {
        'train_cfg.max_epochs': 3,
        'train_dataloader.drop_last': drop_last,
        'train_dataloader.num_workers': num_workers,
        'train_dataloader.persistent_workers': num_workers > 0,
        'param_scheduler': SCHEDULES['warm-up and cosine'],
    }
    steps, ends = [], []
    for policy in (None, KEEPS):
        runner = small_runner(tmp_path / str(policy and 'ours'),
                              **by_epoch(policy, **changes))
        steps.append(train(runner))
        ends.append(weights_of(runner))
    for name in ('iter', 'images'):
        assert column(steps[0], name) == column(steps[1], name)
    # Pixels are summed image by image.
    np.testing.assert_allclose(
        column(steps[0], 'loss'), column(steps[1], 'loss'), rtol=1e-5)
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


def train_rank(rank, results, work_dir, changes):
    runner = small_runner(work_dir, **changes)
    distribute(runner)
    results[rank] = train(runner)


@pytest.mark.parametrize('world_size', [2, 4])
def test_ratio_0_is_the_baseline_on_ranks(tmp_path, world_size):
    baseline, ours = (
        run_ranks(
            functools.partial(
                train_rank,
                work_dir=str(tmp_path / str(policy and 'ours')),
                changes=by_epoch(policy, **{'train_cfg.max_epochs': 3})),
            world_size) for policy in (None, KEEPS))
    for before, after in zip(baseline, ours):
        assert column(before, 'images') == column(after, 'images')
        np.testing.assert_allclose(
            column(before, 'loss'), column(after, 'loss'), rtol=1e-5)


def test_what_is_pruned_and_what_it_weighs(tmp_path):
    runner = small_runner(tmp_path, **by_epoch())
    steps = train(runner)
    images = column(steps, 'images')
    per_epoch = infobatch_hook(runner).planner.num_epochs
    assert per_epoch == MAX_EPOCHS
    # The first epoch, and the last after delta * 8 = 7, are full.
    assert sorted(sum(images[:8], [])) == list(range(SIZE))
    assert sorted(sum(images[-8:], [])) == list(range(SIZE))
    total = sum(map(len, images))
    assert total == pytest.approx(0.6 * MAX_EPOCHS * SIZE, abs=8)
    weights = np.concatenate(column(steps, 'weights'))
    # Weights make up for what is pruned, but for rounding.
    assert weights.sum() == pytest.approx(MAX_EPOCHS * SIZE, rel=0.01)
    for step in steps[:-8]:
        mean = np.multiply(step['weights'], step['scores']).mean()
        assert step['loss'] == pytest.approx(mean, rel=1e-5)
    accounting = infobatch_hook(runner).planner.accounting
    saved = infobatch_hook(runner).planner.saved_iters(
        infobatch_hook(runner).sampler.position)
    assert accounting.iters_per_epoch == 8
    assert saved == MAX_EPOCHS * 8 - len(steps)


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
        by_epoch, dict(type='Neyman', ratio=0.6, num_strata=3), **{
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


@HOOKS.register_module()
class ReadsData(Hook):
    """Reads the training data between epochs, as PreciseBNHook does."""

    def __init__(self):
        self.read = []

    def after_train_epoch(self, runner):
        self.read.append([
            int(image[0, 0, 0]) for batch in runner.train_dataloader
            for image in batch['inputs']
        ])


def test_others_read_full_passes_between_epochs(tmp_path):
    expected = train(small_runner(tmp_path / 'alone', **by_epoch()))
    runner = small_runner(tmp_path, **by_epoch())
    reader = ReadsData()
    runner.register_hook(reader)
    assert train(runner) == expected
    assert len(reader.read) == MAX_EPOCHS
    assert all(sorted(images) == list(range(SIZE)) for images in reader.read)


def test_what_is_accumulated_last_counts(tmp_path):
    """The last gradients may be fewer than those of a step."""
    runner = small_runner(
        tmp_path, **by_epoch(**{'optim_wrapper.accumulative_counts': 3}))
    runner.train()
    wrapper = runner.optim_wrapper
    assert wrapper._inner_count == wrapper._max_counts == runner.iter
    parameters = [p for p in runner.model.parameters() if p.requires_grad]
    assert runner.iter % 3 != 0
    # What wasn't taken would still be there.
    assert all(p.grad is None or not p.grad.any() for p in parameters)


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


def test_priority_of_the_hook_changes_nothing(tmp_path):
    images = [
        column(
            train(
                small_runner(
                    tmp_path / name,
                    **by_epoch(
                        KEEPS,
                        custom_hooks=[
                            dict(
                                type='InfoBatchHook',
                                policy=KEEPS,
                                priority=name)
                        ],
                        **{'train_cfg.max_epochs': 3}))), 'images')
        for name in ('HIGH', 'NORMAL')
    ]
    assert images[0] == images[1]


def test_a_plan_that_fills_no_batch(tmp_path):
    """Its epoch has no iteration, the user is told, and the learning rate is
    made up for."""
    changes = {
        'train_dataloader.batch_size': 20,
        'train_dataloader.drop_last': True,
        'param_scheduler': SCHEDULES['warm-up and cosine'],
    }
    log = edges(tmp_path, **by_epoch(**changes))
    assert log.iters == [0, 1, 1, 1, 1, 1, 1, 1, 2]
    baseline = edges(tmp_path / 'baseline', **by_epoch(None, **changes))
    assert log.rates[-1] == pytest.approx(baseline.rates[-1])
    text, = tmp_path.glob('*/*.log')
    assert text.read_text().count('nothing is trained on in epoch') == 6


def test_validation_at_its_epochs(tmp_path):
    """With the average of EMAHook, the best checkpoint, and an early end."""
    changes = {
        'model.test_cfg': dict(mode='whole'),
        'model.auxiliary_head': None,
        'val_dataloader': dict(
            batch_size=1,
            num_workers=0,
            sampler=dict(type='DefaultSampler', shuffle=False),
            dataset=dict(type='ValDataset', size=3)),
        'val_evaluator': dict(type='IoUMetric', iou_metrics=['mIoU']),
        'val_cfg': dict(type='ValLoop'),
        'train_cfg.val_interval': 3,
        'train_cfg.dynamic_intervals': [(4, 1)],
        'default_hooks.checkpoint.save_best': 'mIoU',
    }
    hooks = [
        dict(type='InfoBatchHook', policy=PRUNES),
        dict(type='EMAHook'),
        dict(
            type='EarlyStoppingHook',
            monitor='mIoU',
            min_delta=200,
            rule='greater',
            patience=2)
    ]
    runner = small_runner(tmp_path, **by_epoch(custom_hooks=hooks, **changes))
    runner.train()
    log, = tmp_path.glob('*/*.log')
    log = log.read_text()
    assert re.findall(r'Epoch\(val\) \[(\d)\]\[3/3\]', log) == list('345')
    assert runner.epoch == 5
    assert f'{runner.iter} iterations covered as many passes as 40' in log
    # Annealing would have begun later.
    assert read_run(str(tmp_path)).annealing_iter is None
    best, = tmp_path.glob('best_*.pth')
    # It has no optimizer, but where the training was.
    again = small_runner(
        tmp_path / 'again',
        **by_epoch(custom_hooks=hooks[:2], resume=True, load_from=str(best)))
    steps = train(again)
    assert infobatch_hook(again).planner.num_epochs == MAX_EPOCHS
    assert sorted(sum(column(steps[-8:], 'images'), [])) == list(range(SIZE))


@DATASETS.register_module()
class ListedImages(IndexDataset):

    def full_init(self):
        """``RepeatDataset`` asks for it."""

    def get_cat_ids(self, index):
        return [index == 5]


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


def test_deepspeed_counts_by_itself():
    wrapper = DeepSpeedOptimWrapper(torch.optim.SGD([torch.ones(1)], lr=1.))
    runner = SimpleNamespace(
        train_loop=SimpleNamespace(),
        message_hub=MessageHub.get_instance('counts'),
        optim_wrapper=wrapper)
    expect_iters(runner, 7, is_last=True)
    assert runner.train_loop._max_iters == 7


def test_repeats_are_one_epoch(tmp_path):
    changes = by_epoch()
    changes.pop('train_dataloader.dataset.size')
    changes['train_dataloader.dataset'] = dict(
        _delete_=True,
        type='RepeatDataset',
        times=3,
        dataset=dict(type='ListedImages', size=SIZE))
    runner = small_runner(tmp_path, **changes)
    assert len(runner.train_loop.dataloader) == 23
    steps = train(runner)
    assert sorted(sum(column(steps[:23], 'images'),
                      [])) == sorted(list(range(SIZE)) * 3)
    assert infobatch_hook(runner).scores.num_images == SIZE
    assert max(map(max, column(steps, 'weights'))) > 1


@pytest.mark.parametrize('dataset, size, images', [
    (dict(type='ClassBalancedDataset', oversample_thr=0.5), 26, SIZE),
    (dict(type='ConcatDataset'), 31, SIZE + 4),
])
def test_wrapped_data_sets(tmp_path, dataset, size, images):
    part = dict(type='ListedImages', size=SIZE)
    if dataset['type'] == 'ConcatDataset':
        few = dict(type='ListedImages', size=4)
        repeated = dict(type='RepeatDataset', times=2, dataset=few)
        parts = dict(datasets=[part, repeated])
    else:
        parts = dict(dataset=part)
    changes = by_epoch()
    changes.pop('train_dataloader.dataset.size')
    changes['train_dataloader.dataset'] = dict(dataset, **parts, _delete_=True)
    runner = small_runner(tmp_path, **changes)
    steps = train(runner)
    assert infobatch_hook(runner).scores.num_images == images
    weights = np.concatenate(column(steps, 'weights'))
    assert weights.sum() == pytest.approx(MAX_EPOCHS * size, rel=0.01)
    assert len(weights) == pytest.approx(0.6 * MAX_EPOCHS * size, abs=10)


@pytest.mark.parametrize('changes, match', [
    ({
        'train_dataloader.sampler.type': 'InfoBatchSampler'
    }, "sampler.type = 'InfoBatchEpochSampler'"),
    ({
        'train_dataloader.sampler.type': 'DefaultSampler'
    }, "sampler.type = 'InfoBatchEpochSampler'"),
    ({
        'train_cfg.max_epochs': 1
    }, 'max_epochs.* needs 2 or more'),
    ({
        'custom_hooks': [
            dict(
                type='InfoBatchHook', policy=dict(type='Neyman', full_iters=9))
        ]
    }, 'set `ratio` there'),
    ({
        'train_dataloader.batch_size': 50,
        'train_dataloader.drop_last': True
    }, '`drop_last` leaves them all'),
    ({
        'custom_hooks': []
    }, "InfoBatchEpochSampler is read before .*to 'DefaultSampler'"),
])
def test_what_is_refused(tmp_path, changes, match):
    runner = small_runner(tmp_path, **{**by_epoch(), **changes})
    with pytest.raises((ValueError, RuntimeError), match=match):
        runner.train()
