# Copyright (c) mmib contributors. All rights reserved.
"""What can go wrong in a training, done to a real one. ``docs/systems.md`` is
the table of it."""
import builtins
import copy
import functools
import os
import os.path as osp
import re
import resource
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from torch.utils.data import get_worker_info

from tests.system.processes import (TIME_LIMIT, free_port, start_ranks,
                                    wait_for_end)
from tests.system.small_training import (BASELINE, IndexDataset, StepLog,
                                         column, distribute, infobatch_hook,
                                         read_lines, small_config,
                                         small_runner)

# Annealing begins at iteration 34.
ITERS = 40
WORKERS = {
    'train_dataloader.num_workers': 2,
    'train_dataloader.persistent_workers': True,
}
RUNNERS = []
DIST_TRAIN = Path(__file__).parents[2] / 'tools' / 'dist_train.sh'


@pytest.fixture(autouse=True)
def keep_runners():
    """Until the workers of the test were stopped."""
    RUNNERS.clear()


@DATASETS.register_module()
class FaultyDataset(IndexDataset):
    """On one rank, some images have other pixels. Others have only ignored
    ones. A worker that finds the file ``armed`` dies, once."""

    def __init__(self, size, broken={}, rank=0, ignored=(), armed=None):
        super().__init__(size)
        self.pixels = broken if rank == get_rank() else {}
        self.ignored = ignored
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
        if index in self.ignored:
            item['data_samples'].gt_sem_seg.data.fill_(255)
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


@HOOKS.register_module()
class TerminateLauncher(Hook):
    """Sends SIGTERM as a job manager does, from the first rank, and waits;
    the other ranks wait for its gradients."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 16 and get_rank() == 0:
            os.kill(int(os.environ['LAUNCHER']), signal.SIGTERM)
            signal.pause()


def build(work_dir, *hooks, **changes):
    runner = small_runner(
        work_dir, **{
            'train_cfg.max_iters': ITERS,
            'default_hooks.checkpoint.interval': 7,
            **changes
        })
    for hook in (StepLog(osp.join(work_dir, 'steps')), *hooks):
        runner.register_hook(hook)
    RUNNERS.append(runner)
    return runner


def train(work_dir, *hooks, **changes):
    runner = build(work_dir, *hooks, **changes)
    distribute(runner)
    runner.train()
    return runner


def train_rank(rank, work_dir, hooks, changes):
    train(work_dir, *hooks, **changes)


def train_ranks(world_size, work_dir, *hooks, **changes):
    """Train in processes of their own, and return how each of them ended."""
    work_dir.mkdir(exist_ok=True)
    prefix = work_dir / f'start_{len(os.listdir(work_dir))}'
    with start_ranks(train_rank, world_size, prefix, work_dir, hooks,
                     changes) as processes:
        assert wait_for_end(processes), 'The training hangs.'
        return [process.exitcode for process in processes]


def steps(work_dir, rank=0):
    return read_lines(work_dir / f'steps_rank{rank}.jsonl')


def slots(work_dir, start=0):
    """Images and weights from an iteration on."""
    return [
        slot for step in steps(work_dir) if step['iter'] >= start
        for slot in zip(step['images'], step['weights'], strict=True)
    ]


def kind_of_error(work_dir):
    """Of what the first training ended, on the first rank. What torch or the
    system say of it is theirs."""
    text = (work_dir / 'start_0_rank0.error').read_text()
    return getattr(builtins, text.split(':')[0])


def log(work_dir):
    """All lines of all log files."""
    return ''.join(path.read_text() for path in work_dir.glob('*/*.log'))


def checkpoint(work_dir, iteration):
    return work_dir / f'iter_{iteration}.pth'


def load(work_dir, iteration):
    return torch.load(checkpoint(work_dir, iteration), weights_only=False)


def assert_checkpoints(work_dir, saved, last):
    """Iterations of the checkpoints that are there, and of the one that
    MMEngine resumes from."""
    assert {path.name
            for path in work_dir.glob('*.pth')
            } == {f'iter_{iteration}.pth'
                  for iteration in saved}
    name = (work_dir / 'last_checkpoint').read_text()
    assert name == str(checkpoint(work_dir, last))


def assert_exact(work_dir, reference, world_size=1):
    """Each step, before the fault and after it, is that of a training that
    had none, and so are the weights of the model in the end."""
    for rank in range(world_size):
        expected = {step['iter']: step for step in steps(reference, rank)}
        done = steps(work_dir, rank)
        assert {step['iter'] for step in done} == set(range(ITERS))
        assert done == [expected[step['iter']] for step in done]
    assert np.max(column(done, 'weights')) > 1
    assert_same_end(work_dir, reference)


def assert_same_end(work_dir, reference):
    """The same weights of the model, scores and accounts."""
    end, expected = load(work_dir, ITERS), load(reference, ITERS)
    for name, value in expected['state_dict'].items():
        assert torch.equal(end['state_dict'][name], value), name
    end, expected = end['infobatch'], expected['infobatch']
    assert torch.equal(end['scores']['scores'], expected['scores']['scores'])
    for name in ('full_equivalent', 'num_epochs'):
        assert end['planner'][name] == expected['planner'][name]


def resume(folder, finished, iteration, **changes):
    """Go on from a checkpoint of another folder."""
    train(
        folder,
        resume=True,
        load_from=str(checkpoint(finished, iteration)),
        **changes)


def test_names_of_trainings():
    """Those of one name and second would share the log of the first one, and
    a seed makes random numbers equal."""
    names = set()
    for _ in range(10):
        torch.manual_seed(0)
        names.add(small_config('unused').experiment_name)
    assert len(names) == 10


@pytest.fixture
def folders(tmp_path):
    return tmp_path / 'fault', tmp_path / 'reference'


def processes_of(work_dir):
    """Process numbers of those that were called with this folder."""
    for path in Path('/proc').glob('[0-9]*/cmdline'):
        try:
            if str(work_dir) in path.read_text():
                yield int(path.parent.name)
        except OSError:  # It has just ended.
            pass


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.device_count() < 2,
    reason='needs two GPUs, or none')
def test_sigterm_of_dist_train(tmp_path):
    """All ranks end."""
    folder = tmp_path / 'work_dir'
    cfg = small_config(
        folder, **{
            'train_cfg.max_iters': 10**6,
            'default_hooks.checkpoint.interval': 7,
            'custom_imports': dict(imports=['tests.system.test_faults'])
        })
    cfg.custom_hooks.append(dict(type='TerminateLauncher'))
    cfg.dump(str(tmp_path / 'config.py'))
    programs = osp.dirname(sys.executable), os.environ['PATH']
    # The number of the shell, which becomes torchrun.
    launch = 'LAUNCHER=$$ exec bash "$@"', '-', DIST_TRAIN
    try:
        ended = subprocess.run(
            ['bash', '-c', *launch, tmp_path / 'config.py', '2'],
            env={
                **os.environ, 'PORT': str(free_port()),
                'PATH': os.pathsep.join(programs)
            },
            timeout=TIME_LIMIT)
        assert ended.returncode != 0
        assert not list(processes_of(tmp_path))
    finally:
        for process in processes_of(tmp_path):
            os.kill(process, signal.SIGKILL)
    assert_checkpoints(folder, saved=[7, 14], last=14)
    sampler = load(folder, 14)['infobatch']['sampler']
    assert sampler['position'] == 14 * 3 * 2


def fill_disk(work_dir):
    """Let no file become as long as a checkpoint, as on a full disk."""
    size = checkpoint(work_dir, 7).stat().st_size * 9 // 10
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


@pytest.fixture
def free_disk():
    """Takes back what :func:`fill_disk` did."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    free = partial(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
    yield free
    free()


def test_a_full_disk(folders, free_disk):
    """MMEngine's own error, that of a training without mmib."""
    fault, reference = folders
    train(reference)
    errors = []
    for folder, changes in ((fault / 'baseline', BASELINE), (fault, {})):
        fill = At(10, partial(fill_disk, folder))
        with pytest.raises(OSError) as raised:
            train(folder, fill, log_level='WARNING', **changes)
        free_disk()
        assert raised.traceback[-1].path.name == 'local_backend.py'
        errors.append((raised.type, raised.value.errno))
        # The new checkpoint is cut off, and isn't the last one.
        assert_checkpoints(folder, saved=[7, 14], last=7)
        with pytest.raises((OSError, RuntimeError)):
            load(folder, 14)
    assert errors[0] == errors[1]
    train(fault, resume=True)
    assert_exact(fault, reference)


def test_a_full_disk_with_one_checkpoint(tmp_path, free_disk):
    """MMEngine removes it before it saves the next one, also in the
    baseline."""
    for folder, changes in ((tmp_path / 'a', BASELINE), (tmp_path / 'b', {})):
        fill = At(8, partial(fill_disk, folder))
        changes = {**changes, 'default_hooks.checkpoint.max_keep_ckpts': 1}
        with pytest.raises(OSError):
            train(folder, fill, log_level='WARNING', **changes)
        free_disk()
        assert_checkpoints(folder, saved=[14], last=7)
        with pytest.raises(FileNotFoundError, match='iter_7.pth'):
            train(folder, resume=True, **changes)


def test_a_full_disk_with_ranks(folders):
    """No rank waits for the one that failed."""
    fault, reference = folders
    ends = train_ranks(
        2, fault, At(10, partial(fill_disk, fault)), log_level='WARNING')
    assert ends == [1, 1]
    # What the other rank says of the connection isn't always the same.
    assert kind_of_error(fault) is OSError
    assert_checkpoints(fault, saved=[7, 14], last=7)
    assert train_ranks(2, fault, resume=True) == [0, 0]
    assert train_ranks(2, reference) == [0, 0]
    assert_exact(fault, reference, world_size=2)


def test_a_worker_dies(folders):
    fault, reference = folders
    armed = reference / 'armed'
    changes = {
        'train_dataloader.dataset.type': 'FaultyDataset',
        'train_dataloader.dataset.armed': str(armed),
        **WORKERS
    }
    # In a process of its own, as torch would raise the error once more in
    # this one, whenever another worker ends.
    reference.mkdir()
    ends = train_ranks(1, fault, At(17, armed.touch), **changes)
    assert ends == [1]
    # torch's own, or that of the connection where it died amid a batch.
    assert issubclass(kind_of_error(fault), (RuntimeError, EOFError, OSError))
    assert not armed.exists()
    assert_checkpoints(fault, saved=[7, 14], last=14)
    train(fault, resume=True, **changes)
    train(reference, **changes)
    assert_exact(fault, reference)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    """The folder of a training that went well."""
    folder = tmp_path_factory.mktemp('finished')
    train(folder)
    return folder


@pytest.mark.parametrize('size', [0, 100, 10000, -10, None])
def test_a_checkpoint_that_is_cut_off(finished, tmp_path, size):
    """An error before the first step, and an earlier one goes on. None: it
    was killed in the moment in which MMEngine writes the name."""
    for iteration in (21, 28):
        shutil.copy(checkpoint(finished, iteration), tmp_path)
    newest = checkpoint(tmp_path, 28)
    name = tmp_path / 'last_checkpoint'
    if size is None:
        name.write_text('')
    else:
        name.write_text(str(newest))
        os.truncate(newest, size % newest.stat().st_size)
    with pytest.raises(
            FileNotFoundError if size is None else (EOFError, OSError,
                                                    RuntimeError)):
        train(tmp_path, resume=True)
    assert steps(tmp_path) == []
    resume(tmp_path, tmp_path, 21)
    assert steps(tmp_path) == steps(finished)[21:]


def parts(state, *path):
    """The keys of all parts of a state."""
    for key, part in state.items():
        yield (*path, key)
        if isinstance(part, dict) and key != 'plans_rng':
            yield from parts(part, *path, key)


def test_a_state_with_a_missing_part(finished, tmp_path):
    """An error before the first step, or the part made no difference."""
    complete = load(finished, 21)
    errors = 0
    for path in parts(complete['infobatch']):
        damaged = copy.deepcopy(complete)
        *above, last = path
        del functools.reduce(dict.get, above, damaged['infobatch'])[last]
        folder = tmp_path / '.'.join(path)
        folder.mkdir()
        torch.save(damaged, checkpoint(folder, 21))
        try:
            resume(folder, folder, 21)
        except ValueError as error:
            assert 'in the checkpoint lacks' in str(error)
            errors += 1
            assert steps(folder) == [], path
        else:
            assert steps(folder) == steps(finished)[21:], path
    assert errors > 20


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
    visits = sum(
        index in (3, 8) for step in steps(tmp_path, rank=1)[:34]
        for index in step['images'])
    assert visits > 3
    warned = re.findall(r'InfoBatch: (\d+) losses of images were NaN or inf',
                        log(tmp_path))
    assert sum(map(int, warned)) == visits
    state = load(tmp_path, ITERS)['infobatch']['scores']
    assert state['non_finite'] == visits
    assert torch.isfinite(state['scores']).all()
    assert np.isfinite(column(steps(tmp_path), 'loss')).all()
    losses = set(map(str, column(steps(tmp_path, rank=1), 'loss')))
    assert {'nan', 'inf'} < losses
    assert np.max(column(steps(tmp_path), 'weights')) > 1


def test_weights_of_the_model_that_are_nan(tmp_path):
    """The training goes on to its end, as without mmib."""
    losses = []
    for name, changes in (('baseline', BASELINE), ('mmib', {})):
        folder = tmp_path / name
        broken = dict(type='FaultyDataset', broken={'4': float('nan')})
        train(folder, **{'train_dataloader.dataset': broken, **changes})
        losses.append(column(steps(folder), 'loss'))
    assert len(losses[0]) == len(losses[1]) == ITERS
    np.testing.assert_array_equal(np.isnan(losses[0]), np.isnan(losses[1]))
    assert np.isnan(losses[1][-1])


# The first batch, and a third of the next ones.
IGNORED = (10, 0, 4, 6)


@pytest.mark.parametrize('avg_non_ignore', [False, True])
def test_images_that_are_all_ignored(tmp_path, avg_non_ignore):
    """They are easy images: pruned, and unbiased. That a whole batch of them
    has the loss of the baseline is in tests/test_tasks/test_losses.py."""
    loss = dict(loss_decode=dict(avg_non_ignore=avg_non_ignore))
    changes = {
        'model': dict(decode_head=loss, auxiliary_head=loss),
        'train_dataloader.dataset': dict(
            type='FaultyDataset', ignored=IGNORED),
        'train_cfg.max_iters': 200
    }
    runner = train(tmp_path, **changes)
    assert set(steps(tmp_path)[0]['images']) == set(IGNORED[:3])
    losses = column(steps(tmp_path), 'loss')
    assert losses[0] == 0 and np.isfinite(losses).all()
    hook = infobatch_hook(runner)
    scores = hook.scores.numpy()
    assert (scores[list(IGNORED)] == 0).all()
    assert (np.delete(scores, IGNORED) > 0).all()
    weights = [w for index, w in slots(tmp_path) if index in IGNORED]
    assert max(weights) > 1
    passes = hook.planner.epoch.covered_until(200 * 3)
    assert sum(weights) / passes / len(IGNORED) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    'size, loader', [
        (5, dict(num_workers=4)),
        (2, dict(num_workers=2)),
        (2, dict(num_workers=0)),
    ],
    ids=str)
def test_plans_shorter_than_the_lookahead_or_a_batch(folders, size, loader):
    """Also what is in flight over several plans goes on exactly."""
    fault, reference = folders
    changes = dict(train_dataloader=dict(dataset=dict(size=size), **loader))
    train(reference, **changes)
    if size == 5:
        assert any(weight > 1 for _, weight in slots(reference))
    for iteration in (7, 14, 35):
        folder = fault / str(iteration)
        resume(folder, reference, iteration, **changes)
        assert steps(folder) == steps(reference)[iteration:]
        assert_same_end(folder, reference)


def baseline_images(folder, **changes):
    """The images of the steps of ``InfiniteSampler`` without mmib."""
    train(folder, **BASELINE, **changes)
    return column(steps(folder), 'images')


@pytest.mark.parametrize('size', [11, 13])
def test_a_checkpoint_without_scores_of_these_images(finished, folders, size):
    """Of the baseline, or of a data set of another length: the stream is
    that of the baseline, and nothing is pruned in the first full pass."""
    fault, baseline = folders
    changes = {'train_dataloader.dataset.size': size}
    expected = sum(baseline_images(baseline, **changes)[14:], [])
    resume(fault, baseline if size == 11 else finished, 14, **changes)
    reason = ('the checkpoint is of a training without InfoBatchHook'
              if size == 11 else 'the checkpoint is of 11 images, and '
              '`train_dataloader.dataset` has 13 images')
    assert (f'WARNING - InfoBatch: {reason}. All scores start at 1, and '
            'nothing is pruned until every image') in log(fault)
    images, weights = zip(*slots(fault))
    # The slots before the first one that stands for another image.
    end = next(i for i, weight in enumerate(weights) if weight > 1)
    assert set(images[:end]) == set(range(size))
    same = [a == b for a, b in zip(images, expected)].index(False)
    assert same >= size
    # What follows are whole plans.
    assert max(weights[same:]) > 1
    # The closing line counts visits where the accounts begin anew.
    passes_of, pruned, visits = map(
        int,
        re.search(
            f'InfoBatch: {ITERS} iterations covered as many passes as '
            r'(\d+) iterations of the baseline; (\d+) of (\d+) visits .* '
            'since iteration 14', log(fault)).groups())
    assert abs(visits - pruned - 3 * (ITERS - 14)) <= 1
    saved_before = 0
    if size == 13:
        planner = load(finished, 14)['infobatch']['planner']
        saved_before = planner['full_equivalent'] - 14
    assert abs(passes_of - ITERS - saved_before - pruned / 3) <= 1


def test_another_policy(finished, tmp_path):
    """The open plan ends, then the new policy draws the next one."""
    left = load(finished, 21)['infobatch']['sampler']['indices']
    hook = dict(type='InfoBatchHook', policy=dict(type='QuantileTiers'))
    resume(tmp_path, finished, 21, custom_hooks=[hook])
    assert len(left) > 2
    assert slots(tmp_path)[:len(left)] == slots(finished, 21)[:len(left)]
    assert 'the next plans are those of QuantileTiers(' in log(tmp_path)
    assert re.search(r'by tier \d+ of \d+, \d+ of \d+, \d+ of', log(tmp_path))


@pytest.mark.parametrize(
    'changes, begins', [
        (dict(custom_hooks=[dict(type='InfoBatchHook', delta=0.6)]), 24),
        ({
            'train_cfg.max_iters': 60
        }, 51),
    ],
    ids=str)
def test_another_annealing(finished, tmp_path, changes, begins):
    """It follows from the config of the resumed training."""
    resume(tmp_path, finished, 14, **changes)
    pruned = [
        step['iter'] for step in steps(tmp_path) if max(step['weights']) > 1
    ]
    assert begins - 4 < pruned[-1] < begins
    assert {index
            for index, _ in slots(tmp_path, begins)[:11]} == set(range(11))
    assert f'annealing begins at iteration {begins} instead of 34' in log(
        tmp_path)


def test_another_seed(finished, tmp_path):
    """The one in the checkpoint counts."""
    resume(tmp_path, finished, 14, **{'randomness.seed': 5})
    assert steps(tmp_path) == steps(finished)[14:]
    assert 'The value of random seed in the checkpoint "0" is' in log(tmp_path)


def test_load_from_is_a_fresh_start(finished, tmp_path):
    runner = build(tmp_path, load_from=str(checkpoint(finished, 14)))
    tables = []
    runner.register_hook(
        At(0, lambda: tables.append(infobatch_hook(runner).scores.numpy())))
    runner.train()
    assert (tables[0] == 1).all()
    assert slots(tmp_path)[:11] == slots(finished)[:11]
    # With other weights.
    assert steps(tmp_path)[0]['loss'] != steps(finished)[0]['loss']
    assert len(steps(tmp_path)) == ITERS
    assert 'InfoBatch goes on' not in log(tmp_path)


def test_without_mmib(finished, folders):
    """A checkpoint of InfoBatch resumes the baseline."""
    fault, baseline = folders
    expected = baseline_images(baseline)[14:]
    resume(fault, finished, 14, **BASELINE)
    assert column(steps(fault), 'images') == expected


def test_testing(finished, tmp_path):
    """With a config of InfoBatch and its checkpoint."""
    runner = build(
        tmp_path,
        load_from=str(checkpoint(finished, 14)),
        test_dataloader=dict(
            sampler=dict(type='DefaultSampler', shuffle=False),
            dataset=dict(type='ValDataset', size=6)),
        test_cfg=dict(type='TestLoop'),
        test_evaluator=dict(type='IoUMetric'),
        **{'model.test_cfg': dict(mode='whole')})
    assert np.isfinite(runner.test()['mIoU'])
    assert steps(tmp_path) == []
