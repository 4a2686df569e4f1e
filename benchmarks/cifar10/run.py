# Copyright (c) mmib contributors. All rights reserved.
"""Compare ways to train on CIFAR-10: tune learning rates, then run arms x
seeds. With --config without tuning, and with the main arms alone.

Each cell appends a JSON line to a file of the results when it ends. What has
a line isn't run again, so a run that was stopped goes on. Cells are trained
side by side by processes that stay.
"""
import argparse
import copy
import json
import math
import multiprocessing
import os
import os.path as osp
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np
from mmengine.config import Config, DictAction

from benchmarks.camvid.arm_configs import change, fingerprint
from benchmarks.camvid.results import append_result, read_results

from . import arms as all_arms
from .arms import ARMS, OTHER_ARMS, PASSES, RATES, TUNED, TUNING_SEEDS

CONFIG = osp.join(
    osp.dirname(osp.abspath(__file__)), 'resnet-w16_1xb128-1875_cifar10.py')
TUNING, OFFICIAL = 'learning-rates', 'official'


class Cell(NamedTuple):
    """One training.

    Args:
        file (str): Results that it belongs to.
        arm (str): Name of the arm.
        seed (int): Seed of everything.
        cfg (Config): Config of the arm.
        subset (dict, optional): How a fixed subset is chosen.
    """

    file: str
    arm: str
    seed: int
    cfg: Config
    subset: Optional[dict] = None

    @property
    def key(self) -> tuple:
        return self.file, self.arm, self.seed, fingerprint(self.cfg)

    @property
    def iters(self) -> float:
        """float: Iterations of all that it trains."""
        iters = self.cfg.train_cfg.max_iters
        if self.subset is not None:
            full = self.subset['full']['train_cfg']['max_iters']
            iters += full * self.subset['part'] * self.subset['seeds']
        return iters


def load_base(data: str,
              passes: int = PASSES,
              num_iters: Optional[int] = None,
              changes: Optional[dict] = None,
              config: str = CONFIG) -> Config:
    """Load the config of the full training.

    Args:
        data (str): File of the images.
        passes (int): Passes that it makes, where its file makes 24. Defaults
            to 24.
        num_iters (int, optional): Iterations of those passes of its file, for
            a trial.
        changes (dict, optional): Changes to the config, for a trial.
        config (str): Its file. Defaults to that of the ResNet.
    """
    cfg = Config.fromfile(config, import_custom_modules=False)
    cfg.merge_from_dict(changes or {})
    cfg.train_dataloader.dataset.data_root = osp.abspath(data)
    scale = passes / PASSES
    if num_iters is not None:
        scale *= num_iters / cfg.train_cfg.max_iters
    cfg.train_cfg.max_iters = round(scale * cfg.train_cfg.max_iters)
    for scheduler in cfg.param_scheduler:
        for name in ('begin', 'end', 'T_max'):
            if name in scheduler:
                scheduler[name] = round(scale * scheduler[name])
    return cfg


def make_cell(file: str,
              base: Config,
              name: str,
              seed: int,
              rate: float,
              passes: int = PASSES,
              arm: Optional[dict] = None) -> Cell:
    """The cell of an arm with a seed and its learning rate."""
    arm = dict(ARMS[name] if arm is None else arm)
    base = copy.deepcopy(base)
    base.optim_wrapper.optimizer.lr = rate
    subset = arm.pop('subset', None)
    if subset is not None:
        subset = dict(subset, full=base.to_dict())
    if 'lr' in arm:
        begin = math.ceil(base.train_cfg.max_iters / passes)
        arm['lr'] = dict(arm['lr'], begin=begin)
    arm.pop('rate')
    return Cell(file, name, seed, change(base, **arm), subset)


def tuning_cells(base: Config) -> List[Cell]:
    """The cells by which learning rates are chosen. The longest ones come
    first, as all must end before others begin."""
    return [
        make_cell(TUNING, base, name, seed, rate) for name in TUNED
        for seed in TUNING_SEEDS for rate in RATES
    ]


def best_rates(rows: Sequence[dict]) -> Dict[str, float]:
    """The learning rate of each tuned arm with the best mean accuracy on
    held-out images, the lowest of those that are equal."""
    rates = {}
    for name in TUNED:
        of_rates = {}
        for row in rows:
            if row['arm'] == name:
                of_rates.setdefault(row['lr'], []).append(row['accuracy'])
        rates[name] = max(
            sorted(of_rates), key=lambda rate: np.mean(of_rates[rate]))
    return rates


def all_cells(bases: Dict[int, Config], rates: Dict[str,
                                                    float]) -> Iterator[Cell]:
    """The cells that compare arms, what matters most first. An arm whose rate
    makes it another one is left out."""
    if rates['full'] == rates['random']:
        same = {'random_full_rate', 'neyman_full_rate'}
    else:
        same = {}
    for passes, names, seeds in all_arms.ORDER:
        for seed in seeds:
            for name in names:
                if name not in same:
                    yield make_cell(f'passes-{passes}', bases[passes], name,
                                    seed, rates[ARMS[name]['rate']], passes)


def other_cells(bases: Dict[str, Config],
                names: Optional[Sequence[str]] = None,
                seeds: Optional[int] = None) -> Iterator[Cell]:
    """The cells of other networks, by the name of their results, at the
    learning rate of their config."""
    for seed in range(seeds or all_arms.OTHER_SEEDS):
        for file, base in bases.items():
            for name in names or all_arms.OTHER_NETWORKS:
                yield make_cell(
                    file,
                    base,
                    name,
                    seed,
                    base.optim_wrapper.optimizer.lr,
                    arm=OTHER_ARMS[name])


class Results:
    """Files of JSON lines in a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def path(self, file: str) -> str:
        return osp.join(self.folder, f'{file}.jsonl')

    def read(self, file: str) -> List[dict]:
        path = self.path(file)
        return read_results(path) if osp.exists(path) else []

    def missing(self, cells: Sequence[Cell]) -> List[Cell]:
        """The cells that have no line yet.

        Raises:
            ValueError: If one has a line of another config.
        """
        configs = {(file, row['arm'], row['seed'], row['config'])
                   for file in {cell.file
                                for cell in cells}
                   for row in self.read(file)}
        names = {key[:3] for key in configs}
        missing = [cell for cell in cells if cell.key not in configs]
        for cell in missing:
            if cell.file != TUNING and cell.key[:3] in names:
                raise ValueError(
                    f'{self.path(cell.file)} has seed {cell.seed} of '
                    f'{cell.arm} with another config: give another --out.')
        return missing

    def add(self, cell: Cell, figures: dict) -> None:
        append_result(
            self.path(cell.file),
            dict(
                arm=cell.arm,
                seed=cell.seed,
                config=fingerprint(cell.cfg),
                lr=cell.cfg.optim_wrapper.optimizer.lr /
                OTHER_ARMS[cell.arm].get('lr', {}).get('factor', 1),
                **figures))


class Crew:
    """Processes that train cells side by side.

    Args:
        jobs (int): How many.
        results (Results): Where figures go.
        deadline (float): Time of ``time.monotonic`` until which cells must
            end.
        official (str, optional): Checkout of the official package.
    """

    def __init__(self,
                 jobs: int,
                 results: Results,
                 deadline: float = math.inf,
                 official: Optional[str] = None) -> None:
        self.jobs = jobs
        self.official = official
        self.results = results
        self.deadline = deadline
        self.pool = ProcessPoolExecutor(
            jobs, mp_context=multiprocessing.get_context('spawn'))
        # Seconds of an iteration in the cells that ended last.
        self.paces: List[float] = []
        self.num_failed = 0

    def _fits(self, cell: Cell) -> bool:
        pace = max(self.paces[-self.jobs:], default=0.)
        return time.monotonic() + pace * cell.iters <= self.deadline

    def train(self, cells: Sequence[Cell]) -> bool:
        """Train cells, and return whether all of them were."""
        waiting, running, skipped = list(cells), {}, 0
        while waiting or running:
            while waiting and len(running) < self.jobs:
                cell = waiting.pop(0)
                if not self._fits(cell):
                    skipped += 1
                    continue
                split = 'held_out' if cell.file == TUNING else 'test'
                future = self.pool.submit(
                    _train_cell, self.official if cell.arm == OFFICIAL else '',
                    cell.cfg.to_dict(), cell.seed, split, cell.subset)
                running[future] = cell
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                self._end(running.pop(future), future)
        if skipped:
            print(f'{skipped} cells are left for another time', flush=True)
        return not skipped and not self.num_failed

    def _end(self, cell: Cell, future) -> None:
        said = f'{cell.file} {cell.arm} {cell.seed}'
        error = future.exception()
        if error is not None:
            self.num_failed += 1
            print(f'{said}: FAILED: {error!r}', flush=True)
            return
        figures = future.result()
        self.paces.append(figures['seconds'] / cell.iters)
        self.results.add(cell, figures)
        print(
            f'{said}: {figures["evals"][-1][1]:.2f} % in '
            f'{figures["seconds"]:.0f} s',
            flush=True)


def _train_cell(official: str, cfg: dict, seed: int, split: str,
                subset: Optional[dict]) -> dict:
    # What trains is imported in the processes that do.
    if official:
        from .official import train_cell
        return train_cell(official, cfg, seed, PASSES)
    from .cell import train_cell
    return train_cell(cfg, seed, split, subset)


def run(args: argparse.Namespace, start: float) -> Crew:
    """Run all cells that fit into the time."""
    results = Results(args.out)
    deadline = start + (args.time_limit or math.inf)
    crew = Crew(args.jobs, results, deadline, args.official)
    if args.config:
        # As `swin-w48` of `swin-w48_1xb64-938_cifar10.py`.
        bases = {
            osp.basename(path).split('_')[0]: load_base(
                args.data,
                num_iters=args.iters,
                changes=args.cfg_options,
                config=path)
            for path in args.config
        }
        cells = other_cells(bases, args.only, args.seeds)
    else:
        cells = _tuned_cells(args, crew)
    wanted = [
        cell for cell in cells
        if cell.seed < (args.seeds or sys.maxsize) and cell.arm in
        (args.only or [cell.arm]) and (args.official or cell.arm != OFFICIAL)
    ]
    crew.train(results.missing(wanted))
    return crew


def _tuned_cells(args: argparse.Namespace, crew: Crew) -> Iterator[Cell]:
    """The cells that compare arms, at learning rates that are tuned first.
    None, if the time ends before."""
    bases = {
        passes: load_base(args.data, passes, args.iters, args.cfg_options)
        for passes in (all_arms.PASSES, all_arms.MORE_PASSES)
    }
    if not crew.train(crew.results.missing(tuning_cells(bases[PASSES]))):
        return iter(())
    rates = best_rates(crew.results.read(TUNING))
    print(f'learning rates: {json.dumps(rates)}', flush=True)
    for name, rate in rates.items():
        if rate in (RATES[0], RATES[-1]):
            print(
                f'{name} is best at the edge of the rates that were tried, '
                f'{rate}',
                flush=True)
    return all_cells(bases, rates)


def main() -> None:
    start = time.monotonic()
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--data',
        default='data/cifar10/cifar10.npz',
        help='file by pack.py (default: %(default)s)')
    parser.add_argument('--out', required=True, help='folder of the results')
    parser.add_argument(
        '--config',
        nargs='+',
        help='networks to compare full, short, random and neyman with, at '
        'the learning rate of each (default: all arms with the ResNet)')
    parser.add_argument(
        '--jobs', type=int, default=1, help='cells side by side (default: 1)')
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
        '--only', nargs='+', choices=list(OTHER_ARMS), help='names of arms')
    parser.add_argument(
        '--seeds',
        type=int,
        help='at most so many seeds of each arm; with --config as many')
    parser.add_argument(
        '--official',
        metavar='FOLDER',
        help='a checkout of NUS-HPC-AI-Lab/InfoBatch, to train with it too')
    parser.add_argument(
        '--iters',
        type=int,
        help='iterations of the full training, for a trial')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='changes to the config, for a trial')
    args = parser.parse_args()
    # Of the processes that train.
    os.environ.update(OMP_NUM_THREADS='1', MKL_NUM_THREADS='1')
    if args.device == 'cpu':
        os.environ['CUDA_VISIBLE_DEVICES'] = ''
    try:
        crew = run(args, start)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    crew.pool.shutdown()
    # Cells that wait for another time are no failure.
    sys.exit(bool(crew.num_failed))


if __name__ == '__main__':
    main()
