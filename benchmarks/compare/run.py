# Copyright (c) mmib contributors. All rights reserved.
"""Train the cells of a comparison: arms x seeds.

Each cell appends a JSON line to its file of results when it ends. What has a
line isn't run again, so a run that was stopped goes on with the next cell. A
cell that was stopped begins anew: MMEngine's checkpoints lack the random state
of the pipeline, so going on would give another result than the command does in
one go. Cells are trained side by side by processes that stay.
"""
import argparse
import copy
import importlib
import math
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Callable, Iterator, List, Sequence, Tuple

import torch
from mmengine.config import Config, DictAction
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings
from torch import nn

from .arms import Cell, chosen
from .recorder import Recorder, environment
from .results import append_result, compare_lines, finished_lines


class Crew:
    """Processes that train cells side by side. They end with this process.

    Args:
        jobs (int): How many.
        deadline (float): Time of ``time.monotonic`` until which cells must
            end. Defaults to infinity.
    """

    def __init__(self, jobs: int, deadline: float = math.inf) -> None:
        self.jobs = jobs
        self.deadline = deadline
        self.num_left = self.num_failed = 0
        # Seconds of an iteration in the cells that ended last.
        self._paces: List[float] = []
        self._pool = ProcessPoolExecutor(
            jobs,
            mp_context=multiprocessing.get_context('spawn'),
            initializer=_end_with_parent)

    def train(self, cells: Sequence[Cell]) -> Iterator[Tuple[Cell, dict]]:
        """Train cells, and give each one with its figures when it ends. What
        fails is said and left out, as is what wouldn't end in time."""
        waiting, running = list(cells), {}
        while waiting or running:
            while waiting and len(running) < self.jobs:
                cell = waiting.pop(0)
                if self._fits(cell):
                    future = self._pool.submit(_train_cell, cell,
                                               torch.get_num_threads())
                    running[future] = cell
                else:
                    self.num_left += 1
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                if error := future.exception():
                    self.num_failed += 1
                    traceback.print_exception(type(error), error, None)
                    print(f'{cell.arm} {cell.seed}: FAILED: {error!r}')
                else:
                    figures = future.result()
                    self._paces.append(figures['seconds'] / cell.iters)
                    yield cell, figures

    def _fits(self, cell: Cell) -> bool:
        pace = max(self._paces[-self.jobs:], default=0.)
        return time.monotonic() + pace * cell.iters <= self.deadline


def _end_with_parent() -> None:

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _train_cell(cell: Cell, threads: int) -> dict:
    warnings.simplefilter('ignore')
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    module = importlib.import_module(cell.module)
    figures = module.train_cell(cell.cfg, cell.seed, **cell.options)
    seconds = round(time.perf_counter() - begin, 2)
    return dict(environment(module.LIBRARIES), **figures, seconds=seconds)


def train(cfg: Config, seed: int, recorder: Recorder) -> nn.Module:
    """Train a config, and return the network."""
    cfg = copy.deepcopy(cfg)
    import_modules_from_strings(**cfg.get('custom_imports', dict(imports=[])))
    # MMEngine keeps a logger, a visualizer and more for each name.
    cfg.experiment_name, cfg.visualizer = uuid.uuid4().hex, None
    cfg.randomness = dict(cfg.get('randomness') or {}, seed=seed)
    cfg.log_level = 'WARNING'
    with tempfile.TemporaryDirectory() as cfg.work_dir:
        runner = Runner.from_cfg(cfg)
        runner.register_hook(recorder)
        runner.train()
    return runner.model


class Comparison:
    """A comparison in progress: what was trained, and who trains the rest.

    Args:
        args (argparse.Namespace): Those of :func:`add_arguments`.
        libraries (Sequence[str]): Libraries on which figures depend.
    """

    def __init__(self, args: argparse.Namespace,
                 libraries: Sequence[str]) -> None:
        self.crew = Crew(args.jobs,
                         time.monotonic() + (args.time_limit or math.inf))
        self.here = environment(libraries)

    def train(self, cells: Sequence[Cell]) -> bool:
        """Train the cells that have no line yet, and return whether all have
        one now."""
        lines = finished_lines(cells, self.here)
        missing = [c for c in cells if c.key not in lines[c.path]]
        left = len(missing)
        print(f'{left} cells to run', flush=True)
        for cell, figures in self.crew.train(missing):
            append_result(cell.path, cell.line(figures))
            left -= 1
            last = {k: round(v, 2) for k, v in figures['evals'][-1].items()}
            print(
                f'{cell.arm} {cell.seed}: {last} in '
                f'{figures["seconds"]:.0f} s; {left} left',
                flush=True)
        return not left

    def again(self, cells: Sequence[Cell], number: int) -> None:
        """Train some finished cells once more, drawn at random, and say
        whether their figures are equal. Results stay as they are."""
        lines = finished_lines(cells, {})
        done = [cell for cell in cells if cell.key in lines[cell.path]]
        if not done:
            raise ValueError('The results have no cell of these arms.')
        drawn = random.sample(done, min(number, len(done)))
        for cell, figures in self.crew.train(drawn):
            old = lines[cell.path][cell.key]
            is_equal, said = compare_lines(old, cell.line(figures))
            self.crew.num_failed += not is_equal
            print(f'{cell.arm} {cell.seed}: {said}', flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what all comparisons may be told."""
    parser.add_argument('--only', nargs='+', help='names of arms')
    parser.add_argument(
        '--seeds', type=int, help='at most so many seeds of each arm')
    parser.add_argument(
        '--jobs', type=int, default=1, help='cells side by side (default: 1)')
    parser.add_argument(
        '--threads', type=int, default=1, help='of each cell (default: 1)')
    parser.add_argument(
        '--device',
        choices=['cuda', 'cpu'],
        help='where to train (default: a GPU, if there is one)')
    parser.add_argument(
        '--time-limit',
        type=float,
        metavar='SECONDS',
        help='start no cell that would end later than so long after the start')
    parser.add_argument(
        '--again',
        type=int,
        metavar='N',
        help='train N finished cells, drawn at random, once more, and say '
        'whether their figures are equal; --out stays as it is')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        default={},
        help='changes to the config of the full training')


def run(parser: argparse.ArgumentParser,
        make_cells: Callable[[argparse.Namespace, Comparison],
                             List[Cell]], libraries: Sequence[str]) -> None:
    """Run the command of a comparison.

    Args:
        parser (argparse.ArgumentParser): Its arguments, with those of
            :func:`add_arguments`.
        make_cells (Callable): Makes all cells, what matters most first. It
            may train others before, by which learning rates are chosen.
        libraries (Sequence[str]): Libraries on which figures depend.
    """
    args = parser.parse_args()
    # Of the processes that train, too.
    torch.set_num_threads(args.threads)
    os.environ.update(
        OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads))
    if args.device == 'cpu':
        os.environ['CUDA_VISIBLE_DEVICES'] = ''
    comparison = Comparison(args, libraries)
    try:
        cells = make_cells(args, comparison)
        if cells:
            cells = chosen(cells, args.only, args.seeds)
        if args.again is None:
            comparison.train(cells)
        else:
            comparison.again(cells, args.again)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if comparison.crew.num_left:
        print(f'{comparison.crew.num_left} cells are left for another time')
    # Cells that wait for another time are no failure.
    sys.exit(bool(comparison.crew.num_failed))
