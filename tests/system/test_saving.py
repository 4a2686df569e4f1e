# Copyright (c) mmib contributors. All rights reserved.
"""What a checkpoint needs of all ranks is done before any of them saves: where
MMEngine fills it, the first rank is alone."""
import functools
import os.path as osp

import pytest
from mmengine.hooks import Hook

from tests.system.processes import run_ranks
from tests.system.small_training import (build, distribute, infobatch_hook,
                                         train)


class NotesSaving(Hook):
    """Notes how many steps aren't merged where a checkpoint is filled."""

    priority = 'HIGHEST'

    def __init__(self):
        self.unmerged = []

    def before_save_checkpoint(self, runner, checkpoint):
        self.unmerged.append(len(infobatch_hook(runner).run.log))


class SavesEarly(Hook):
    """Saves before InfoBatchHook has noted the scores of a batch."""

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
        assert early[0] == plain[0]
        assert early[1] == [0] * 3 * (rank == 0)
        assert plain[1] == [0] * 2 * (rank == 0)
