# Copyright (c) mmib contributors. All rights reserved.
"""Checkpoints that are written within a step, and on several ranks. What a
checkpoint needs of all ranks is done before any rank saves: MMEngine fills the
checkpoint on the first rank alone."""
import functools
import os.path as osp

import numpy as np
import pytest
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from tests.helpers.epochs import by_epoch
from tests.helpers.processes import run_ranks
from tests.helpers.segmentors import (ANNEALING_ITER, SAVED, StepLog,
                                      assert_equal, build, column, distribute,
                                      infobatch_hook, state_of, train,
                                      weights_of)


class NotesSaving(Hook):
    """Notes how many steps aren't merged where a checkpoint is filled."""

    priority = 'HIGHEST'

    def __init__(self):
        self.unmerged = []

    def before_save_checkpoint(self, runner, checkpoint):
        self.unmerged.append(len(infobatch_hook(runner).run.log))


class SavesEarly(Hook):
    """Saves within a step."""

    priority = 'HIGH'

    def after_train_iter(self, runner, batch_idx, *args, **kwargs):
        if runner.iter == 4:
            runner.save_checkpoint(runner.work_dir, 'early.pth')


def train_and_save(rank, results, work_dir):
    """Steps of a training, and what was noted where it saved: of one that
    saves early too, and of one that doesn't."""
    results[rank] = []
    for saves in (True, False):
        runner = build(
            osp.join(work_dir, str(saves)), **{
                'train_dataloader.dataset.size': 60,
                'train_dataloader.batch_size': 5
            })
        distribute(runner)
        notes = NotesSaving()
        runner.register_hook(notes)
        if saves:
            runner.register_hook(SavesEarly())
        steps = train(runner)
        results[rank].append((steps, notes.unmerged))


@pytest.mark.parametrize('world_size', [1, 2])
def test_a_hook_that_saves_in_the_middle_of_a_step(tmp_path, world_size):
    """The first rank, which is called alone, has nothing to merge, doesn't
    wait for the others, and nothing changes."""
    ranks = run_ranks(
        functools.partial(train_and_save, work_dir=str(tmp_path)), world_size)
    for rank, (early, plain) in enumerate(ranks):
        losses, others = ([step.pop('loss') for step in steps]
                          for steps, _ in (early, plain))
        # The merge moves the rows of the log, and the last bit of a dot
        # product depends on where its factors lie.
        assert losses == pytest.approx(others, rel=1e-6)
        assert early[0] == plain[0]
        assert early[1] == [0] * 3 * (rank == 0)
        assert plain[1] == [0] * 2 * (rank == 0)


def save(runner, iteration):
    runner.save_checkpoint(
        runner.work_dir,
        'within.pth',
        by_epoch=False,
        meta=dict(iter=iteration, epoch=runner.epoch))


@HOOKS.register_module()
class SavesWithin(Hook):
    """Saves before or after the step of an iteration, or interrupts the step.

    Args:
        event (str): ``'before'``, ``'after'`` or ``'interrupt'``.
    """

    def __init__(self, event):
        self.event = event

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == SAVED and self.event == 'before':
            save(runner, SAVED)
        if runner.iter == SAVED and self.event == 'interrupt':
            hook = runner.model.register_forward_pre_hook(self.interrupt)
            runner.interrupts = hook

    def interrupt(self, *args):
        raise KeyboardInterrupt

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == SAVED and self.event == 'after':
            save(runner, SAVED)


def train_within(rank, results, work_dir, event, priority, loop):
    """Steps, parameters and state of a run, and of the run that goes on from a
    checkpoint within a step."""

    def run(name, event, **changes):
        hooks = [
            dict(type='SavesWithin', event=event, priority=priority),
            dict(type='InfoBatchHook', policy=dict(type='MeanThreshold'))
        ]
        runner = build(
            osp.join(work_dir, name),
            **dict(
                by_epoch() if loop == 'epochs' else {},
                custom_hooks=hooks,
                **changes))
        distribute(runner)
        log = StepLog()
        runner.register_hook(log)
        try:
            runner.train()
        except KeyboardInterrupt:
            save(runner, runner.iter)
        return (log.steps, [x.numpy() for x in weights_of(runner).values()],
                state_of(runner))

    whole = run('whole', event)
    if event == 'interrupt':
        run('interrupted', event)
        whole = run('plain', None)
    saved = 'interrupted' if event == 'interrupt' else 'whole'
    resumed = run(
        'resumed',
        None,
        resume=True,
        load_from=osp.join(work_dir, saved, 'within.pth'))
    results[rank] = whole, resumed


WITHIN = [('after', 'VERY_HIGH'), ('after', 'NORMAL'), ('after', 'VERY_LOW'),
          ('before', 'VERY_HIGH'), ('before', 'VERY_LOW'),
          ('interrupt', 'NORMAL')]


@pytest.mark.parametrize('event, priority, loop',
                         [(*kind, 'iterations')
                          for kind in WITHIN] + [(*kind, 'epochs')
                                                 for kind in WITHIN[1::2]])
def test_a_checkpoint_within_a_step(tmp_path, event, priority, loop):
    """The state is the state of the last edge of a step, whichever hook asks
    for a checkpoint, and when: the resumed run is the run that went on."""
    check_within(tmp_path, 1, event, priority, loop)


@pytest.mark.parametrize('event, priority, loop', [
    (*WITHIN[1], 'iterations'),
    (*WITHIN[4], 'epochs'),
])
def test_a_checkpoint_within_a_step_of_two_ranks(tmp_path, event, priority,
                                                 loop):
    check_within(tmp_path, 2, event, priority, loop)


def check_within(tmp_path, world_size, event, priority, loop):
    ranks = run_ranks(
        functools.partial(
            train_within,
            work_dir=str(tmp_path),
            event=event,
            priority=priority,
            loop=loop), world_size)
    for (steps, weights, state), (later, *resumed) in ranks:
        assert len(later) > 5 and later == steps[SAVED:]
        assert max(map(max, column(later, 'weights'))) > 1
        assert_equal([weights, state], resumed)


class ComputesLosses(Hook):
    """Computes losses that aren't trained on, beside each step."""

    def __init__(self, priority):
        self.priority, self.values = priority, []

    def compute(self, runner, data_batch):
        model = runner.model
        data = model.data_preprocessor(data_batch, True)
        losses = model(**data, mode='loss')
        total, _ = model.parse_losses(losses)
        self.values.append(total.item())

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.compute(runner, data_batch)

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.compute(runner, data_batch)


@pytest.mark.parametrize('priority', ['VERY_HIGH', 'LOWEST'])
def test_losses_of_a_hook_are_no_scores(tmp_path, priority):
    """They change neither scores nor norms."""
    states = []
    for hooks in ([], [ComputesLosses(priority)]):
        runner = build(tmp_path / str(len(hooks)))
        for hook in hooks:
            runner.register_hook(hook)
        steps = train(runner)
        states.append(state_of(runner))
    assert_equal(*states)
    if priority == 'VERY_HIGH':
        # StepLog notes the losses after the step too.
        return
    # Before a step, the value is the value of the baseline.
    for step, value in zip(steps[:ANNEALING_ITER], hooks[0].values[::2]):
        assert np.mean(step['scores']) == pytest.approx(value, 1e-4)


def test_a_loop_that_goes_on_after_an_error_within_a_step(tmp_path):
    """The batch is skipped, as one that runs out of memory. Its images keep
    their scores."""
    runner = build(tmp_path)
    train_step, calls = runner.model.train_step, []

    def fails(*args, **kwargs):
        calls.append(1)
        if len(calls) in (8, 20, 21):
            raise RuntimeError('out of memory')
        return train_step(*args, **kwargs)

    run_iter = runner.train_loop.run_iter

    def skips(data_batch):
        try:
            run_iter(data_batch)
        except RuntimeError:
            skipped.append([int(x[0, 0, 0]) for x in data_batch['inputs']])
            runner.train_loop._iter += 1

    skipped = []
    runner.model.train_step = fails
    runner.train_loop.run_iter = skips
    steps = train(runner)
    images = sum(column(steps, 'images'), [])
    visits = infobatch_hook(runner).run.table.visits
    assert len(skipped) == 3 and len(images) == 37 * 3
    assert visits.tolist() == np.bincount(images, minlength=11).tolist()
