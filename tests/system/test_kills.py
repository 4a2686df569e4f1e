# Copyright (c) mmib contributors. All rights reserved.
"""Kill trainings at random moments, resume them, and compare every step with
a training that nothing happened to.

Trainings on 1, 2 and 4 ranks, with and without workers, with each policy, are
ended by SIGKILL, also while a checkpoint is written. In about a third of them
one rank alone is killed, and the others must end by themselves. The resumed
training must go on from the last checkpoint with the same images, weights and
losses on each rank, bit by bit, to the same model and scores. Trainings that
count epochs save by iteration too, so that they go on within an epoch.

Other ranks and batch sizes are in ``test_resume.py``.
"""
import functools
import glob
import itertools
import os.path as osp
import random
import re
import time
from typing import NamedTuple, Optional

import pytest
import torch.distributed as dist

from tests.helpers.epochs import by_epoch
from tests.helpers.processes import (TIME_LIMIT, log_of, start_ranks,
                                     wait_for_end)
from tests.helpers.segmentors import (assert_equal, build, distribute, load,
                                      read_lines)

MAX_ITERS = 72
# Of about as many iterations, where epochs count; at least so many.
MAX_EPOCHS, LEAST_ITERS = 12, 60
INTERVAL = 11  # iterations from checkpoint to checkpoint
POLICIES = dict(
    MeanThreshold=dict(type='MeanThreshold'),
    QuantileTiers=dict(type='QuantileTiers'),
    Neyman=dict(type='Neyman', ratio=0.7, num_tiers=3, min_keep=0.3))
# Short datasets on few ranks: about as many virtual epochs on each number.
SIZES = {1: 29, 2: 53, 4: 101}


class Setting(NamedTuple):
    """What a training is run with. The loaders of each rank have workers,
    which are persistent with ``QuantileTiers``. With ``by_epoch`` it counts
    epochs."""

    policy: str
    ranks: int
    workers: int
    size: int = 53
    by_epoch: bool = False


class Kill(NamedTuple):
    """After a step and a delay in seconds, one rank is killed, or all."""

    setting: Setting
    step: int
    delay: float
    victim: Optional[int] = None


# Trainings -----------------------------------------------------------------


def train(rank, setting, work_dir, prefix, resume, victims):
    """Train, or go on from the last checkpoint of the folder."""
    if setting.by_epoch:
        loop = by_epoch(**{'train_cfg.max_epochs': MAX_EPOCHS})
        schedule = dict(end=MAX_EPOCHS, convert_to_iter_based=True)
    else:
        loop = {'train_cfg.max_iters': MAX_ITERS}
        schedule = dict(end=MAX_ITERS, by_epoch=False)
    loop.update({
        'param_scheduler': dict(type='PolyLR', **schedule),
        'default_hooks.checkpoint': dict(
            interval=INTERVAL, max_keep_ckpts=2, by_epoch=False),
        'train_dataloader.num_workers': setting.workers,
        'train_dataloader.persistent_workers': setting.workers > 0
        and setting.policy == 'QuantileTiers',
        'train_dataloader.dataset.size': setting.size,
        'custom_hooks': [
            dict(type='InfoBatchHook', policy=POLICIES[setting.policy]),
            dict(type='StepLog', path=prefix)
        ]
    })
    runner = build(work_dir, resume=resume, **loop)
    # By default, torch orders the gradients anew after the first step of a
    # process, and with the order changes in which gloo adds those of four
    # ranks: the last bit of some weights. With this argument it doesn't.
    distribute(runner, find_unused_parameters=True)
    runner.train()
    if setting.ranks > 1:
        dist.barrier()
    if rank in victims:  # It was faster than the kill.
        time.sleep(TIME_LIMIT)


def run(setting, work_dir, part, kill=None):
    """Train a part of a training, of which all but the first resume, and
    return the steps that each rank wrote down.

    A kill has the values of :class:`Kill` after its setting.
    Without it the training ends.
    """
    prefix = osp.join(work_dir, f'part{part}')
    step, delay, victim = kill or (0, 0, None)
    victims = range(setting.ranks) if victim is None else [victim]

    def steps_of(rank):
        return read_lines(f'{prefix}_rank{rank}.jsonl')

    with start_ranks(train, setting.ranks, prefix, setting, work_dir, prefix,
                     part > 0, victims if kill else ()) as processes:
        if kill:
            first = victims[0]
            while len(steps_of(first)) < step:
                time.sleep(0.002)
                assert processes[first].exitcode is None, log_of(prefix, first)
            time.sleep(delay)
            for rank in victims:
                processes[rank].kill()
        assert wait_for_end(processes), f'a rank hangs without {victim}'
        for rank, process in enumerate(processes):
            assert kill or process.exitcode == 0, log_of(prefix, rank)
    return [steps_of(rank) for rank in range(setting.ranks)]


def end_of(work_dir):
    """What the last checkpoint has of the model and of mmib."""
    newest = max(glob.glob(f'{work_dir}/iter_*.pth'), key=iter_of)
    checkpoint = load(newest)
    return {name: checkpoint[name] for name in ('state_dict', 'infobatch')}


def last_checkpoint(work_dir):
    """Iterations of the checkpoint that MMEngine resumes from, or 0. A kill
    may leave an empty file, which the user has to fill: see
    docs/troubleshooting.md."""
    path = osp.join(work_dir, 'last_checkpoint')
    if not osp.exists(path):
        return 0
    with open(path, 'r+') as file:
        name = file.read()
        if not name:
            name = max(glob.glob(f'{work_dir}/iter_*.pth'), key=iter_of)
            file.write(name)
    return iter_of(name)


def iter_of(checkpoint):
    """Iterations of a checkpoint, by its name."""
    return int(re.search(r'iter_(\d+)\.pth$', checkpoint)[1])


# Kill and resume -----------------------------------------------------------

SAMPLE = [
    # Its plans are shorter than the lookahead.
    Kill(Setting('Neyman', 1, 2, size=13), 36, 0.02),
    Kill(Setting('MeanThreshold', 2, 0), 47, 0., victim=0),
    Kill(Setting('QuantileTiers', 2, 2), 33, 0.01),
    Kill(Setting('Neyman', 2, 2, by_epoch=True), 36, 0.01),
]


def draw_kills(number, seed, by_epoch=False):
    """Choose kills, spread over all settings."""
    rng, settings = random.Random(seed), []
    for policy, workers, ranks in itertools.product(POLICIES, (0, 2), SIZES):
        size = SIZES[ranks]
        if policy == 'Neyman' and not by_epoch:
            size //= 2  # Several plans are in flight at once.
        settings.append(Setting(policy, ranks, workers, size, by_epoch))
    kills = []
    for i in range(number):
        setting = settings[i % len(settings)]
        step = rng.randrange(1, LEAST_ITERS if by_epoch else MAX_ITERS)
        if rng.random() < 0.3:  # so that a checkpoint is written
            step = max(step // INTERVAL, 1) * INTERVAL
        victim = None
        # Of each setting with ranks, in turn one rank and all.
        if setting.ranks > 1 and (i + i // len(settings)) % 2:
            victim = rng.randrange(setting.ranks)
        kills.append(Kill(setting, step, rng.uniform(0, 0.1), victim))
    return kills


def pytest_generate_tests(metafunc):
    if 'kill' not in metafunc.fixturenames:
        return
    number, seed = map(metafunc.config.getoption, ('--kills', '--seed'))
    kills = draw_kills(number, seed) + draw_kills(number, seed, by_epoch=True)
    metafunc.parametrize('kill', [
        *(pytest.param(kill, id=f'sample-{i}')
          for i, kill in enumerate(SAMPLE)),
        *(pytest.param(kill, id=f'seed{seed}-{i}', marks=pytest.mark.slow)
          for i, kill in enumerate(kills))
    ])


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
    """Trainings that nothing happens to, run when they are asked for."""

    @functools.lru_cache(maxsize=None)
    def train(setting):
        work_dir = str(tmp_path_factory.mktemp('reference'))
        return run(setting, work_dir, 0), end_of(work_dir)

    return train


def test_kill(kill, reference, tmp_path, record_property):
    expected, end = reference(kill.setting)
    work_dir = str(tmp_path)
    before = run(kill.setting, work_dir, 0, kill[1:])
    resumed_from = last_checkpoint(work_dir)
    # No checkpoint is lost but one that was being written.
    done = len(before[0])
    assert resumed_from >= (done - 1) // INTERVAL * INTERVAL
    begun = re.findall(r'Saving checkpoint at (\d+) iter',
                       log_of(osp.join(work_dir, 'part0'), rank=0))
    after = run(kill.setting, work_dir, 1)
    for ours, killed, resumed in zip(expected, before, after, strict=True):
        assert killed == ours[:len(killed)]
        assert resumed == ours[resumed_from:]
    assert max(max(step['weights']) for step in ours) > 1
    assert_equal(end_of(work_dir), end)
    record_property('kills', 1)
    record_property('kills of one rank', int(kill.victim is not None))
    record_property('kills while saving',
                    int(bool(begun) and int(begun[-1]) > resumed_from))
    record_property('steps compared after kills',
                    sum(map(len, before + after)))
