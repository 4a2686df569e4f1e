# Copyright (c) mmib contributors. All rights reserved.
"""What does looking at the images with the highest scores bring back?

A share of the labels becomes wrong. A training on them scores the images. A
perfect reviewer looks at the first images of a ranking, and a new training
leaves out what is wrong among them, or has it repaired. The images of the
validation are right. Each training has 60 % of the iterations of the full one.
"""
import argparse
import os.path as osp
from abc import ABC, abstractmethod
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
from mmengine.config import Config

import mmib
from benchmarks.compare import run
from benchmarks.compare.arms import Cell
from benchmarks.compare.results import read_results

FOLDER = osp.dirname(osp.abspath(__file__))
WRONG = (0.05, 0.1, 0.2)
# Share of clean images that is left out blindly, and the share of wrong labels
# among which pruning is tried.
BLIND, PRUNED = 0.05, 0.1
# Of the iterations of the full training.
RATIO = 0.6
SEEDS = 5
# Share of the images of which a line keeps the order.
MOST = 0.3


class Review(NamedTuple):
    """How images are reviewed: the ranking, what happens to the wrong ones,
    ``'removed'`` or ``'repaired'``, and shares of the images looked at."""

    ranking: str
    what: str
    looked: Tuple[float, ...]


def percent(share: float) -> str:
    """A share as names of arms have it."""
    return f'{round(100 * share):02d}'


def first_of(values: Dict[str, np.ndarray]) -> Dict[str, List[int]]:
    """The images with the highest of some values, which rank them."""
    return {
        name: np.argsort(-value,
                         kind='stable')[:round(MOST * len(value))].tolist()
        for name, value in values.items()
    }


class Study(ABC):
    """Reviews of a data set.

    Args:
        name (str): Of the file of the results, and of the module here whose
            ``train_cell`` trains. With ``rank=True`` it returns ``wrong``,
            ``num_images``, the images with wrong labels as ``errors``, and
            ``orders`` by :func:`first_of`.
        reviews (sequence[Review]): The reviews.
        out (str): Folder of the results.
    """

    def __init__(self, name: str, reviews: Sequence[Review], out: str) -> None:
        self.path = osp.join(out, f'{name}.jsonl')
        self.module = f'research.review.{name}'
        self.reviews = reviews

    @abstractmethod
    def dirty(self, wrong: float, seed: int) -> Config:
        """The full training on images of which a share has wrong labels."""

    @abstractmethod
    def cleaned(self, line: dict, arm: str, images: List[int],
                what: str) -> Config:
        """The full training of a line after its wrong ``images`` were removed
        or repaired. ``arm`` is a name for the training."""

    def first_cells(self, seeds: Sequence[int]) -> List[Cell]:
        """The trainings on labels as they are, which rank the images. Without
        errors they are those on clean labels."""
        return [
            self._short(f'dirty_{percent(wrong)}', seed,
                        self.dirty(wrong, seed), dict(rank=True))
            for seed in seeds for wrong in (0., *WRONG)
        ]

    def later_cells(self, seeds: Sequence[int]) -> List[Cell]:
        """The trainings after a review; with clean images left out blindly;
        and of as many iterations with pruning in place of a review."""
        lines = {
            (line['arm'], line['seed']): line
            for line in read_results(self.path)
        }
        cells = []
        for seed in seeds:
            for wrong in WRONG:
                line = lines[f'dirty_{percent(wrong)}', seed]
                for ranking, what, shares in self.reviews:
                    for looked in shares:
                        arm = '_'.join(
                            [ranking, what,
                             percent(wrong),
                             percent(looked)])
                        found = set(first_images(line, ranking, looked))
                        found &= set(line['errors'])
                        cfg = self.cleaned(line, arm, sorted(found), what)
                        cells.append(self._short(arm, seed, cfg))
            line = lines['dirty_00', seed]
            first = sorted(first_images(line, 'score', BLIND))
            arm = f'score_blindly_00_{percent(BLIND)}'
            cells.append(
                self._short(arm, seed, self.cleaned(line, arm, first,
                                                    'removed')))
            pruned = mmib.convert(
                self.dirty(PRUNED, seed), RATIO, policy=dict(type='Neyman'))
            cells.append(
                self._cell(f'neyman_pruned_{percent(PRUNED)}_60', seed,
                           pruned))
        return cells

    def _short(self, arm: str, seed: int, full: Config, options={}) -> Cell:
        return self._cell(arm, seed, mmib.shorten(full, RATIO), options)

    def _cell(self, arm: str, seed: int, cfg: Config, options={}) -> Cell:
        return Cell(self.path, arm, seed, cfg, self.module, None, options)

    def make_cells(self, args: argparse.Namespace,
                   comparison: run.Comparison) -> List[Cell]:
        """The cells after a review. Those before are trained first."""
        seeds = range(SEEDS if args.seeds is None else args.seeds)
        if not comparison.train(self.first_cells(seeds)):
            return []
        return self.later_cells(seeds)


def first_images(line: dict, ranking: str, looked: float) -> List[int]:
    """The images of a ranking that are looked at."""
    return line['orders'][ranking][:round(looked * line['num_images'])]


def train_study(parser: argparse.ArgumentParser,
                make_study: Callable[[argparse.Namespace],
                                     Study], libraries: Sequence[str]) -> None:
    """Train the cells of the study that ``make_study`` makes of a command's
    arguments."""
    parser.add_argument('--out', default=FOLDER, help='folder of the results')
    run.add_arguments(parser)
    run.run(
        parser,
        lambda args, comparison: make_study(args).make_cells(args, comparison),
        libraries)
