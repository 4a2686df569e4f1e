# Copyright (c) mmib contributors. All rights reserved.
"""Each place where mmib reaches into MMEngine is needed: with it a training is
right, and without it wrong. Where a test fails that has ``without``, the
installed MMEngine does it by itself, and the function can go with the support
of older ones.

What ``replace_method`` does to heads of a library is shown there, and needed
by each test with weights of these heads.
"""
import functools
import os.path as osp
from unittest import mock

import numpy as np
import pytest
from mmengine.hooks import Hook, ParamSchedulerHook

from mmib import hook
from mmib.errors import Refusal
from mmib.runner import epochs
from mmib.tasks import per_sample
from mmib.tasks.replace import replace_method
from tests.system.epoch_training import SCHEDULES, by_epoch, edges
from tests.system.processes import run_ranks
from tests.system.small_training import (build, distribute, infobatch_hook,
                                         train, train_and_note)
from tests.test_tasks import test_per_sample

BOTH = pytest.mark.parametrize(
    'patched', [True, False], ids=['with', 'without'])


def nothing(*args, **kwargs):
    """In the place of a patch."""


def leave_out(patched, owner, name, instead=nothing):
    """Train without a patch, unless ``patched``."""
    own = getattr(owner, name)
    return mock.patch.object(owner, name, own if patched else instead)


@BOTH
def test_restart_loader(tmp_path, patched):
    """OpenMMLab's loop, which has started its workers, reads on from the
    checkpoint."""
    changes = {
        'train_cfg.type': 'SkippingTrainLoop',
        'train_dataloader.num_workers': 2
    }
    # Until the end of the test, which stops its workers at once.
    runner = build(tmp_path, **changes)
    steps = train(runner)
    resumed = build(
        tmp_path / 'resumed',
        resume=True,
        load_from=str(tmp_path / 'iter_20.pth'),
        **changes)
    with leave_out(patched, hook, 'restart_loader'):
        try:
            later = train(resumed)
        except Refusal:
            # It may be seen that batches are none that were asked for.
            later = []
    assert (later == steps[20:]) is patched


@BOTH
def test_expect_iters(tmp_path, patched):
    """What MMEngine expects of a training by epochs is what comes, and the
    gradients of the last iterations are used."""
    changes = by_epoch(**{'optim_wrapper.accumulative_counts': 3})
    runner = build(tmp_path, **changes)
    with leave_out(patched, epochs, 'expect_iters'):
        runner.train()
    assert runner.iter % 3 != 0
    left = any(
        bool(parameter.grad.any()) for parameter in runner.model.parameters()
        if parameter.grad is not None)
    assert (runner.max_iters == runner.iter) is patched
    assert left is not patched


class NotesSaving(Hook):
    """Notes how many steps aren't merged where a checkpoint is filled."""

    priority = 'HIGHEST'

    def __init__(self):
        self.unmerged = []

    def before_save_checkpoint(self, runner, checkpoint):
        self.unmerged.append(len(infobatch_hook(runner).training.log))


@BOTH
def test_before_saving(tmp_path, patched):
    """Nothing is left to merge where the first rank fills a checkpoint."""
    runner = build(tmp_path, **{'default_hooks.checkpoint.interval': 7})
    notes = NotesSaving()
    runner.register_hook(notes)
    with leave_out(patched, hook, 'before_saving'):
        runner.train()
    assert len(notes.unmerged) == 6
    assert (max(notes.unmerged) == 0) is patched


def note_saving(rank, results, work_dir):
    """Whether all ranks are called where a checkpoint is filled."""
    runner = build(work_dir)
    distribute(runner)
    notes = NotesSaving()
    runner.register_hook(notes)
    runner.train()
    results[rank] = notes.unmerged


def test_a_checkpoint_is_filled_on_the_first_rank_alone(tmp_path):
    """A collective there would wait for the others for good."""
    assert run_ranks(
        functools.partial(note_saving, work_dir=str(tmp_path)), 2) == [[0, 0],
                                                                       []]


class SavesEarly(Hook):
    """Saves before InfoBatchHook has noted the scores of a batch."""

    priority = 'HIGH'

    def after_train_iter(self, runner, batch_idx, *args, **kwargs):
        if runner.iter == 4:
            runner.save_checkpoint(runner.work_dir, 'early.pth')


def train_and_save(rank, results, work_dir):
    """Steps and unweighted losses of a training that saves early, and of one
    that doesn't."""
    results[rank] = []
    for saves in (True, False):
        runner = build(
            osp.join(work_dir, str(saves)), **{
                'train_dataloader.dataset.size': 60,
                'train_dataloader.batch_size': 5,
                'default_hooks.logger.interval': 1
            })
        distribute(runner)
        if saves:
            runner.register_hook(SavesEarly())
        steps = train(runner)
        losses = runner.message_hub.get_scalar('train/unweighted_loss').data
        results[rank].append((steps, losses[0].tolist()))


@pytest.mark.parametrize('world_size', [1, 2])
def test_a_hook_that_saves_in_the_middle_of_a_step(tmp_path, world_size):
    """The first rank doesn't wait for the others, and nothing changes."""
    for with_it, without in run_ranks(
            functools.partial(train_and_save, work_dir=str(tmp_path)),
            world_size):
        assert with_it == without


@BOTH
def test_steps_as_due(tmp_path, patched):
    """Learning rates by iteration are those of the baseline at each edge."""
    changes = dict(param_scheduler=SCHEDULES['warm-up and cosine'])
    baseline = edges(tmp_path / 'baseline', **by_epoch(None, **changes))
    with leave_out(patched, epochs.StepAsDue, 'after_train_iter',
                   ParamSchedulerHook.after_train_iter):
        pruned = edges(tmp_path / 'pruned', **by_epoch(**changes))
    assert np.allclose(pruned.rates, baseline.rates, rtol=1e-9) is patched


@BOTH
def test_replace_method(tmp_path, patched):
    """The losses of samples get their weights before they are reduced."""

    def without(owner, name, call):
        replace_method(owner, name, lambda method, *args: method(*args))

    def note(runner, data_batch, outputs):
        batch = infobatch_hook(runner).batch
        if batch.weights is None:
            return 1.
        mean = (batch.weights * batch.scores).mean().item()
        assert outputs['loss'].item() == pytest.approx(mean, rel=1e-5)
        return batch.weights.max().item()

    runner = test_per_sample.build(tmp_path)
    with leave_out(patched, per_sample, 'replace_method', without):
        if patched:
            assert max(train_and_note(runner, note)) > 1
        else:
            with pytest.raises(Refusal, match='No head called its losses'):
                runner.train()
