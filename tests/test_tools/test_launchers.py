# Copyright (c) mmib contributors. All rights reserved.
import os
import os.path as osp
import re
import subprocess
import sys

import pytest
import torch
from make_demo_data import make_demo_data

from tests.helpers.processes import free_port

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
TOOLS = osp.join(ROOT, 'tools')
CONFIG = osp.join(ROOT, 'configs', 'upernet',
                  'upernet_r18_1xb8-300-infobatch_demo-64x64.py')
# Writes down how many threads of gloo there are when the config is read, and
# when the interpreter ends.
CHILD = f"""
_base_ = {CONFIG!r}
custom_imports = dict(imports=['mmib', 'count_threads'])
"""
COUNT_THREADS = """
import atexit, os

def count():
    names = os.popen(f'cat /proc/{os.getpid()}/task/*/comm').read()
    with open(f'threads_{os.environ["RANK"]}', 'a') as file:
        print(names.count('gloo'), file=file)

count()
atexit.register(count)
"""
STOPS = """
custom_imports['imports'].append('stop_torchrun')
custom_hooks = [dict(type='InfoBatchHook'), dict(type='StopTorchrun')]
"""
STOP_TORCHRUN = """
import os, signal
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

@HOOKS.register_module()
class StopTorchrun(Hook):

    def before_run(self, runner):
        self.stops = os.environ['RANK'] == '0'

    def before_train_iter(self, runner, *args, **kwargs):
        if self.stops and runner.iter == 3:
            os.kill(os.getppid(), signal.SIGTERM)
"""
SRUN = r"""#!/usr/bin/env bash
printf "%s\n" "$@" > "$RECORD"
printf "%s" "$PYTHONPATH" > "$RECORD.path"
exit 3
"""


def run(script, *arguments, cwd, programs, **environment):
    """Run a launcher that finds programs in a folder first."""
    path = os.pathsep.join([str(programs), os.environ.get('PATH', '')])
    command = ['bash', script, *map(str, arguments)]
    env = dict(os.environ, PATH=path, **environment)
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True)


WITHOUT_GPUS = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.device_count() < 2,
    reason='needs two GPUs, or none')


def train_with_two_processes(folder, num_iters):
    """Train child.py in a folder. One with a space: arguments must stay in one
    piece."""
    data_root = folder / 'data'
    if not data_root.exists():
        make_demo_data(str(data_root), num_training=8, num_validation=2)
        (folder / 'count_threads.py').write_text(COUNT_THREADS)
    options = [
        f'{split}_dataloader.{option}' for split in ('train', 'val', 'test')
        for option in (f'dataset.data_root={data_root}', 'num_workers=0',
                       'persistent_workers=False')
    ]
    options += [
        'train_dataloader.batch_size=2', f'train_cfg.max_iters={num_iters}',
        f'train_cfg.val_interval={num_iters}',
        'default_hooks.logger.interval=1', 'find_unused_parameters=True'
    ]
    result = run(
        osp.join(TOOLS, 'dist_train.sh'),
        *[folder / 'child.py', 2, '--work-dir', folder / 'work dir'],
        '--cfg-options',
        *options,
        cwd=folder,
        # `python` is the one that runs the tests.
        programs=osp.dirname(sys.executable),
        PORT=str(free_port()),
        PYTHONPATH=str(folder))
    # One that goes on when the interpreter ends may abort the process.
    for rank in range(2):
        *_, before, after = (folder / f'threads_{rank}').read_text().split()
        assert int(before) > 0 and int(after) == 0
    return result.returncode, result.stdout + result.stderr


@WITHOUT_GPUS
def test_dist_train_trains_with_two_processes(tmp_path):
    (tmp_path / 'child.py').write_text(CHILD)
    code, output = train_with_two_processes(tmp_path, 8)
    # torchrun says last how a process ended, after all that MMEngine logs.
    assert code == 0, output[-3000:]
    # Once, though two processes run: MMEngine logs on the first.
    assert output.count('Iter(train) [8/8]') == 1, output
    # 8 images in 2 batches of 2 on 2 ranks: a full pass is 2 iterations.
    for text in ('Distributed launcher: pytorch', 'GPU number: 2', 'mIoU',
                 'virtual epoch 2, '):
        assert text in output
    assert (tmp_path / 'work dir' / 'iter_8.pth').exists()


@pytest.mark.slow
@WITHOUT_GPUS
def test_a_signal_saves_what_dist_train_trains(tmp_path):
    """torchrun hands the signal on to all ranks, and waits for them."""
    (tmp_path / 'child.py').write_text(CHILD + STOPS)
    (tmp_path / 'stop_torchrun.py').write_text(STOP_TORCHRUN)
    code, output = train_with_two_processes(tmp_path, 40)
    assert code != 0 and '[40/40]' not in output
    said = re.search(r'Stopped\. .*: mmib train .*--resume\n', output)
    assert said, output[-3000:]
    path = (tmp_path / 'work dir/last_checkpoint').read_text()
    assert 3 < torch.load(path, weights_only=False)['meta']['iter'] < 40


def test_a_signal_to_dist_train_is_one_to_torchrun(tmp_path):
    """Which ends all ranks: one takes the place of the other."""
    (tmp_path / 'python').write_text('#!/usr/bin/env bash\necho $$\n')
    (tmp_path / 'python').chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ['PATH']])
    command = ['bash', osp.join(TOOLS, 'dist_train.sh'), 'CONFIG', '2']
    with subprocess.Popen(
            command, env=dict(os.environ, PATH=path),
            stdout=subprocess.PIPE) as process:
        assert int(process.stdout.read()) == process.pid


def test_slurm_train_calls_srun(tmp_path):
    # Stands in for Slurm: writes its arguments down, line by line.
    (tmp_path / 'srun').write_text(SRUN)
    (tmp_path / 'srun').chmod(0o755)
    record = tmp_path / 'record'
    folder = tmp_path / 'elsewhere'
    folder.mkdir()
    script = osp.relpath(osp.join(TOOLS, 'slurm_train.sh'), folder)
    result = run(
        script,
        *('gpu', 'a name', 'my config.py', '--infobatch'),
        *('--cfg-options', 'a.b=x y'),
        cwd=folder,
        programs=tmp_path,
        RECORD=str(record),
        GPUS='8',
        SRUN_ARGS='--mem=4G --time=1',
        PYTHONPATH='/other')
    assert result.returncode == 3, result.stderr
    arguments = record.read_text().splitlines()
    train = arguments.index('-u') + 1
    options = ('-p gpu --job-name=a name --gres=gpu:4 --ntasks=8 '
               '--ntasks-per-node=4 --cpus-per-task=5 --kill-on-bad-exit=1 '
               '--mem=4G --time=1 python -u')
    assert ' '.join(arguments[:train]) == options
    assert arguments[1:3] == ['gpu', '--job-name=a name']
    assert arguments[train + 1:] == [
        'my config.py', '--launcher=slurm', '--infobatch', '--cfg-options',
        'a.b=x y'
    ]
    assert osp.samefile(
        osp.join(folder, arguments[train]), osp.join(TOOLS, 'train.py'))
    ours, other = (tmp_path / 'record.path').read_text().split(':')
    assert osp.samefile(osp.join(folder, ours), ROOT) and other == '/other'


@pytest.mark.parametrize('script, arguments, message', [
    ('dist_train.sh', ['CONFIG', '--infobatch'], 'number of GPUs after'),
    ('slurm_train.sh', ['PARTITION', 'CONFIG', '--infobatch'
                        ], 'PARTITION, JOB_NAME and CONFIG'),
])
def test_a_forgotten_argument(tmp_path, script, arguments, message):
    """Nothing is started."""
    result = run(
        osp.join(TOOLS, script), *arguments, cwd=tmp_path, programs=tmp_path)
    assert result.returncode == 2 and result.stdout == ''
    assert message in result.stderr and len(result.stderr.splitlines()) == 1
