# Copyright (c) mmib contributors. All rights reserved.
"""Time from the start of a training to its first step, fresh and resumed.

The config is the flagship's, for one process, with a small network on images
that are made up, so that a CPU is enough and loading costs next to nothing.
The checkpoint comes from a real training of it. Each start is a process of its
own, and they take turns. What their workers load is counted. Stock
MMSegmentation resumes from the same checkpoint with ``InfiniteSampler``.
"""
import argparse
import json
import multiprocessing
import os
import os.path as osp
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from typing import List

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import InfiniteSampler
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmseg.registry import DATASETS

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
sys.path.insert(0, ROOT)
from tests.system.small_training import IndexDataset  # noqa: E402
from tests.system.small_training import small_config  # noqa: E402

FLAGSHIP = osp.join(ROOT, 'configs', 'upernet',
                    'upernet_r50_4xb4-48k-infobatch_ade20k-512x512.py')
TRAININGS = ('fresh', 'resumed', 'stock fresh', 'stock resumed')
# Iterations that the training of the checkpoint runs on, to know what follows.
NUM_FOLLOWING = 50


@DATASETS.register_module()
class CountingDataset(IndexDataset):
    """Writes down what is asked of it, in all processes.

    Args:
        size (int): Number of images.
        capacity (int): Items that may be asked for.
    """

    def __init__(self, size: int, capacity: int) -> None:
        super().__init__(size)
        self.number = multiprocessing.Value('q', 0)
        self._loaded = torch.zeros(capacity, dtype=torch.int64)
        self._loaded.share_memory_()

    @property
    def loaded(self) -> List[int]:
        """list[int]: Indices in the order in which they were loaded."""
        return self._loaded[:self.number.value].tolist()

    def __getitem__(self, index: int) -> dict:
        with self.number.get_lock():
            self._loaded[self.number.value] = index
            self.number.value += 1
        # Few values: those of large ones would break the small network.
        return super().__getitem__(index % 31)


@HOOKS.register_module()
class StopHook(Hook):
    """Ends a training in its first iteration, or later.

    Args:
        after (int): Iterations to run before it. Defaults to 0.
    """

    priority = 'LOWEST'

    def __init__(self, after: int = 0) -> None:
        self.after = after
        self.times = {}
        self.cpu = None

    def before_run(self, runner: Runner) -> None:
        self.times['loop is built'] = time.perf_counter()

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.times['checkpoint is read'] = time.perf_counter()

    def before_train(self, runner: Runner) -> None:
        self.times['hooks are ready'] = time.perf_counter()

    def before_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        if runner.iter >= self.after:
            self.times['first step'] = time.perf_counter()
            self.cpu = time.process_time()
            runner.train_loop.stop_training = True
            self._wait(runner.train_dataloader.dataset)

    @staticmethod
    def _wait(dataset: CountingDataset) -> None:
        """Let the workers load all that they were asked for."""
        number = -1
        while number < dataset.number.value:
            number = dataset.number.value
            time.sleep(0.2)


def make_config(args: argparse.Namespace) -> Config:
    """The flagship's config with a small network.

    Args:
        args (argparse.Namespace): The options of this script.
    """
    cfg = Config.fromfile(FLAGSHIP)
    # The last checkpoint of the flagship's 48k iterations before annealing.
    max_iters = max(
        round(1.2 * args.iteration), args.iteration + NUM_FOLLOWING + 1)
    batch_size = cfg.train_dataloader.batch_size
    small = small_config(args.work_dir)
    cfg.merge_from_dict({
        'work_dir': args.work_dir,
        'experiment_name': small.experiment_name,
        'randomness': dict(seed=0),
        'train_dataloader.num_workers': args.workers,
        'train_dataloader.persistent_workers': args.workers > 0,
        'train_cfg.max_iters': max_iters,
        'param_scheduler.0.end': max_iters,
        'default_hooks.checkpoint.interval': args.iteration,
    })
    cfg.model = small.model
    cfg.train_dataloader.dataset = dict(
        type='CountingDataset',
        size=args.images,
        # Stock may load all of the past.
        capacity=2 * batch_size * (args.iteration + NUM_FOLLOWING))
    for key in ('val_cfg', 'val_dataloader', 'val_evaluator', 'test_cfg',
                'test_dataloader', 'test_evaluator'):
        cfg[key] = None
    after = 0
    if args.part == 'make':
        after = args.iteration + NUM_FOLLOWING
    elif 'resumed' in args.part:
        cfg.load_from, cfg.resume = checkpoint_of(args), True
    cfg.custom_hooks += [dict(type='StopHook', after=after)]
    if 'stock' in args.part:
        cfg.train_dataloader.sampler.type = 'InfiniteSampler'
        cfg.custom_hooks = cfg.custom_hooks[1:]
    return cfg


def checkpoint_of(args: argparse.Namespace) -> str:
    return osp.join(args.work_dir, f'iter_{args.iteration}.pth')


def run_part(args: argparse.Namespace) -> None:
    """Train in this process, and print what was seen."""
    torch.set_num_threads(1)
    # The first optimizer of a process imports a lot.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    runner = Runner.from_cfg(make_config(args))
    start, start_cpu = time.perf_counter(), time.process_time()
    runner.train()
    stop = next(hook for hook in runner.hooks if isinstance(hook, StopHook))
    loader = runner.train_dataloader
    loaded = loader.dataset.loaded
    # Else they stop at the end of the process, where each may take seconds.
    if args.workers:
        loader._iterator._shutdown_workers()
    if args.part == 'make':
        # Without workers they are loaded as they are trained on.
        loaded = loaded[args.iteration * loader.batch_size:]
    with open(args.result, 'w') as file:
        json.dump(
            dict(
                loaded=loaded,
                batch_size=loader.batch_size,
                cpu=stop.cpu - start_cpu,
                times={
                    name: at - start
                    for name, at in stop.times.items()
                }), file)


def start_part(args: argparse.Namespace, part: str, workers: int) -> dict:
    """Train in a fresh process.

    Args:
        args (argparse.Namespace): The options of this script.
        part (str): 'make' or one of ``TRAININGS``.
        workers (int): Workers of the data loader.

    Returns:
        dict: What it has seen.
    """
    result = osp.join(args.work_dir, 'result.json')
    command = [sys.executable, __file__, '--part', part, '--result', result]
    for name, value in (('iteration', args.iteration), ('workers', workers),
                        ('images', args.images), ('work-dir', args.work_dir)):
        command += [f'--{name}', str(value)]
    # OpenMMLab's loader needs to be told that the checkpoint is its own.
    env = dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD='1')
    process = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env)
    if process.returncode:
        sys.exit(f'{process.stdout[-3000:]}\nThe training "{part}" failed.')
    with open(result) as file:
        return json.load(file)


def following(args: argparse.Namespace) -> dict:
    """Train up to the checkpoint, where there is none, and a little more.

    Args:
        args (argparse.Namespace): The options of this script.

    Returns:
        dict: ``loaded``, indices of the slots after the checkpoint, and
        ``batch_size``.
    """
    path = osp.join(args.work_dir, f'following_{args.iteration}.json')
    if not osp.exists(path):
        result = start_part(args, 'make', workers=0)
        with open(path, 'w') as file:
            json.dump(result, file)
    with open(path) as file:
        return json.load(file)


def stream(args: argparse.Namespace, start: int, number: int) -> List[int]:
    """What stock MMSegmentation trains on from a slot on."""
    sampler = InfiniteSampler(range(args.images), seed=0)
    return list(islice(sampler, start, start + number))


def summarize(runs: List[dict], after: List[int]) -> dict:
    """Figures of the same start, repeated.

    Args:
        runs (list[dict]): What each of them has seen.
        after (list[int]): Indices that follow the point where it starts.

    Returns:
        dict: Its figures.
    """
    seconds = [run['times']['first step'] for run in runs]
    others = [
        sum((Counter(run['loaded']) -
             Counter(after[:len(run['loaded'])])).values()) for run in runs
    ]
    # OneDL starts the workers after the loop is built, OpenMMLab before.
    since_built = [
        run['times']['first step'] - run['times']['loop is built']
        for run in runs
    ]
    return dict(
        seconds=seconds,
        median=float(np.median(seconds)),
        median_since_built=float(np.median(since_built)),
        # Other work of the machine makes this no longer.
        median_cpu=float(np.median([run['cpu'] for run in runs])),
        items=max(len(run['loaded']) for run in runs),
        others=max(others),
        # Where the time goes, in the median.
        times={
            name: float(np.median([run['times'][name] for run in runs]))
            for name in runs[0]['times']
        })


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--iteration',
        type=int,
        default=40_000,
        help='of the checkpoint (default: %(default)s)')
    parser.add_argument(
        '--workers',
        type=int,
        default=4,
        help='besides none (default: %(default)s)')
    parser.add_argument('--images', type=int, default=20_210)
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument(
        '--stock-repeats',
        type=int,
        default=1,
        help='OpenMMLab loads all of the past (default: %(default)s)')
    parser.add_argument(
        '--work-dir', help='keeps the checkpoint for another run')
    parser.add_argument('--out', help='file for all figures, as JSON')
    # For the processes that this one starts.
    parser.add_argument(
        '--part', choices=('make', *TRAININGS), help=argparse.SUPPRESS)
    parser.add_argument('--result', help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(args: argparse.Namespace) -> dict:
    """Start each training, in turns.

    Args:
        args (argparse.Namespace): The options of this script.

    Returns:
        dict: The figures of each, by training and workers.
    """
    result = following(args)
    after, batch_size = result['loaded'], result['batch_size']
    starts = {
        'fresh': stream(args, 0, len(after)),
        'resumed': after,
        'stock fresh': stream(args, 0, len(after)),
        'stock resumed': stream(args, args.iteration * batch_size, len(after)),
    }
    figures = {}
    for workers in (0, args.workers):
        runs = {name: [] for name in TRAININGS}
        for i in range(args.repeats):
            for name in TRAININGS[::-1] if i % 2 else TRAININGS:
                if 'stock' not in name or i < args.stock_repeats:
                    runs[name].append(start_part(args, name, workers))
        for name in TRAININGS:
            if runs[name]:
                figures[f'{name}, {workers} workers'] = summarize(
                    runs[name], starts[name])
    return figures


def main():
    args = parse_args()
    if args.part:
        run_part(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        args.work_dir = osp.abspath(args.work_dir or folder)
        os.makedirs(args.work_dir, exist_ok=True)
        figures = measure(args)
        size = osp.getsize(checkpoint_of(args))
    print(f'Checkpoint of iteration {args.iteration}: {size / 1e6:.1f} MB\n'
          '| start | items loaded before the first step | of those not '
          'trained on next | median s | CPU s of the process | all s |\n'
          '|---|---|---|---|---|---|')
    for name, row in figures.items():
        seconds = ' '.join(f'{s:.2f}' for s in row['seconds'])
        print(f'| {name} | {row["items"]} | {row["others"]} | '
              f'{row["median"]:.3f} | {row["median_cpu"]:.3f} | {seconds} |')
    for workers in (0, args.workers):
        difference = (
            figures[f'resumed, {workers} workers']['median'] -
            figures[f'fresh, {workers} workers']['median'])
        print(f'With {workers} workers resuming takes {difference:+.3f} s '
              'against a fresh start.')
    if args.out:
        with open(args.out, 'w') as file:
            json.dump(figures, file, indent=1)


if __name__ == '__main__':
    main()
