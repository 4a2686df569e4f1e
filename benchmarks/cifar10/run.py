# Copyright (c) mmib contributors. All rights reserved.
"""Compare ways to train on CIFAR-10: tune learning rates, then run arms x
seeds. With --config without tuning, and with the main arms alone."""
import argparse
import copy
import importlib
import json
import os.path as osp
from types import ModuleType
from typing import Dict, Iterator, List, Optional, Sequence

import pandas as pd
from mmengine.config import Config

from benchmarks.compare import run
from benchmarks.compare.arms import Cell, change
from benchmarks.compare.results import read_results

from . import arms as main_arms
from .arms import OTHER_ARMS, OTHER_NETWORKS, OTHER_SEEDS, PASSES

CONFIG = osp.join(
    osp.dirname(osp.abspath(__file__)), 'resnet-w16_1xb128-1875_cifar10.py')
LIBRARIES = ('mmpretrain', )
TUNING = 'learning-rates'


def load_base(data: str,
              passes: int = PASSES,
              num_iters: Optional[int] = None,
              changes: Optional[dict] = None,
              config: str = CONFIG) -> Config:
    """Load the config of the full training, and of a trial with other
    iterations or changes."""
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


def make_cell(path: str,
              base: Config,
              name: str,
              arm: dict,
              seed: int,
              rate: float,
              passes: int = PASSES,
              **options) -> Cell:
    """The cell of an arm with a seed and its learning rate."""
    arm = dict(arm, rate=rate)
    base = copy.deepcopy(base)
    base.optim_wrapper.optimizer.lr = rate
    if 'subset' in arm:
        options['subset'] = dict(arm.pop('subset'), full=base)
    return Cell(path, name, seed, change(base, passes=passes, **arm),
                'benchmarks.cifar10.cell', rate, options)


def tuning_cells(path: str,
                 base: Config,
                 study: ModuleType = main_arms) -> List[Cell]:
    """The cells by which learning rates are chosen, the longest first."""
    return [
        make_cell(
            path, base, name, study.ARMS[name], seed, rate, split='held_out')
        for name in study.TUNED for seed in study.TUNING_SEEDS
        for rate in study.RATES
    ]


def best_rates(rows: Sequence[dict]) -> Dict[str, float]:
    """The learning rate of each arm with the best mean accuracy on held-out
    images, the lowest of those that are equal."""
    means = pd.DataFrame(rows).pivot_table('accuracy', 'arm', 'lr')
    return means.idxmax(axis=1).to_dict()


def all_cells(out: str,
              bases: Dict[int, Config],
              rates: Dict[str, float],
              study: ModuleType = main_arms) -> Iterator[Cell]:
    """The cells that compare arms, what matters most first. An arm whose rate
    makes it another one is left out."""
    same = rates.get('full') == rates.get('random')
    for passes, names, seeds in study.ORDER:
        path = osp.join(out, f'passes-{passes}.jsonl')
        for seed in seeds:
            for name in names:
                arm = study.ARMS[name]
                if not (same and name.endswith('_full_rate')):
                    yield make_cell(path, bases[passes], name, arm, seed,
                                    rates.get(arm['rate'], arm['rate']),
                                    passes)


def other_cells(out: str,
                bases: Dict[str, Config],
                names: Optional[Sequence[str]] = None,
                seeds: Optional[int] = None) -> Iterator[Cell]:
    """The cells of other networks, by the name of their results, at the
    learning rate of their config."""
    if unknown := set(names or ()).difference(OTHER_ARMS):
        raise ValueError(f'There is no arm {sorted(unknown)}.')
    for seed in range(seeds or OTHER_SEEDS):
        for file, base in bases.items():
            for name in names or OTHER_NETWORKS:
                yield make_cell(
                    osp.join(out, f'{file}.jsonl'), base, name,
                    OTHER_ARMS[name], seed, base.optim_wrapper.optimizer.lr)


def make_cells(args: argparse.Namespace,
               comparison: run.Comparison) -> List[Cell]:
    """The cells that compare arms. Learning rates are tuned before: if one of
    these trainings fails, there are none."""
    if args.config and not args.arms:
        # As `swin-w48` of `swin-w48_1xb64-938_cifar10.py`.
        bases = {
            osp.basename(path).split('_')[0]: load_base(
                args.data,
                num_iters=args.iters,
                changes=args.cfg_options,
                config=path)
            for path in args.config
        }
        return list(other_cells(args.out, bases, args.only, args.seeds))
    study = importlib.import_module(args.arms) if args.arms else main_arms
    config, = args.config or [CONFIG]
    bases = {
        passes: load_base(args.data, passes, args.iters, args.cfg_options,
                          config)
        for passes, _, _ in study.ORDER
    }
    rates = {}
    if study.TUNED:
        path = osp.join(args.out, f'{TUNING}.jsonl')
        if not comparison.train(tuning_cells(path, bases[PASSES], study)):
            return []
        rates = best_rates(read_results(path))
        print(f'learning rates: {json.dumps(rates)}', flush=True)
    for name, rate in rates.items():
        if rate in (study.RATES[0], study.RATES[-1]):
            print(f'{name} is best at the edge of the rates that were tried, '
                  f'{rate}')
    return list(all_cells(args.out, bases, rates, study))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=f'{__doc__}\n\n{run.__doc__}',
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
        '--arms',
        help='module of other arms, like benchmarks.cifar10.arms; with one '
        'config at most')
    parser.add_argument(
        '--iters',
        type=int,
        help='iterations of the full training, for a trial')
    run.add_arguments(parser)
    run.run(parser, make_cells, LIBRARIES)


if __name__ == '__main__':
    main()
