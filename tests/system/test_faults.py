# Copyright (c) mmib contributors. All rights reserved.
"""What can go wrong in a run, done to a real one.
``docs/troubleshooting.md`` is the table of it; what a checkpoint can be
resumed with is in ``test_resume.py``, and a damaged one in
``tests/test_run/test_damage.py``."""
import builtins
import os
import os.path as osp
import re
import resource
import signal
from functools import partial

import numpy as np
import pytest
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import DATASETS
from torch.utils.data import get_worker_info

from tests.helpers import segmentors as small_training
from tests.helpers.processes import start_ranks, wait_for_end
from tests.helpers.segmentors import (ANNEALING_ITER, BASELINE, MAX_ITERS,
                                      IndexDataset, StepLog, assert_equal,
                                      column, distribute, load, read_lines,
                                      read_log, train)


@DATASETS.register_module()
class FaultyDataset(IndexDataset):
    """On one rank, some images have other pixels. A worker that finds the file
    ``armed`` dies, once."""

    def __init__(self, size, broken={}, rank=0, armed=None):
        super().__init__(size)
        self.pixels = broken if rank == get_rank() else {}
        self.armed = armed

    def __getitem__(self, index):
        if self.armed:
            self.die_once()
        item = super().__getitem__(index)
        if str(index) in self.pixels:
            item['inputs'][:, 1:] = self.pixels[str(index)]
            # Whatever is predicted is wrong somewhere.
            label = item['data_samples'].gt_sem_seg.data
            label[:, 5], label[:, 6] = 0, 1
        return item

    def die_once(self):
        assert get_worker_info() is not None
        try:
            os.remove(self.armed)
        except FileNotFoundError:  # not yet, or another worker was quicker
            return
        os.kill(os.getpid(), signal.SIGKILL)


class At(Hook):
    """Calls a function at the beginning of an iteration, on the first
    rank."""

    def __init__(self, iteration, function):
        self.iteration = iteration
        self.function = function

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == self.iteration and get_rank() == 0:
            self.function()


def build(work_dir, **changes):
    """A training with a checkpoint every 7 iterations."""
    return small_training.build(
        work_dir, **{
            'default_hooks.checkpoint.interval': 7,
            **changes
        })


def train_rank(rank, work_dir, hooks, changes):
    runner = build(work_dir, **changes)
    for hook in (StepLog(osp.join(work_dir, 'steps')), *hooks):
        runner.register_hook(hook)
    distribute(runner)
    runner.train()


def train_ranks(world_size, work_dir, *hooks, **changes):
    """Train in processes of their own, and return how each of them ended."""
    work_dir.mkdir(exist_ok=True)
    prefix = work_dir / f'start_{len(os.listdir(work_dir))}'
    with start_ranks(train_rank, world_size, prefix, work_dir, hooks,
                     changes) as processes:
        assert wait_for_end(processes), 'The training hangs.'
        return [process.exitcode for process in processes]


def steps_of(work_dir, rank=0):
    """What :func:`train_ranks` did, in all its calls for a folder."""
    return read_lines(work_dir / f'steps_rank{rank}.jsonl')


def kind_of_error(work_dir):
    """Of what the first training ended, on the first rank. What torch or the
    system say of it is theirs."""
    text = (work_dir / 'start_0_rank0.error').read_text()
    return getattr(builtins, text.split(':')[0])


def assert_checkpoints(work_dir, saved, last):
    """Iterations of the checkpoints that are there, and of the one that
    MMEngine resumes from."""
    names = {f'iter_{iteration}.pth' for iteration in saved}
    assert {path.name for path in work_dir.glob('*.pth')} == names
    name = (work_dir / 'last_checkpoint').read_text()
    assert name == str(work_dir / f'iter_{last}.pth')


def assert_goes_on(work_dir, reference, world_size=1, **changes):
    """Resume: each step, before the fault and after it, is that of a training
    that had none, and so is the last checkpoint."""
    assert train_ranks(
        world_size, work_dir, resume=True, **changes) == [0] * world_size
    assert train_ranks(world_size, reference, **changes) == [0] * world_size
    for rank in range(world_size):
        expected = steps_of(reference, rank)
        done = steps_of(work_dir, rank)
        assert {step['iter'] for step in done} == set(range(MAX_ITERS))
        assert done == [expected[step['iter']] for step in done]
    assert np.max(column(done, 'weights')) > 1
    ends = [
        load(folder / f'iter_{MAX_ITERS}.pth')
        for folder in (work_dir, reference)
    ]
    for part in ('state_dict', 'infobatch'):
        assert_equal(*(end[part] for end in ends))


@pytest.fixture
def folders(tmp_path):
    return tmp_path / 'fault', tmp_path / 'reference'


def fill_disk(work_dir):
    """Let no file become as long as a checkpoint, as on a full disk."""
    size = (work_dir / 'iter_7.pth').stat().st_size * 9 // 10
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


def test_a_full_disk(folders):
    """No rank waits for the one that failed."""
    fault, reference = folders
    fill = At(10, partial(fill_disk, fault))
    assert train_ranks(2, fault, fill, log_level='WARNING') == [1, 1]
    # What the other rank says of the connection isn't always the same.
    assert kind_of_error(fault) is OSError
    # The new checkpoint is cut off, and isn't the last one.
    assert_checkpoints(fault, saved=[7, 14], last=7)
    assert_goes_on(fault, reference, world_size=2)


def test_a_worker_dies(folders):
    fault, reference = folders
    armed = fault.parent / 'armed'
    changes = {
        'train_dataloader.dataset.type': 'FaultyDataset',
        'train_dataloader.dataset.armed': str(armed),
        'train_dataloader.num_workers': 2,
        'train_dataloader.persistent_workers': True,
    }
    assert train_ranks(1, fault, At(17, armed.touch), **changes) == [1]
    # torch's own, or that of the connection where it died amid a batch.
    assert issubclass(kind_of_error(fault), (RuntimeError, EOFError, OSError))
    assert not armed.exists()
    assert_checkpoints(fault, saved=[7, 14], last=14)
    assert_goes_on(fault, reference, **changes)


class SkipBadGradients(Hook):
    """What the scaler of mixed precision does, in short."""

    def before_train(self, runner):
        for parameter in runner.model.parameters():
            parameter.register_hook(
                lambda grad: torch.where(grad.abs() < 1e9, grad, 0.))


def test_losses_of_one_rank_are_not_finite(tmp_path):
    """Counted once, and never a score on any rank."""
    changes = {
        'train_dataloader.dataset': dict(
            type='FaultyDataset',
            rank=1,
            # The loss of the second one is 1e35, times the weight below.
            broken={
                '3': float('nan'),
                '8': 3e38
            }),
        'model.decode_head.loss_decode.loss_weight': 1e5,
        'optim_wrapper.optimizer.lr': 1e-7
    }
    assert train_ranks(2, tmp_path, SkipBadGradients(), **changes) == [0, 0]
    first, second = steps_of(tmp_path), steps_of(tmp_path, rank=1)
    visits = sum(
        index in (3, 8) for step in second[:ANNEALING_ITER]
        for index in step['images'])
    assert visits > 3
    warned = re.findall(r'InfoBatch: (\d+) scores of images were NaN or inf',
                        read_log(tmp_path))
    assert sum(map(int, warned)) == visits
    state = load(tmp_path / f'iter_{MAX_ITERS}.pth')['infobatch']['tables']
    assert state['non_finite'] == visits
    assert torch.isfinite(state['scores']).all()
    assert np.isfinite(column(first, 'loss')).all()
    assert {'nan', 'inf'} < set(map(str, column(second, 'loss')))
    assert np.max(column(first, 'weights')) > 1


def test_weights_of_the_model_that_are_nan(tmp_path):
    """The training goes on to its end, as without mmib."""
    broken = dict(type='FaultyDataset', broken={'4': float('nan')})
    broken = {'train_dataloader.dataset': broken}
    before, ours = (column(
        train(build(tmp_path / name, **broken, **changes)),
        'loss') for name, changes in (('baseline', BASELINE), ('ours', {})))
    assert len(before) == len(ours) == MAX_ITERS
    np.testing.assert_array_equal(np.isnan(before), np.isnan(ours))
    assert np.isnan(ours[-1])
