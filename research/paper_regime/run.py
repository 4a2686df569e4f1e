# Copyright (c) mmib contributors. All rights reserved.
"""Train on all of CIFAR-10 by epochs, as the paper does: arms x seeds.

The command stops after so many minutes, and the same command goes on where it
stopped, also within a training.
"""
import argparse
import os.path as osp
import time
from typing import List

from mmengine.config import Config

import mmib
from benchmarks.cifar10.run import best_rates
from benchmarks.compare import run
from benchmarks.compare.arms import Cell, change, chosen
from benchmarks.compare.results import read_results

OUT = osp.dirname(osp.abspath(__file__))
CONFIG = osp.join(OUT, 'resnet-w32_1xb128-200e_cifar10.py')
LIBRARIES = ('mmpretrain', )
EPOCHS, SEEDS = 200, 5
# The learning rates of `short` are compared with one seed, on images that are
# held out of training. All others have the rate of the config.
RATES, TUNING_SEED = (0.1, 0.2, 0.4), 100


def _pruned(**policy) -> dict:
    return dict(convert=dict(policy=policy))


ARMS = dict(
    full=dict(),
    short=dict(shorten=dict(ratio=0.6)),
    random=_pruned(type='RandomPruning'),
    mean=_pruned(type='MeanThreshold', ratio=0.7),
    tiers=_pruned(type='QuantileTiers'),
    neyman=_pruned(type='Neyman'),
    # The same as `mean` with the official package.
    official=_pruned(type='MeanThreshold', ratio=0.7))


class Cells:
    """Makes cells as the command says."""

    def __init__(self, args: argparse.Namespace) -> None:
        base = Config.fromfile(CONFIG, import_custom_modules=False)
        base.merge_from_dict(args.cfg_options)
        base.train_dataloader.dataset.data_root = osp.abspath(args.data)
        self.base = mmib.shorten(base, args.epochs / EPOCHS)
        self.rate = self.base.optim_wrapper.optimizer.lr
        self.rates_path = osp.join(args.out, 'learning-rates.jsonl')
        self.path = osp.join(args.out, f'epochs-{args.epochs}.jsonl')
        self.work_dirs = osp.join(args.out, 'cells')
        self.deadline = time.time() + 60 * args.minutes
        self.checkout = args.official

    def of_rates(self) -> List[Cell]:
        """The cells by which the learning rate of `short` is chosen."""
        return [
            self._make(
                self.rates_path,
                'short',
                TUNING_SEED,
                rate,
                data='train',
                split='held_out') for rate in RATES
        ]

    def of_arms(self, short_rate: float) -> List[Cell]:
        """The cells that compare arms, one seed of all before the next."""
        names = [arm for arm in ARMS if arm != 'official' or self.checkout]
        return [
            self._make(self.path, arm, seed,
                       short_rate if arm == 'short' else self.rate)
            for seed in range(SEEDS) for arm in names
        ]

    def _make(self,
              path: str,
              arm: str,
              seed: int,
              rate: float,
              data: str = 'train+held_out',
              **options) -> Cell:
        cfg = change(self.base, **ARMS[arm], rate=rate)
        cfg.train_dataloader.dataset.split = data
        module = 'cell'
        if arm == 'official':
            module, options = 'official', dict(checkout=self.checkout)
        cell = Cell(path, arm, seed, cfg, f'research.paper_regime.{module}',
                    rate)
        folder = osp.join(self.work_dirs, '-'.join(map(str, cell.key)))
        return cell._replace(
            options=dict(options, folder=folder, deadline=self.deadline))


def make_cells(args: argparse.Namespace,
               comparison: run.Comparison) -> List[Cell]:
    """All cells. Before the learning rate of `short` is chosen, the other arms
    are trained beside those that choose it."""
    cells = Cells(args)
    found = chosen(cells.of_arms(RATES[0]), args.only, args.seeds)
    others = [cell for cell in found if cell.arm != 'short']
    if len(others) == len(found):
        return found
    tuning = cells.of_rates()
    if comparison.missing(tuning):
        comparison.train([*tuning, *others])
    if comparison.missing(tuning):
        return []
    rate = best_rates(read_results(cells.rates_path))['short']
    print(f'learning rate of short: {rate:g}', flush=True)
    return cells.of_arms(rate)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--data',
        default='data/cifar10/cifar10-50k.npz',
        help='file by benchmarks/cifar10/pack.py with --train 4500 '
        '--held-out 500 (default: %(default)s)')
    parser.add_argument(
        '--out', default=OUT, help='folder of the results and checkpoints')
    parser.add_argument(
        '--epochs',
        type=int,
        default=EPOCHS,
        help='epochs of the full training (default: %(default)s)')
    parser.add_argument(
        '--minutes',
        type=float,
        default=9,
        help='no epoch begins after so many (default: %(default)s)')
    parser.add_argument(
        '--official', help='checkout of the official package, to train too')
    run.add_arguments(parser)
    run.run(parser, make_cells, LIBRARIES)


if __name__ == '__main__':
    main()
