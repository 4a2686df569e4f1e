# Copyright (c) mmib contributors. All rights reserved.
"""Trainings that count epochs."""
import functools
import re

import numpy as np
import pytest
from mmengine.hooks import Hook
from mmseg.registry import DATASETS

from mmib.errors import Refusal
from mmib.report.read import read_run
from tests.helpers.epochs import (KEEPS, MAX_EPOCHS, PRUNES, SCHEDULES, SIZE,
                                  by_epoch, edges)
from tests.helpers.processes import run_ranks
from tests.helpers.segmentors import (VALIDATION, IndexDataset, build, column,
                                      infobatch_hook, load, read_log,
                                      small_head, state_of, train,
                                      train_and_note, train_rank)


def epoch_of(runner):
    """The epoch of the plan in training, from 1."""
    return infobatch_hook(runner).run.stream.current.record.epoch


@pytest.mark.parametrize('schedule, changes', [
    *((schedule, {}) for schedule in SCHEDULES),
    ('steps', dict(env_cfg={}, strategy=dict(type='SingleDeviceStrategy'))),
    ('one cycle', {
        'train_dataloader.drop_last': True
    }),
])
def test_the_learning_rate_at_each_edge_is_that_of_the_baseline(
        tmp_path, schedule, changes):
    changes = dict(changes, param_scheduler=SCHEDULES[schedule])
    baseline = edges(tmp_path / 'baseline', **by_epoch(None, **changes))
    pruned = edges(tmp_path / 'pruned', **by_epoch(**changes))
    np.testing.assert_allclose(pruned.rates, baseline.rates, rtol=1e-9)
    assert len(set(baseline.rates)) > 2
    assert pruned.iters[-1] < 0.75 * baseline.iters[-1]
    # The remaining time is about right early, and exact in the end.
    assert pruned.expected[-1] == pruned.iters[-1]
    assert abs(pruned.expected[1] - pruned.iters[-1]) <= 6


def test_the_remaining_time_where_pruning_begins_late(tmp_path):
    """All epochs until then are full."""
    policy = dict(type='RandomPruning', ratio=0.5)
    hook = dict(type='InfoBatchHook', policy=policy, start=0.5)
    log = edges(tmp_path, **by_epoch(policy, custom_hooks=[hook]))
    assert log.iters[4] == 4 * 8 and log.iters[-1] < 64
    assert [abs(each - log.iters[-1]) <= 2
            for each in log.expected[1:]] == 7 * [True]


def test_the_gradients_of_the_last_iterations_are_used(tmp_path):
    """Where they are accumulated MMEngine counts what is to come."""
    runner = build(tmp_path,
                   **by_epoch(**{'optim_wrapper.accumulative_counts': 4}))
    runner.train()
    assert runner.iter % 4 != 0 and runner.max_iters == runner.iter
    assert not any(parameter.grad.any()
                   for parameter in runner.model.parameters()
                   if parameter.grad is not None)


@pytest.mark.parametrize('world_size, num_workers, drop_last, priority',
                         [(1, 2, False, 'NORMAL'), (2, 0, True, 'HIGH')])
def test_ratio_0_is_the_baseline(tmp_path, world_size, num_workers, drop_last,
                                 priority):
    """Whatever the priority of the hook."""
    changes = {
        'train_cfg.max_epochs': 3,
        'train_dataloader.drop_last': drop_last,
        'train_dataloader.num_workers': num_workers,
        'train_dataloader.persistent_workers': num_workers > 0,
        'param_scheduler': SCHEDULES['warm-up and cosine'],
    }
    ours = dict(type='InfoBatchHook', policy=KEEPS, priority=priority)
    runs = [
        run_ranks(
            functools.partial(
                train_rank,
                work_dir=str(tmp_path / str(len(hooks))),
                changes=by_epoch(policy, **changes, **hooks)), world_size)
        for policy, hooks in ((None, {}), (KEEPS, dict(custom_hooks=[ours])))
    ]
    for before, after in zip(*runs, strict=True):
        for name in ('iter', 'images', 'lr'):
            assert column(before, name) == column(after, name)
        # Pixels are summed image by image.
        np.testing.assert_allclose(
            column(before, 'loss'), column(after, 'loss'), rtol=1e-5)


class ReadsData(Hook):
    """Reads the training data after epochs, as PreciseBNHook does, and within
    one that prunes."""

    def __init__(self):
        self.count = 0

    def after_train_epoch(self, runner):
        images = [
            int(image[0, 0, 0]) for batch in runner.train_dataloader
            for image in batch['inputs']
        ]
        assert sorted(images) == list(range(SIZE))
        self.count += 1

    def after_train_iter(self, runner, batch_idx, *args, **kwargs):
        if runner.epoch == 1 and batch_idx in (0, 2):
            self.after_train_epoch(runner)


class ReadsBetween(ReadsData):
    """Also before the plan of an epoch is drawn."""

    priority = 'HIGHEST'
    before_train_epoch = ReadsData.after_train_epoch


@pytest.mark.parametrize('reads, num_workers', [(ReadsData, 0),
                                                (ReadsBetween, 1)])
def test_what_is_pruned_and_what_it_weighs(tmp_path, reads, num_workers):
    """Other hooks read full epochs, which changes nothing."""
    runner = build(tmp_path,
                   **by_epoch(**{'train_dataloader.num_workers': num_workers}))
    reader = reads()
    runner.register_hook(reader)
    steps = train(runner)
    assert reader.count == 2 + MAX_EPOCHS * (1 if reads is ReadsData else 2)
    images = column(steps, 'images')
    assert epoch_of(runner) == MAX_EPOCHS
    # The first epoch, and the last after delta * 8 = 7, are full.
    assert sorted(sum(images[:8], [])) == list(range(SIZE))
    assert sorted(sum(images[-8:], [])) == list(range(SIZE))
    total = sum(map(len, images))
    assert total == pytest.approx(0.6 * MAX_EPOCHS * SIZE, abs=8)
    weights = np.concatenate(column(steps, 'weights'))
    # Weights make up for what is pruned, but for rounding.
    assert weights.sum() == pytest.approx(MAX_EPOCHS * SIZE, rel=0.01)
    assert infobatch_hook(runner)._iterations.iters_per_epoch == 8
    state = state_of(runner)['iterations']
    assert state['iteration'] == len(steps)
    assert state['saved'] == MAX_EPOCHS * 8 - len(steps)


class ReadsAtTheEnd(ReadsData):
    """As PreciseBNHook, before InfoBatchHook ends the epoch."""

    priority = 'HIGHEST'
    after_train_iter = Hook.after_train_iter


def test_another_hook_reads_where_nothing_is_left_of_an_epoch(tmp_path):
    """It goes on after its last iteration, and its end is still to come."""
    changes = by_epoch(
        **{'default_hooks.checkpoint': dict(by_epoch=False, interval=8)})
    build(tmp_path, **changes).train()
    path = str(tmp_path / 'iter_8.pth')
    runner = build(
        tmp_path / 'resumed', resume=True, load_from=path, **changes)
    reader = ReadsAtTheEnd()
    runner.register_hook(reader)
    runner.train()
    assert reader.count == MAX_EPOCHS


class ReadsAheadOfTheLoop(Hook):
    """Reads a batch when the plan of the third epoch is drawn."""

    priority = 'VERY_LOW'

    def before_train_epoch(self, runner):
        if runner.epoch == 2:
            next(iter(runner.train_dataloader))


@pytest.mark.parametrize('num_workers', [0, 2])
def test_another_hook_that_reads_ahead_of_the_loop(tmp_path, num_workers):
    """Its batch could be that of the loop, so the training stops."""
    runner = build(tmp_path,
                   **by_epoch(**{'train_dataloader.num_workers': num_workers}))
    runner.register_hook(ReadsAheadOfTheLoop())
    with pytest.raises(
            Refusal, match='Something other than the training loop reads '):
        runner.train()
    assert runner.epoch == 2
    # Nothing was trained on in that epoch.
    assert runner.iter == state_of(runner)['iterations']['iteration'] < 2 * 8
    assert epoch_of(runner) == 2


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
    assert read_log(tmp_path).count('nothing is trained on in epoch') == 6


def pooled(batch_size, size=48, **changes):
    """A training by epochs whose head normalizes what it has pooled to one
    pixel, which fails in a batch of one image. It is the only head."""
    head = small_head(
        type='PSPHead', pool_scales=(1, 2), norm_cfg=dict(type='BN'))
    for name in ('num_convs', 'concat_input'):
        del head[name]
    return by_epoch(
        **{
            'model.decode_head': dict(head, _delete_=True),
            'model.auxiliary_head': None,
            'train_dataloader.dataset.size': size,
            'train_dataloader.batch_size': batch_size,
            **changes
        })


def last_batches(runner):
    """Train, and return the size of the last batch of each epoch."""
    sizes = {}

    def note(runner, data_batch, outputs):
        sizes[runner.epoch] = len(data_batch['inputs'])

    train_and_note(runner, note)
    return [*sizes.values()]


@pytest.mark.parametrize(
    'policy', [
        PRUNES,
        dict(type='Neyman'),
        dict(type='MeanThreshold'),
        dict(type='RandomPruning', ratio=0.3)
    ],
    ids=lambda policy: policy['type'])
@pytest.mark.parametrize('size, batch_size, least', [(48, 4, 4), (45, 7, 3),
                                                     (50, 4, 2)])
def test_a_pruned_epoch_has_no_smaller_batch_than_a_full_one(
        tmp_path, size, batch_size, least, policy):
    changes = pooled(batch_size, size)
    changes['custom_hooks'][0]['policy'] = policy
    runner = build(tmp_path, **changes)
    kept = []
    infobatch_hook(runner).plan_observers.append(
        lambda record, plan: kept.append(record.kept))
    sizes = last_batches(runner)
    assert len(sizes) == MAX_EPOCHS
    assert sizes[0] == sizes[-1] == least == min(sizes)
    # All that a plan keeps is trained on.
    assert [(number - 1) % batch_size + 1 for number in kept] == sizes
    assert min(kept) < 0.8 * size


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    """The checkpoints of an epoch that prunes, in batches of 5 images."""
    folder = tmp_path_factory.mktemp('saved')
    checkpoint = dict(by_epoch=False, interval=1)
    runner = build(folder,
                   **pooled(5, **{'default_hooks.checkpoint': checkpoint}))
    assert min(last_batches(runner)) == 48 % 5
    return [folder / f'iter_{i}.pth' for i in range(11, 15)]


@pytest.mark.parametrize('batch_size', [4, 7])
def test_nor_does_what_is_left_of_it_elsewhere(saved, tmp_path, batch_size):
    """Of each checkpoint, with another batch size."""
    least, rests = (48 - 1) % batch_size + 1, []
    for path in saved:
        rests.append(len(load(path)['infobatch']['stream']['indices']))
        resumed = build(
            tmp_path / path.stem,
            resume=True,
            load_from=str(path),
            **pooled(batch_size))
        smallest = min(last_batches(resumed))
        assert smallest >= min(least, rests[-1] or least) > 1
    assert 0 in rests and any(rest % batch_size for rest in rests)


def test_validation_at_its_epochs(tmp_path):
    """With the average of EMAHook, the best checkpoint, and an early end."""
    changes = {
        **VALIDATION,
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
    runner = build(tmp_path, **by_epoch(custom_hooks=hooks, **changes))
    runner.train()
    log = read_log(tmp_path)
    assert re.findall(r'Epoch\(val\) \[(\d)\]\[5/5\]', log) == list('345')
    assert runner.epoch == 5
    assert f'{runner.iter} iterations covered as many passes as 40' in log
    # Annealing would have begun later.
    assert read_run(str(tmp_path)).annealing_iter is None
    best, = tmp_path.glob('best_*.pth')
    # It has no optimizer, but where the training was.
    again = build(
        tmp_path / 'again',
        **by_epoch(custom_hooks=hooks[:2], resume=True, load_from=str(best)))
    steps = train(again)
    assert epoch_of(again) == MAX_EPOCHS
    assert sorted(sum(column(steps[-8:], 'images'), [])) == list(range(SIZE))


@DATASETS.register_module()
class RepeatedImages(IndexDataset):

    def full_init(self):
        """``RepeatDataset`` asks for it."""


LISTED = dict(type='RepeatedImages', size=SIZE)
FEW = dict(type='RepeatDataset', times=2, dataset=dict(LISTED, size=4))


def test_a_data_set_of_which_a_part_is_repeated(tmp_path):
    changes = by_epoch()
    changes.pop('train_dataloader.dataset.size')
    dataset = dict(type='ConcatDataset', datasets=[LISTED, FEW])
    changes['train_dataloader.dataset'] = dict(dataset, _delete_=True)
    runner = build(tmp_path, **changes)
    steps = train(runner)
    assert len(infobatch_hook(runner).run.table.scores) == SIZE + 4
    # A full epoch first, with each repeat.
    size = SIZE + 8
    first = sum(column(steps, 'images'), [])[:size]
    assert sorted(first) == sorted([*range(SIZE), *range(4), *range(4)])
    weights = np.concatenate(column(steps, 'weights'))
    assert weights.sum() == pytest.approx(MAX_EPOCHS * size, rel=0.01)
    assert len(weights) == pytest.approx(0.6 * MAX_EPOCHS * size, abs=12)
