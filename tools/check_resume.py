# Copyright (c) mmib contributors. All rights reserved.
"""Kill trainings at random moments, resume them, and compare every step with
a training that nothing happened to.

``python tools/check_resume.py`` ends small trainings by SIGKILL 30 times, on
1, 2 and 4 ranks, with and without workers, with each policy, also while a
checkpoint is written. In about a third of them one rank alone is killed, and
the others must end by themselves. The resumed training must go on from the
last checkpoint with the same images, weights and losses on each rank, bit by
bit, to the same model and scores.

Then trainings are killed and resumed on fewer ranks, or with another batch
size. There each slot of each plan must be trained on once, in order, with the
weight of the plan, also of the plan that is open at the change.

Each check adds one line to ``--out``. Checks with a line there are not run
again, so that a stopped script goes on with those that are missing. The exit
status is 1 if anything differs.

OpenMMLab's MMEngine resumes only with ``TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1``.
"""
import argparse
import contextlib
import glob
import hashlib
import itertools
import json
import os
import os.path as osp
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from datetime import timedelta
from multiprocessing import get_context
from typing import List, NamedTuple, Optional, Tuple

import matplotlib.pyplot  # noqa: F401
import torch
import torch._dynamo  # noqa: F401
import torch.distributed as dist
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel, is_model_wrapper
from mmengine.registry import DATA_SAMPLERS, HOOKS
from mmengine.runner import Runner
from mmseg.models import EncoderDecoder
from mmseg.registry import MODELS
from small_training import small_config

from mmib import InfoBatchHook, InfoBatchSampler

MAX_ITERS = 72
INTERVAL = 11  # iterations from checkpoint to checkpoint
TIME_LIMIT = 60  # seconds until a rank counts as one that hangs
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
        batch_size (int): Images of a rank in an iteration. Defaults to 3.
        size (int): Images. Defaults to 53.
    """

    policy: str
    ranks: int
    workers: int
    batch_size: int = 3
    size: int = 53


class Kill(NamedTuple):
    """A training that is killed and resumed.

    Args:
        name (str): Name of the check.
        setting (Setting): The training.
        step (int): Steps after which a rank is killed.
        delay (float): Seconds from the end of this step to the kill.
        victim (int, optional): The rank that is killed. Defaults to None,
            all of them.
    """

    name: str
    setting: Setting
    step: int
    delay: float
    victim: Optional[int] = None


class Change(NamedTuple):
    """A training that is resumed on other numbers of ranks or with other
    batch sizes.

    Args:
        name (str): Name of the check.
        policy (str): Its policy, of :data:`POLICIES`.
        parts (Sequence[tuple[int, int]]): Ranks and batch size of each part.
        steps (Sequence[int]): Steps of the whole training after which each
            part but the last is killed.
        workers (int): Workers of each rank. Defaults to 2.
    """

    name: str
    policy: str
    parts: Tuple[Tuple[int, int], ...]
    steps: Tuple[int, ...]
    workers: int = 2


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


@MODELS.register_module()
class RecordedModel(EncoderDecoder):
    """Keeps which images a step has, by their pixels, and the weights that
    the losses have for them."""

    def loss(self, inputs, data_samples):
        images = inputs[:, 0, 0, 0].int().tolist()
        weights = self.decode_head.loss_decode.weights
        if weights is None:
            weights = torch.ones(len(images))
        self.slots = list(zip(images, weights.tolist()))
        return super().loss(inputs, data_samples)


@DATA_SAMPLERS.register_module()
class RecordedSampler(InfoBatchSampler):
    """Writes down each plan when it is drawn.

    Args:
        record (str): File that lines are added to.
    """

    def __init__(self, *args, record, **kwargs):
        super().__init__(*args, **kwargs)
        self.record = record

    def connect(self, planner):

        def recorded(start, rng):
            plan = planner(start, rng)
            slots = None
            if plan is not None:
                slots = list(zip(plan.indices.tolist(), plan.weights.tolist()))
            append_line(self.record, start=start, plan=slots)
            return plan

        super().connect(recorded)


@HOOKS.register_module()
class RecordHook(Hook):
    """Writes down each step when it is done, before CheckpointHook acts.

    Args:
        record (str): File that lines are added to.
    """

    priority = 'LOW'

    def __init__(self, record):
        self.record = record

    @staticmethod
    def _model(runner):
        model = runner.model
        return model.module if is_model_wrapper(model) else model

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        append_line(
            self.record,
            iter=runner.iter,
            slots=self._model(runner).slots,
            loss=float(outputs['loss']).hex())

    def after_train(self, runner):
        hook, = (h for h in runner.hooks if isinstance(h, InfoBatchHook))
        append_line(
            self.record,
            model=digest(self._model(runner).state_dict().values()),
            scores=digest([torch.from_numpy(hook.scores.numpy())]))


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


def read_records(work_dir, part, ranks):
    """What the ranks of a part of a training wrote down.

    Returns:
        list[Records]: One for each rank.
    """
    records = []
    for rank in range(ranks):
        steps, plans, end = [], [], None
        for line in read_lines(path_of(work_dir, part, rank)):
            if 'iter' in line:
                steps.append(line)
            elif 'start' in line:
                plans.append((len(steps), line['start'], line['plan']))
            else:
                end = line
        records.append(Records(steps, plans, end))
    return records


# Processes -----------------------------------------------------------------


def path_of(work_dir, part, rank, suffix='jsonl'):
    """A file of a rank in a part of a training."""
    return osp.join(work_dir, f'part{part}_rank{rank}.{suffix}')


def train(rank, setting, work_dir, part):
    """Train, or go on from the last checkpoint of the folder."""
    if setting.ranks > 1:
        store = osp.join(work_dir, f'part{part}.store')
        dist.init_process_group(
            'gloo',
            init_method=f'file://{store}',
            rank=rank,
            world_size=setting.ranks,
            timeout=timedelta(seconds=TIME_LIMIT))
    record = path_of(work_dir, part, rank)
    runner = Runner.from_cfg(
        small_config(
            work_dir, **{
                'resume':
                part > 0,
                'model.type':
                'RecordedModel',
                'train_cfg.max_iters':
                MAX_ITERS,
                'optim_wrapper.optimizer.momentum':
                0.9,
                'param_scheduler':
                dict(type='PolyLR', end=MAX_ITERS, by_epoch=False),
                'default_hooks.checkpoint.interval':
                INTERVAL,
                'default_hooks.checkpoint.max_keep_ckpts':
                2,
                'train_dataloader':
                dict(
                    batch_size=setting.batch_size,
                    num_workers=setting.workers,
                    persistent_workers=(setting.workers > 0 and setting.policy
                                        == 'QuantileTiers')),
                'train_dataloader.sampler':
                dict(type='RecordedSampler', record=record),
                'train_dataloader.dataset.size':
                setting.size,
                'custom_hooks': [
                    dict(
                        type='InfoBatchHook', policy=POLICIES[setting.policy]),
                    dict(type='RecordHook', record=record)
                ]
            }))
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


def run_rank(rank, setting, work_dir, part, is_victim):
    """Body of the process of a rank."""
    status = 1
    try:
        os.setpgid(0, 0)  # with its workers
        with open(path_of(work_dir, part, rank, 'log'), 'w') as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        torch.set_num_threads(1)
        train(rank, setting, work_dir, part)
        if is_victim:  # It was faster than the kill.
            time.sleep(TIME_LIMIT)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Without what the parent has registered for its own end.
        os._exit(status)


@contextlib.contextmanager
def start_ranks(setting, work_dir, part, victims=()):
    """Fork the processes of a training, and leave none of them behind.

    What the parent has imported is there in each of them, also what the
    Runner would import late, so that a training takes a second or two.

    Args:
        setting (Setting): The training.
        work_dir (str): Folder of its checkpoints and records.
        part (int): How often it was started before. If it was, it is resumed.
        victims (Sequence[int]): Ranks that wait to be killed in the end.

    Yields:
        list[Process]: One for each rank.
    """
    processes = [
        get_context('fork').Process(
            target=run_rank,
            args=(rank, setting, work_dir, part, rank in victims))
        for rank in range(setting.ranks)
    ]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()


def wait_for_end(processes):
    """Wait until all have ended.

    Returns:
        bool: Whether they did so in time.
    """
    end = time.monotonic() + TIME_LIMIT
    # `join` with a limit would wait for their workers too.
    while any(process.exitcode is None for process in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def wait_for_step(process, path, step):
    """Wait until a rank has written down so many steps.

    Args:
        process (Process): The rank.
        path (str): Its file.
        step (int): Number of steps.

    Raises:
        RuntimeError: If it ends before.
    """
    while sum('iter' in line for line in read_lines(path)) < step:
        time.sleep(0.002)
        if process.exitcode is not None:
            raise RuntimeError(f'a rank ended before its step {step}:\n' +
                               last_lines(path))


def last_lines(path, number=5):
    """The end of the log beside a file of records."""
    with open(osp.splitext(path)[0] + '.log', errors='replace') as file:
        return ''.join(file.readlines()[-number:])


def run_to_end(setting, work_dir, part):
    """Train to the last iteration.

    Returns:
        list[Records]: What each rank wrote down.

    Raises:
        RuntimeError: If a rank fails or hangs.
    """
    with start_ranks(setting, work_dir, part) as processes:
        wait_for_end(processes)
        for rank, process in enumerate(processes):
            if process.exitcode != 0:
                raise RuntimeError(
                    f'rank {rank} ended with {process.exitcode}:\n' +
                    last_lines(path_of(work_dir, part, rank)))
    return read_records(work_dir, part, setting.ranks)


def run_and_kill(setting, work_dir, part, step, delay, victim=None):
    """Train until SIGKILL.

    Args:
        setting (Setting): The training.
        work_dir (str): Folder of its checkpoints and records.
        part (int): How often it was started before.
        step (int): Steps of this part after which a rank is killed.
        delay (float): Seconds from the end of this step to the kill.
        victim (int, optional): The rank. Defaults to None, all of them.

    Returns:
        dict: How each rank ended that wasn't killed.

    Raises:
        RuntimeError: If a rank ends before, or hangs after another one was
            killed.
    """
    victims = range(setting.ranks) if victim is None else [victim]
    with start_ranks(setting, work_dir, part, victims) as processes:
        first = victims[0]
        wait_for_step(processes[first], path_of(work_dir, part, first), step)
        time.sleep(delay)
        for rank in victims:
            processes[rank].kill()
        if not wait_for_end(processes):
            raise RuntimeError(f'a rank hangs since rank {victim} was killed')
        survivors = {
            str(rank):
            how_it_ended(process.exitcode, path_of(work_dir, part, rank))
            for rank, process in enumerate(processes) if rank not in victims
        }
    name_last_checkpoint(work_dir)
    return survivors


def how_it_ended(status, path):
    """The exit status of a rank, and the error that its log ends with."""
    if status == 0:
        return 'exit status 0'
    error = re.sub(r'\[/\S+\] | \[[\d.]+\]:\d+', '', last_lines(path, 1))
    return f'exit status {status}, {error.split(". ")[0].strip()}'


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


def was_saving(work_dir, part):
    """Whether a checkpoint was begun that isn't the last one."""
    with open(path_of(work_dir, part, 0, 'log'), errors='replace') as file:
        begun = re.findall(r'Saving checkpoint at (\d+) iter', file.read())
    return bool(begun) and int(begun[-1]) > last_checkpoint(work_dir)


# Kill and resume -----------------------------------------------------------


def check_kill(kill, reference, work_dir):
    """Kill a training, resume it, and compare it with the reference.

    Args:
        kill (Kill): What to do.
        reference (list[Records]): Of each rank, without a kill.
        work_dir (str): An empty folder.

    Returns:
        dict: The line of the result.
    """
    setting = kill.setting
    survivors = run_and_kill(setting, work_dir, 0, *kill[2:])
    before = read_records(work_dir, 0, setting.ranks)
    resumed_from = last_checkpoint(work_dir)
    if resumed_from < (len(before[0].steps) - 1) // INTERVAL * INTERVAL:
        raise RuntimeError(f'the checkpoint after {resumed_from} is missing')
    while_saving = was_saving(work_dir, 0)
    after = run_to_end(setting, work_dir, 1)
    return dict(
        killed='all' if kill.victim is None else kill.victim,
        steps_when_killed=len(before[kill.victim or 0].steps),
        while_saving=while_saving,
        survivors=survivors,
        resumed_from=resumed_from,
        **compare(reference, before, after, resumed_from))


def compare(reference, before, after, resumed_from):
    """Compare a training that was killed and resumed with one that wasn't.

    Args:
        reference (list[Records]): Of each rank, without a kill.
        before (list[Records]): Until the kill.
        after (list[Records]): From the checkpoint on.
        resumed_from (int): Iterations of the checkpoint.

    Returns:
        dict: What was compared, and what is equal.
    """

    def of_all(key):
        for ref, killed, resumed in zip(reference, before, after):
            begin = ref.steps[:len(killed.steps)]
            yield [s[key] for s in begin] == [s[key] for s in killed.steps]
            rest = ref.steps[resumed_from:]
            yield [s[key] for s in rest] == [s[key] for s in resumed.steps]

    return dict(
        steps_compared=sum(len(r.steps) for r in before + after),
        streams_equal=all(of_all('slots')) and all(of_all('iter')),
        losses_equal=all(of_all('loss')),
        weights_equal=all(r.end['model'] == a.end['model']
                          for r, a in zip(reference, after)),
        scores_equal=all(r.end['scores'] == a.end['scores']
                         for r, a in zip(reference, after)))


# Change of ranks or batch size ---------------------------------------------


def check_change(change, work_dir):
    """Kill and resume a training on other ranks or with another batch size,
    and compare what it trained on with the plans that were drawn.

    Args:
        change (Change): What to do.
        work_dir (str): An empty folder.

    Returns:
        dict: The line of the result.
    """
    stream, plans, changes, resumed_from = [], [], [], [0]
    for part, (ranks, batch_size) in enumerate(change.parts):
        setting = Setting(change.policy, ranks, change.workers, batch_size)
        begin = resumed_from[-1]
        if part < len(change.steps):
            steps = change.steps[part] - begin
            run_and_kill(setting, work_dir, part, steps, 0)
            end = last_checkpoint(work_dir)
            resumed_from.append(end)
            records = read_records(work_dir, part, ranks)
        else:
            records = run_to_end(setting, work_dir, part)
            end = MAX_ITERS
        stream += slots_of(records, begin, end)
        plans += plans_of(records, end - begin)
        changes.append(len(stream))
    return dict(
        parts=change.parts,
        resumed_from=resumed_from[1:],
        slots_compared=len(stream),
        **compare_with_plans(stream, plans, setting.size, changes[:-1]))


def slots_of(records, begin, end):
    """The slots of the iterations of a part, of all ranks in order.

    Rank ``k`` of ``W`` takes the slots ``k, k + W, ...``.

    Args:
        records (list[Records]): Of each rank.
        begin (int): Its first iteration.
        end (int): The one after its last iteration that counts: what came
            after the checkpoint is lost.

    Returns:
        list[list]: Index and weight of each slot.

    Raises:
        RuntimeError: If these aren't the iterations that were recorded.
    """
    slots = []
    steps = [r.steps[:end - begin] for r in records]
    for i, step in enumerate(zip(*steps)):
        if any(rank['iter'] != begin + i for rank in step):
            raise RuntimeError(f'iteration {begin + i} is missing')
        slots += itertools.chain(*zip(*(rank['slots'] for rank in step)))
    if min(map(len, steps)) < end - begin:
        raise RuntimeError(f'iterations until {end} are missing')
    return slots


def plans_of(records, num_steps):
    """The plans that were drawn before a checkpoint.

    Args:
        records (list[Records]): Of each rank.
        num_steps (int): Steps until the checkpoint.

    Returns:
        list[tuple]: Start and slots of each plan; None is a full pass.

    Raises:
        RuntimeError: If the ranks drew different ones.
    """
    plans = [[plan[1:] for plan in r.plans if plan[0] < num_steps]
             for r in records]
    if any(p != plans[0] for p in plans):
        raise RuntimeError('the ranks drew different plans')
    return plans[0]


def compare_with_plans(stream, plans, size, changes):
    """Compare the slots that were trained on with the plans.

    Args:
        stream (list[list]): Index and weight of each slot.
        plans (list[tuple]): Start and slots of each plan; None is a full
            pass.
        size (int): Images.
        changes (Sequence[int]): Slots before each change.

    Returns:
        dict: What was compared, and what is equal.
    """
    problems = []
    expected_start = complete = 0
    open_plans = [None] * len(changes)
    for start, plan in plans:
        if start != expected_start:
            problems.append(f'slot {expected_start} begins no plan')
        end = start + (size if plan is None else len(plan))
        slots = stream[start:end]
        if plan is None:
            is_right = len({i
                            for i, _ in slots}) == len(slots) and all(
                                weight == 1 for _, weight in slots)
        else:
            is_right = slots == plan[:len(slots)]
            complete += len(slots) == len(plan)
        if not is_right:
            problems.append(f'the plan of slot {start} is another one')
        for number, change in enumerate(changes):
            if plan is not None and start < change < end:
                open_plans[number] = [change - start, end - change]
        expected_start = end
    if len(stream) > expected_start:
        problems.append(f'slots from {expected_start} on have no plan')
    return dict(
        pruned_plans=complete,
        open_plans=open_plans,
        problems=problems,
        plans_equal=not problems)


# All of it -----------------------------------------------------------------


def draw_kills(number, seed):
    """Choose kills, spread over all settings.

    Args:
        number (int): How many.
        seed (int): Seed of all that is random.

    Returns:
        list[Kill]: The kills.
    """
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
        kills.append(
            Kill(f'kill {i} of seed {seed}', setting, step,
                 rng.uniform(0, 0.1), victim))
    return kills


def draw_changes(seed):
    """Choose when ranks and batch size change.

    Args:
        seed (int): Seed of all that is random.

    Returns:
        list[Change]: The changes.
    """
    rng = random.Random(seed)
    changes = []
    for policy, parts, first in (
        ('MeanThreshold', ((4, 3), (2, 3), (1, 3)), 20),
        ('QuantileTiers', ((1, 3), (1, 2)), 44),
        ('Budget', ((2, 2), (1, 4)), 40),
        ('QuantileTiers', ((1, 3), (4, 2)), 44),
    ):
        text = ' -> '.join(f'{ranks} x {batch}' for ranks, batch in parts)
        steps = tuple(first + 14 * i + rng.randrange(10)
                      for i in range(len(parts) - 1))
        changes.append(Change(f'{text} of seed {seed}', policy, parts, steps))
    return changes


class References:
    """Trainings that nothing happens to, run when they are asked for.

    Args:
        work_dir (str): Folder of their folders.
    """

    def __init__(self, work_dir):
        self.work_dir = work_dir
        self._records = {}

    def __getitem__(self, setting):
        if setting not in self._records:
            with tempfile.TemporaryDirectory(dir=self.work_dir) as work_dir:
                self._records[setting] = run_to_end(setting, work_dir, 0)
        return self._records[setting]


def run_check(check, references):
    """Run one check.

    Args:
        check (Kill or Change): What to do.
        references (References): What to compare kills with.

    Returns:
        dict: The line of the result.
    """
    start = time.time()
    if isinstance(check, Kill):
        setting = check.setting._asdict()
    else:
        setting = dict(policy=check.policy, workers=check.workers)
    try:
        with tempfile.TemporaryDirectory(dir=references.work_dir) as work_dir:
            if isinstance(check, Kill):
                reference = references[check.setting]
                line = check_kill(check, reference, work_dir)
            else:
                line = check_change(check, work_dir)
    except RuntimeError as error:
        line = dict(error=str(error))
    seconds = round(time.time() - start, 1)
    return dict(name=check.name, **setting, **line, seconds=seconds)


def is_equal(line):
    """Whether all that was compared is equal."""
    results = [value for key, value in line.items() if key.endswith('_equal')]
    return 'error' not in line and all(results)


def table(lines):
    """The results, kills together for each number of ranks and workers.

    Args:
        lines (list[dict]): Results.

    Returns:
        str: A Markdown table.
    """
    rows = [
        '| ranks | workers | kills | of one rank | while saving | '
        'steps compared | equal |', '|---|---|---|---|---|---|---|'
    ]
    kills = [line for line in lines if 'ranks' in line]
    changes = [line for line in lines if 'ranks' not in line]
    for ranks, workers in sorted({(k['ranks'], k['workers']) for k in kills}):
        group = [
            k for k in kills if (k['ranks'], k['workers']) == (ranks, workers)
        ]
        rows.append(f'| {ranks} | {workers} | {len(group)} | '
                    f'{sum(k.get("killed", "all") != "all" for k in group)} | '
                    f'{sum(k.get("while_saving", False) for k in group)} | '
                    f'{sum(k.get("steps_compared", 0) for k in group)} | '
                    f'{sum(map(is_equal, group))} |')
    rows += [
        '', '| ranks x batch size | policy | resumed from | open plans | '
        'slots compared | plans complete | equal |',
        '|---|---|---|---|---|---|---|'
    ]
    for line in changes:
        rows.append(
            f'| {line["name"]} | {line["policy"]} | '
            f'{line.get("resumed_from")} | {line.get("open_plans")} | '
            f'{line.get("slots_compared")} | {line.get("pruned_plans")} | '
            f'{is_equal(line)} |')
    rows += ['', 'How ranks ended after another one was killed:']
    ends = [end for k in kills for end in k.get('survivors', {}).values()]
    rows += [f'{n} x {end}' for end, n in Counter(ends).most_common()]
    return '\n'.join(rows)


def main(argv=None):
    """Run what is missing, and say whether anything differs.

    Returns:
        int: The exit status.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('--kills', type=int, default=30, help='default 30')
    parser.add_argument('--seed', type=int, default=0, help='default 0')
    parser.add_argument('--out', metavar='FILE.jsonl', help='results')
    args = parser.parse_args(argv)
    checks = draw_kills(args.kills, args.seed) + draw_changes(args.seed)
    lines = {line['name']: line for line in read_lines(args.out or '')}
    with tempfile.TemporaryDirectory() as work_dir:
        references = References(work_dir)
        for check in checks:
            if check.name in lines:
                continue
            line = lines[check.name] = run_check(check, references)
            if args.out:
                append_line(args.out, **line)
            print('equal ' if is_equal(line) else 'WRONG ', line, flush=True)
    lines = [lines[check.name] for check in checks]
    print(table(lines))
    wrong = [line['name'] for line in lines if not is_equal(line)]
    print(f'{len(wrong)} of {len(lines)} checks differ.', *wrong)
    return int(bool(wrong))


if __name__ == '__main__':
    # An end by `kill` leaves no ranks behind either.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
