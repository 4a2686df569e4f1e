# Copyright (c) mmib contributors. All rights reserved.
"""Kill trainings at random moments, resume them, and compare every step with
a training that nothing happened to.

Trainings on 1, 2 and 4 ranks, with and without workers, with each policy, are
ended by SIGKILL, also while a checkpoint is written. In about a third of them
one rank alone is killed, and the others must end by themselves. The resumed
training must go on from the last checkpoint with the same images, weights and
losses on each rank, bit by bit, to the same model and scores.

Then trainings are killed and resumed on other ranks, or with another batch
size. There each slot of each plan must be trained on once, in order, with the
weight of the plan, also of the plan that is open at the change.
"""
import glob
import hashlib
import itertools
import json
import os
import os.path as osp
import random
import re
import time
from typing import List, NamedTuple, Optional, Tuple

import pytest
import torch
import torch.distributed as dist
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel, is_model_wrapper
from mmengine.registry import HOOKS

from tests.system.processes import TIME_LIMIT, start_ranks, wait_for_end
from tests.system.small_training import (infobatch_hook, small_runner,
                                         weights_of_batch)

MAX_ITERS = 72
INTERVAL = 11  # iterations from checkpoint to checkpoint
POLICIES = dict(
    MeanThreshold=dict(type='MeanThreshold'),
    QuantileTiers=dict(type='QuantileTiers'),
    Budget=dict(type='Budget', full_iters=100))
# Short data sets on few ranks: about as many virtual epochs on each number.
SIZES = {1: 29, 2: 53, 4: 101}


class Setting(NamedTuple):
    """What a training is run with.

    Args:
        policy (str): Its policy, of :data:`POLICIES`.
        ranks (int): Processes.
        workers (int): Workers of the data loader of each rank. Those of
            ``QuantileTiers`` are persistent.
        batch_size (int): Images of a rank in an iteration.
        size (int): Images.
    """

    policy: str
    ranks: int
    workers: int
    batch_size: int = 3
    size: int = 53


class Kill(NamedTuple):
    """When a training is killed.

    Args:
        setting (Setting): The training.
        step (int): Steps after which a rank is killed.
        delay (float): Seconds from the end of this step to the kill.
        victim (int, optional): The rank that is killed. None: all of them.
    """

    setting: Setting
    step: int
    delay: float
    victim: Optional[int] = None


class Change(NamedTuple):
    """A training that goes on with other ranks or batch sizes.

    Args:
        policy (str): Its policy, of :data:`POLICIES`.
        parts (Sequence[tuple[int, int]]): Ranks and batch size of each part.
        steps (Sequence[int]): Steps of the whole training after which each
            part but the last is killed.
    """

    policy: str
    parts: Tuple[Tuple[int, int], ...]
    steps: Tuple[int, ...]


# What is recorded ----------------------------------------------------------


def append_line(path, **line):
    """Add a line of JSON to a file, in one write that survives SIGKILL."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, (json.dumps(line) + '\n').encode())
    os.close(descriptor)


def read_lines(path):
    """The whole lines of such a file; none if there is no file."""
    if not osp.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file if line.endswith('\n')]


def digest(tensors):
    """A name of the exact values of tensors."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


@HOOKS.register_module()
class RecordHook(Hook):
    """Writes down each plan when it is drawn, and each step when it is done,
    before CheckpointHook acts.

    Args:
        record (str): File that lines are added to.
    """

    # After InfoBatchHook has given the losses their weights.
    priority = 'LOW'

    def __init__(self, record):
        self.record = record

    def before_run(self, runner):
        infobatch_hook(runner).plan_observers.append(self.record_plan)

    def record_plan(self, epoch, plan):
        if plan is not None:
            plan = list(zip(plan.indices.tolist(), plan.weights.tolist()))
        append_line(self.record, start=epoch.start, plan=plan)

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        images = [int(image[0, 0, 0]) for image in data_batch['inputs']]
        weights = weights_of_batch(runner)
        weights = [1.] * len(images) if weights is None else weights.tolist()
        self.slots = list(zip(images, weights, strict=True))

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        append_line(
            self.record,
            iter=runner.iter,
            slots=self.slots,
            loss=float(outputs['loss']).hex())

    def after_train(self, runner):
        model = runner.model
        model = model.module if is_model_wrapper(model) else model
        scores = torch.from_numpy(infobatch_hook(runner).scores.numpy())
        append_line(
            self.record,
            model=digest(model.state_dict().values()),
            scores=digest([scores]))


class Records(NamedTuple):
    """What one rank wrote down in one process.

    Args:
        steps (list[dict]): ``iter``, ``slots`` and ``loss`` of each step.
        plans (list[tuple]): Steps that were done when it was drawn, ``start``
            and ``plan`` of each plan; None is a full pass.
        end (dict, optional): ``model`` and ``scores`` after the last step.
    """

    steps: List[dict]
    plans: List[tuple]
    end: Optional[dict]


def read_records(prefix, ranks):
    """What the ranks of a part of a training wrote down."""
    records = []
    for rank in range(ranks):
        steps, plans, end = [], [], None
        for line in read_lines(f'{prefix}_rank{rank}.jsonl'):
            if 'iter' in line:
                steps.append(line)
            elif 'start' in line:
                plans.append((len(steps), line['start'], line['plan']))
            else:
                end = line
        records.append(Records(steps, plans, end))
    return records


# Trainings -----------------------------------------------------------------


def train(rank, setting, work_dir, prefix, resume, victims):
    """Train, or go on from the last checkpoint of the folder."""
    record = f'{prefix}_rank{rank}.jsonl'
    runner = small_runner(
        work_dir,
        resume=resume,
        train_cfg=dict(max_iters=MAX_ITERS),
        optim_wrapper=dict(optimizer=dict(momentum=0.9)),
        param_scheduler=dict(type='PolyLR', end=MAX_ITERS, by_epoch=False),
        default_hooks=dict(
            checkpoint=dict(interval=INTERVAL, max_keep_ckpts=2)),
        train_dataloader=dict(
            batch_size=setting.batch_size,
            num_workers=setting.workers,
            persistent_workers=(setting.workers > 0
                                and setting.policy == 'QuantileTiers'),
            dataset=dict(size=setting.size)),
        custom_hooks=[
            dict(type='InfoBatchHook', policy=POLICIES[setting.policy]),
            dict(type='RecordHook', record=record)
        ])
    if setting.ranks > 1:
        # MMEngine's launcher wraps models for GPUs alone. By default, torch
        # orders the gradients anew after the first step of a process, and with
        # the order changes in which gloo adds those of four ranks: the last
        # bit of some weights. With this argument it doesn't.
        runner.model = MMDistributedDataParallel(
            runner.model, find_unused_parameters=True)
    runner.train()
    if setting.ranks > 1:
        dist.barrier()
    if rank in victims:  # It was faster than the kill.
        time.sleep(TIME_LIMIT)


def start(setting, work_dir, part, victims=()):
    """Start the ranks of a part of a training: all but the first resume."""
    prefix = osp.join(work_dir, f'part{part}')
    return start_ranks(train, setting.ranks, prefix, setting, work_dir, prefix,
                       part > 0, victims)


def log_of(work_dir, part, rank):
    with open(
            osp.join(work_dir, f'part{part}_rank{rank}.log'),
            errors='replace') as file:
        return file.read()


def run_to_end(setting, work_dir, part):
    """Train to the last iteration, and return what each rank wrote down."""
    with start(setting, work_dir, part) as processes:
        wait_for_end(processes)
        for rank, process in enumerate(processes):
            assert process.exitcode == 0, log_of(work_dir, part, rank)[-2000:]
    return read_records(osp.join(work_dir, f'part{part}'), setting.ranks)


def run_and_kill(setting, work_dir, part, step, delay, victim=None):
    """Train until SIGKILL of a rank, or of all, after a step and a delay.

    Returns:
        list[Records]: What each rank wrote down.
    """
    prefix = osp.join(work_dir, f'part{part}')
    victims = range(setting.ranks) if victim is None else [victim]
    with start(setting, work_dir, part, victims) as processes:
        path = f'{prefix}_rank{victims[0]}.jsonl'
        while sum('iter' in line for line in read_lines(path)) < step:
            time.sleep(0.002)
            if processes[victims[0]].exitcode is not None:
                pytest.fail(log_of(work_dir, part, victims[0])[-2000:])
        time.sleep(delay)
        for rank in victims:
            processes[rank].kill()
        assert wait_for_end(processes), f'a rank hangs without {victim}'
    name_last_checkpoint(work_dir)
    return read_records(prefix, setting.ranks)


def last_checkpoint(work_dir):
    """Iterations of the checkpoint that MMEngine resumes from, or 0."""
    path = osp.join(work_dir, 'last_checkpoint')
    if not osp.exists(path):
        return 0
    with open(path) as file:
        return iter_of(file.read())


def name_last_checkpoint(work_dir):
    """Name the newest checkpoint if the name is empty.

    MMEngine empties the file before it writes the new name, and a kill may
    come in between. The checkpoint is complete by then, and the user has to
    name it (docs/faults.md).
    """
    path = osp.join(work_dir, 'last_checkpoint')
    if osp.exists(path) and osp.getsize(path) == 0:
        checkpoints = glob.glob(osp.join(work_dir, 'iter_*.pth'))
        with open(path, 'w') as file:
            file.write(max(checkpoints, key=iter_of))


def iter_of(checkpoint):
    """Iterations of a checkpoint, by its name."""
    return int(re.search(r'iter_(\d+)\.pth$', checkpoint)[1])


# Kill and resume -----------------------------------------------------------

SAMPLE = [
    # Its plans are shorter than the lookahead.
    Kill(Setting('Budget', 1, 2, size=13), 36, 0.02),
    Kill(Setting('QuantileTiers', 1, 2, size=29), 44, 0.01),
    Kill(Setting('MeanThreshold', 2, 0), 47, 0., victim=0),
    Kill(Setting('QuantileTiers', 2, 2), 33, 0.01),
]
SAMPLE_CHANGE = Change('MeanThreshold', ((2, 3), (1, 2)), (34, ))


def draw_kills(number, seed):
    """Choose kills, spread over all settings."""
    rng = random.Random(seed)
    settings = []
    for policy, workers in itertools.product(POLICIES, (0, 2)):
        for ranks, size in SIZES.items():
            if policy == 'Budget':  # Several plans are in flight at once.
                size //= 2
            settings.append(Setting(policy, ranks, workers, size=size))
    kills = []
    for i in range(number):
        setting = settings[i % len(settings)]
        step = rng.randrange(1, MAX_ITERS)
        if rng.random() < 0.3:  # so that a checkpoint is written
            step = max(step // INTERVAL, 1) * INTERVAL
        victim = None
        # Of each setting with ranks, in turn one rank and all.
        if setting.ranks > 1 and (i + i // len(settings)) % 2:
            victim = rng.randrange(setting.ranks)
        kills.append(Kill(setting, step, rng.uniform(0, 0.1), victim))
    return kills


def draw_changes(seed):
    """Choose when ranks and batch size change."""
    rng = random.Random(seed)
    return [
        Change(
            policy, parts,
            tuple(first + 14 * i + rng.randrange(10)
                  for i in range(len(parts) - 1)))
        for policy, parts, first in (
            ('MeanThreshold', ((4, 3), (2, 3), (1, 3)), 20),
            ('QuantileTiers', ((1, 3), (1, 2)), 44),
            ('Budget', ((2, 2), (1, 4)), 40),
            ('QuantileTiers', ((1, 3), (4, 2)), 44),
        )
    ]


def pytest_generate_tests(metafunc):
    number, seed = map(metafunc.config.getoption, ('--kills', '--seed'))
    for name, sample, drawn in (('kill', SAMPLE, draw_kills(number, seed)),
                                ('change', [SAMPLE_CHANGE],
                                 draw_changes(seed))):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, [
                pytest.param(item, id=f'sample-{i}')
                for i, item in enumerate(sample)
            ] + [
                pytest.param(
                    item, id=f'seed{seed}-{i}', marks=pytest.mark.slow)
                for i, item in enumerate(drawn)
            ])


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
    """Trainings that nothing happens to, run when they are asked for."""
    records = {}

    def reference_of(setting):
        if setting not in records:
            folder = str(tmp_path_factory.mktemp('reference'))
            records[setting] = run_to_end(setting, folder, 0)
        return records[setting]

    return reference_of


def test_kill(kill, reference, tmp_path, record_property):
    expected = reference(kill.setting)
    work_dir = str(tmp_path)
    before = run_and_kill(kill.setting, work_dir, 0, *kill[1:])
    resumed_from = last_checkpoint(work_dir)
    # No checkpoint is lost but one that was being written.
    done = len(before[0].steps)
    assert resumed_from >= (done - 1) // INTERVAL * INTERVAL
    begun = re.findall(r'Saving checkpoint at (\d+) iter',
                       log_of(work_dir, 0, rank=0))
    after = run_to_end(kill.setting, work_dir, 1)
    for ours, killed, resumed in zip(expected, before, after, strict=True):
        assert killed.steps == ours.steps[:len(killed.steps)]
        assert resumed.steps == ours.steps[resumed_from:]
        assert resumed.end == ours.end is not None
    assert any(weight > 1 for step in ours.steps
               for _, weight in step['slots'])
    record_property('kills', 1)
    record_property('kills of one rank', int(kill.victim is not None))
    record_property('kills while saving',
                    int(bool(begun) and int(begun[-1]) > resumed_from))
    record_property('steps compared after kills',
                    sum(len(r.steps) for r in before + after))


# Change of ranks or batch size ---------------------------------------------


def slots_of(records, begin, end):
    """The slots of the iterations of a part, of all ranks in order: rank
    ``k`` of ``W`` takes the slots ``k, k + W, ...``. What came after the
    checkpoint at ``end`` is lost."""
    slots = []
    for rank in records:
        assert [step['iter'] for step in rank.steps[:end - begin]
                ] == list(range(begin, end))
    for step in zip(*(rank.steps[:end - begin] for rank in records)):
        slots += itertools.chain(*zip(*(rank['slots'] for rank in step)))
    return slots


def plans_of(records, num_steps):
    """Start and slots of the plans that were drawn before a checkpoint, by
    every rank; None is a full pass."""
    plans = [[plan[1:] for plan in rank.plans if plan[0] < num_steps]
             for rank in records]
    assert all(p == plans[0] for p in plans)
    return plans[0]


def compare_with_plans(stream, plans, size):
    """Compare the slots that were trained on with the plans.

    Args:
        stream (list[list]): Index and weight of each slot.
        plans (list[tuple]): Start and slots of each plan.
        size (int): Images.

    Returns:
        int: Plans that were trained to their end, besides full passes.
    """
    end = complete = 0
    for start, plan in plans:
        assert start == end, f'slot {end} begins no plan'
        end += size if plan is None else len(plan)
        slots = stream[start:end]
        if plan is None:
            assert {weight for _, weight in slots} <= {1}
            assert len({index for index, _ in slots}) == len(slots)
        else:
            assert slots == plan[:len(slots)]
            complete += len(slots) == len(plan)
    assert len(stream) <= end, f'slots from {end} on have no plan'
    return complete


def test_change(change, tmp_path, record_property):
    work_dir = str(tmp_path)
    stream, plans, begin = [], [], 0
    for part, (ranks, batch_size) in enumerate(change.parts):
        setting = Setting(change.policy, ranks, 2, batch_size)
        if part < len(change.steps):
            records = run_and_kill(setting, work_dir, part,
                                   change.steps[part] - begin, 0)
            end = last_checkpoint(work_dir)
            assert end > begin
        else:
            records, end = run_to_end(setting, work_dir, part), MAX_ITERS
        stream += slots_of(records, begin, end)
        plans += plans_of(records, end - begin)
        begin = end
    assert compare_with_plans(stream, plans, setting.size) >= 4
    record_property('changes of ranks or batch size', 1)
    record_property('slots compared over changes', len(stream))


# The checks themselves -----------------------------------------------------

PLANS = [(0, None), (3, [[1, 1.5], [2, 1.5]]), (5, [[2, 1.5], [0, 1.5]]),
         (7, None)]
STREAM = [[2, 1.], [0, 1.], [1, 1.], [1, 1.5], [2, 1.5], [2, 1.5], [0, 1.5],
          [1, 1.], [0, 1.]]


@pytest.mark.parametrize(
    'stream, plans',
    [
        (STREAM[:4] + STREAM[5:], PLANS),  # lost
        (STREAM[:4] + STREAM[3:], PLANS),  # twice
        (STREAM[:4] + [[2, 1.]] + STREAM[5:], PLANS),  # without its weight
        (STREAM[:-1] + [[0, 1.5]], PLANS),  # with a weight in a full pass
        (STREAM[:-1] + [[1, 1.]], PLANS),  # twice in a full pass
        (STREAM, PLANS[:1] + PLANS[2:]),  # a plan that nobody drew
        (STREAM, PLANS[:-1]),
    ])
def test_wrong_slots_are_noticed(stream, plans):
    assert compare_with_plans(STREAM, PLANS, 3) == 2
    with pytest.raises(AssertionError):
        compare_with_plans(stream, plans, 3)


def test_the_last_checkpoint_is_named_after_a_kill(tmp_path):
    for iteration in (99, 110):
        (tmp_path / f'iter_{iteration}.pth').touch()
    name = tmp_path / 'last_checkpoint'
    for text, expected in (('iter_99.pth', 99), ('', 110)):
        name.write_text(text)
        name_last_checkpoint(str(tmp_path))
        assert last_checkpoint(str(tmp_path)) == expected
