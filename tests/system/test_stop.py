# Copyright (c) mmib contributors. All rights reserved.
"""A signal of the cluster saves a run after a step, the same one on all ranks,
and the run goes on from there as if nothing had happened."""
import os
import os.path as osp
import signal
import subprocess
import sys

import pytest
import torch.distributed as dist
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

import mmib.stop
from mmib import InfoBatchHook
from tests.helpers.epochs import by_epoch
from tests.helpers.processes import log_of, start_ranks, wait_for_end
from tests.helpers.segmentors import (assert_equal, build, distribute, load,
                                      read_lines)

ITERS = 72
PRUNES = [dict(type='InfoBatchHook', policy=dict(type='MeanThreshold'))]


@HOOKS.register_module()
class SignalsAt(Hook):
    """Sends a signal to its own process at an iteration, on the last rank."""

    def __init__(self, iteration, number=signal.SIGTERM):
        self.iteration, self.number = iteration, number

    def before_train_iter(self, runner, *args, **kwargs):
        if runner.iter == self.iteration and (not dist.is_initialized()
                                              or get_rank()
                                              == dist.get_world_size() - 1):
            os.kill(os.getpid(), self.number)


def train_rank(rank, folder, hooks, changes):
    """Train, write down each step, and leave the last state."""
    mmib.stop._INTERVAL = 0.01
    if rank == 0:
        # As `mmib train` does for the lines before a training.
        InfoBatchHook()
    runner = build(
        osp.join(folder, 'run'),
        train_cfg=dict(max_iters=ITERS),
        custom_hooks=PRUNES + hooks +
        [dict(type='StepLog', path=osp.join(folder, 'steps'))],
        resume=True,
        **changes)
    distribute(runner)
    runner.train()
    runner.save_checkpoint(folder, 'end.pth')


def train(folder, world_size=1, hooks=(), **changes):
    """Train in real processes. Return their exit codes and logs."""
    folder.mkdir(exist_ok=True)
    # Processes that go on meet at another file.
    prefix = str(folder / f'start{len([*folder.glob("*.log")])}')
    with start_ranks(train_rank, world_size, prefix, str(folder), [*hooks],
                     changes) as processes:
        assert wait_for_end(processes)
        return [each.exitcode for each in processes
                ], [log_of(prefix, rank) for rank in range(world_size)]


CHANGES = {
    'iterations': {},
    'epochs': {
        key: value
        for key, value in by_epoch().items()
        if key not in ('train_cfg', 'custom_hooks')
    },
    'accumulation': {
        'optim_wrapper.accumulative_counts': 4
    },
}
EPOCHS = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=8)


@pytest.mark.parametrize('kind, world_size, number', [
    ('iterations', 1, signal.SIGTERM),
    ('iterations', 2, signal.SIGUSR1),
    ('epochs', 2, signal.SIGTERM),
    ('accumulation', 1, signal.SIGTERM),
])
def test_a_run_goes_on_after_a_signal(tmp_path, kind, world_size, number):
    changes = dict(CHANGES[kind])
    whole, part = tmp_path / 'whole', tmp_path / 'part'
    codes, logs = train(whole, world_size, **changes)
    assert codes == [0] * world_size, logs[0][-3000:]
    # Within an epoch, and between two steps of the optimizer.
    stops = [dict(type='SignalsAt', iteration=26, number=number)]
    codes, logs = train(part, world_size, stops, **changes)
    assert codes == [mmib.stop.EXIT_CODE] * world_size, logs[0][-3000:]
    assert number.name in ''.join(logs) and '--resume' in logs[0]
    path = (part / 'run/last_checkpoint').read_text()
    made = load(path)['meta']['iter']
    assert 26 < made < ITERS
    assert made % 4 == 0 or kind != 'accumulation'
    codes, logs = train(part, world_size, **changes)
    assert codes == [0] * world_size, logs[0][-3000:]
    for rank in range(world_size):
        steps, expected = (
            read_lines(folder / f'steps_rank{rank}.jsonl')
            for folder in (part, whole))
        assert len(steps) == len(expected) > made
        assert [step['iter'] for step in steps] == [*range(len(steps))]
        assert steps == expected
    one, other = (load(folder / 'end.pth') for folder in (part, whole))
    assert_equal(one['state_dict'], other['state_dict'])
    assert_equal(one['infobatch'], other['infobatch'])


def test_a_second_signal_ends_the_process(tmp_path):
    stops = [dict(type='SignalsAt', iteration=26)] * 2
    assert train(tmp_path, hooks=stops)[0] == [-signal.SIGTERM]


LEAVES = """
import atexit, os, signal
from mmib.stop import StopSignal

class Ends:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
        kill(pid, number)

stop = StopSignal()
stop.listen()
os.kill(os.getpid(), signal.SIGTERM)
while not stop.after_step():
    pass
atexit.register(os.kill, os.getpid(), signal.SIGTERM)
ends = Ends()
stop.leave()
"""


def test_a_signal_while_a_rank_ends():
    """A launcher sends this when another rank has ended. The exit code stays
    that of a saved run."""
    result = subprocess.run([sys.executable, '-c', LEAVES], timeout=60)
    assert result.returncode == mmib.stop.EXIT_CODE
