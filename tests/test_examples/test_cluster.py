# Copyright (c) mmib contributors. All rights reserved.
"""Runs that an engine stops within an epoch and starts again end as those that
were never stopped, to the bit."""
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples.cluster import job
from tests.helpers.processes import run_ranks

CLUSTER = Path(job.__file__).parent
# Batches of a rank until it is stopped, within the third epoch.
STOP = '''
import os, signal, sys
sys.path.append({code!r})
import mmib
weigh, calls = mmib.Session.weigh, []
def stop(*args):
    calls.append(args)
    if len(calls) == 27 and not os.path.exists({mark!r}):
        open({mark!r}, 'w').close()
        os.kill(os.getpid(), signal.{signal})
    return weigh(*args)
if {rank} in (None, os.environ.get('RANK')):
    mmib.Session.weigh = stop
'''


def stopping(tmp_path, signal, rank=None):
    """Code with which a process stops itself once."""
    return STOP.format(
        code=str(CLUSTER),
        mark=str(tmp_path / 'stopped'),
        signal=signal,
        rank=repr(rank))


def train_whole(rank, results, folder):
    model, session = job.train(folder)
    results[rank] = rank


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """The last checkpoint of a run that nothing stopped."""

    @functools.cache
    def of_ranks(world_size):
        folder = str(tmp_path_factory.mktemp('whole'))
        run_ranks(functools.partial(train_whole, folder=folder), world_size)
        return torch.load(f'{folder}/last.pth')

    return of_ranks


def check(folder, expected):
    assert (folder / 'stopped').exists()
    found = torch.load(folder / 'last.pth')
    assert str(found['session']) == str(expected['session'])
    for name, tensor in expected['model'].items():
        assert torch.equal(found['model'][name], tensor), name


def start(*command):
    """Run a command, with paths of this checkout and one thread."""
    path = os.pathsep.join([str(CLUSTER), str(CLUSTER.parents[1]), *sys.path])
    return subprocess.run(
        command,
        env=dict(
            os.environ,
            PYTHONPATH=path,
            OMP_NUM_THREADS='1',
            # gloo may fail to connect before a run begins, also in a group
            # that torchrun starts again.
            GLOO_SOCKET_IFNAME='lo'),
        capture_output=True,
        text=True,
        timeout=600)


# gloo may wait for minutes for a connection, before any rank has begun.
@pytest.mark.slow
def test_torchrun_restarts_after_a_killed_rank(tmp_path, whole):
    script = tmp_path / 'killed.py'
    script.write_text(
        stopping(tmp_path, 'SIGKILL', '1') +
        'import datetime, torch.distributed as dist, job\n'
        "dist.init_process_group('gloo', timeout=datetime.timedelta(0, 60))\n"
        'job.train(sys.argv[1])\n')
    ended = start(sys.executable, '-m', 'torch.distributed.run',
                  '--nproc-per-node', '2', '--max-restarts', '9',
                  '--standalone', str(script), str(tmp_path))
    assert ended.returncode == 0, ended.stderr[-2000:]
    check(tmp_path, whole(2))


def test_submitit_queues_a_preempted_job_again(tmp_path, whole):
    pytest.importorskip('submitit')
    script = tmp_path / 'preempted.py'
    script.write_text(
        stopping(tmp_path, 'SIGUSR2') + 'import on_slurm\n'
        'class Preempted(on_slurm.Job):\n'
        '    def __call__(self, folder):\n'
        f'        exec({stopping(tmp_path, "SIGUSR2")!r}, {{}})\n'
        '        return super().__call__(folder)\n'
        'on_slurm.Job = Preempted\n'
        "on_slurm.submit(sys.argv[1], 'local').result()\n")
    ended = start(sys.executable, str(script), str(tmp_path))
    assert ended.returncode == 0, ended.stderr[-2000:]
    check(tmp_path, whole(1))


# Ray takes most of a minute to start and to end.
@pytest.mark.slow
def test_ray_goes_on_after_a_killed_worker(tmp_path, whole):
    pytest.importorskip('ray.train.torch')
    script = tmp_path / 'killed.py'
    script.write_text(
        stopping(tmp_path, 'SIGKILL', '1') + 'import on_ray\n'
        'def work(config, begin=on_ray.work):\n'
        f'    exec({stopping(tmp_path, "SIGKILL", "1")!r}, {{}})\n'
        '    begin(config)\n'
        'on_ray.work = work\n'
        'on_ray.main(sys.argv[1])\n')
    ended = start(sys.executable, str(script), str(tmp_path))
    assert ended.returncode == 0, ended.stderr[-2000:]
    check(tmp_path, whole(2))
