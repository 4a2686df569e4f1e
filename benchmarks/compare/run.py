# Copyright (c) mmib contributors. All rights reserved.
"""Train the cells of a comparison: arms x seeds.

Each cell appends a JSON line to its file of results when it ends. What has a
line isn't run again, so a run that was stopped goes on with the next cell. A
cell that was stopped begins anew: MMEngine's checkpoints lack the random state
of the pipeline, so going on would give another result than the command does in
one go. Cells are trained side by side by processes that stay.
"""
import argparse
import contextlib
import copy
import importlib
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Callable, Iterator, List, Optional, Sequence, Tuple

import torch
from mmengine.config import Config, DictAction
from mmengine.model import BaseModule
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings
from torch import Tensor, nn

from .arms import Cell, chosen
from .recorder import Recorder, environment
from .results import append_result, finished_lines


class Crew:
    """Processes that train cells side by side. They end with this process."""

    def __init__(self, jobs: int) -> None:
        self.num_failed = 0
        self._pool = ProcessPoolExecutor(
            jobs,
            mp_context=multiprocessing.get_context('spawn'),
            initializer=_end_with_parent)

    def train(self, cells: Sequence[Cell]) -> Iterator[Tuple[Cell, dict]]:
        """Train cells, and give each one with its figures when it ends. A
        failure is printed, and the cell left out, as is a cell that has
        stopped on its way and has no figures yet."""
        threads = torch.get_num_threads()
        running = {
            self._pool.submit(_train_cell, cell, threads): cell
            for cell in cells
        }
        for future in as_completed(running):
            cell = running[future]
            if error := future.exception():
                self.num_failed += 1
                traceback.print_exception(type(error), error, None)
                print(f'{cell.arm} {cell.seed}: FAILED: {error!r}')
            elif figures := future.result():
                yield cell, figures


def _end_with_parent() -> None:

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _train_cell(cell: Cell, threads: int) -> Optional[dict]:
    warnings.simplefilter('ignore')
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    module = importlib.import_module(cell.module)
    figures = module.train_cell(cell.cfg, cell.seed, **cell.options)
    seconds = round(time.perf_counter() - begin, 2)
    return figures and dict(
        environment(module.LIBRARIES), **figures, seconds=seconds)


class FastBackbone(BaseModule):
    """A convolutional backbone channels last, and in bfloat16 if told so. A
    step takes two thirds of the time on a CPU, and half of it in bfloat16."""

    def __init__(self, backbone: nn.Module, bfloat16: bool) -> None:
        super().__init__()
        self.net = backbone.to(memory_format=torch.channels_last)
        self.bfloat16 = bfloat16

    def forward(self, inputs: Tensor) -> Tuple[Tensor, ...]:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(
                inputs.device.type, torch.bfloat16, enabled=self.bfloat16):
            outputs = self.net(inputs)
        return tuple(output.float() for output in outputs)


def train(cfg: Config,
          seed: int,
          recorder: Recorder,
          work_dir: Optional[str] = None) -> nn.Module:
    """Train a config, and return the network. With a ``work_dir`` the training
    goes on from the checkpoint there, if there is one."""
    cfg = copy.deepcopy(cfg)
    import_modules_from_strings(**cfg.get('custom_imports', dict(imports=[])))
    # MMEngine keeps a logger, a visualizer and more for each name.
    cfg.experiment_name, cfg.visualizer = uuid.uuid4().hex, None
    cfg.randomness = dict(cfg.get('randomness') or {}, seed=seed)
    cfg.log_level = 'WARNING'
    cfg.resume = work_dir is not None
    folder = (
        contextlib.nullcontext(work_dir)
        if work_dir else tempfile.TemporaryDirectory())
    with folder as cfg.work_dir:
        runner = Runner.from_cfg(cfg)
        if cfg.get('fast_backbone'):
            runner.model.backbone = FastBackbone(runner.model.backbone,
                                                 **cfg.fast_backbone)
        runner.register_hook(recorder)
        runner.train()
    return runner.model


class Comparison:
    """A comparison in progress: what was trained, and who trains the rest.
    Figures depend on some libraries."""

    def __init__(self, args: argparse.Namespace,
                 libraries: Sequence[str]) -> None:
        self.crew = Crew(args.jobs)
        self.here = environment(libraries)

    def missing(self, cells: Sequence[Cell]) -> List[Cell]:
        """The cells that have no line yet."""
        lines = finished_lines(cells, self.here)
        return [c for c in cells if c.key not in lines[c.path]]

    def train(self, cells: Sequence[Cell]) -> bool:
        """Train the cells that have no line yet, and return whether all have
        one now."""
        missing = self.missing(cells)
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
        '--cfg-options',
        nargs='+',
        action=DictAction,
        default={},
        help='changes to the config of the full training')


def run(parser: argparse.ArgumentParser,
        make_cells: Callable[[argparse.Namespace, Comparison],
                             List[Cell]], libraries: Sequence[str]) -> None:
    """Run the command of a comparison, whose figures depend on some
    libraries. ``make_cells`` makes all cells, what matters most first."""
    args = parser.parse_args()
    # Of the processes that train, too.
    torch.set_num_threads(args.threads)
    os.environ.update(
        OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads))
    if args.device == 'cpu':
        os.environ['CUDA_VISIBLE_DEVICES'] = ''
    comparison = Comparison(args, libraries)
    try:
        if cells := make_cells(args, comparison):
            comparison.train(chosen(cells, args.only, args.seeds))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    sys.exit(bool(comparison.crew.num_failed))
