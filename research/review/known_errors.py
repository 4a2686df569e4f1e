# Copyright (c) mmib contributors. All rights reserved.
"""How many known label errors of CIFAR-10's test images have the highest
scores?

A training on the test images scores them. Northcutt et al. ("Pervasive Label
Errors in Test Sets", 2021) asked five people for each of 275 suspects. In 54
of these, 0.54 % of all, less than three of the five chose the given label. The
checkout of `cleanlab/label-errors` has their answers.
"""
import argparse
import json
import os.path as osp
from typing import List

import numpy as np
import pandas as pd
from mmengine.config import Config

from benchmarks.compare import run
from benchmarks.compare.arms import Cell
from benchmarks.compare.paired import markdown
from benchmarks.compare.results import read_results

from .cifar10 import LIBRARIES, load_base_of
from .cifar10 import train_cell as train_and_rank
from .study import FOLDER, SEEDS

RESULTS = osp.join(FOLDER, 'known_errors.jsonl')
CONFIG = osp.join(osp.dirname(FOLDER), 'hard_selection', 'plain_cnn.py')
LOOKED = (50, 100, 200, 500, 1000, 2000)


def known_errors(checkout: str) -> List[int]:
    """Numbers of the images whose label most people didn't choose, in a file
    by ``benchmarks/cifar10/pack.py``, which has class after class."""
    labels = np.load(
        osp.join(checkout, 'original_test_labels',
                 'cifar10_test_set_original_labels.npy')).astype(int)
    numbers = np.empty(len(labels), int)
    numbers[np.argsort(labels, kind='stable')] = np.arange(len(labels))
    with open(
            osp.join(checkout, 'mturk', 'cifar10_mturk.json'),
            encoding='utf-8') as file:
        suspects = json.load(file)
    return [
        int(numbers[each['id']]) for each in suspects
        if each['mturk']['given'] < 3
    ]


def train_cell(cfg: Config, seed: int, errors: List[int]) -> dict:
    """Train a cell, and return its figures: the rank of each known error."""
    figures = train_and_rank(cfg, seed, rank=True, split='held_out')
    orders = figures.pop('orders')
    return dict(
        figures,
        errors=errors,
        ranks={
            name: [
                order.index(image) + 1 if image in order else None
                for image in errors
            ]
            for name, order in orders.items()
        })


def make_cells(args: argparse.Namespace, _: run.Comparison) -> List[Cell]:
    base = load_base_of(args, CONFIG)
    base.train_dataloader.dataset.update(split='test', wrong=0.)
    errors = known_errors(args.checkout)
    return [
        Cell(args.out, 'score', seed, base, 'research.review.known_errors',
             None, dict(errors=errors)) for seed in range(SEEDS)
    ]


def table(path: str = RESULTS) -> pd.DataFrame:
    """How many of the known errors are among the first images of each ranking,
    in the mean over the seeds, and how many would be by chance."""
    lines = read_results(path)
    rows = {}
    for name in lines[0]['ranks']:
        ranks = [[rank or np.inf for rank in line['ranks'][name]]
                 for line in lines]
        rows[name] = [
            f'{np.mean([np.less_equal(r, n).sum() for r in ranks]):.1f}'
            for n in LOOKED
        ]
    share = len(lines[0]['errors']) / lines[0]['num_images']
    rows['by chance'] = [f'{share * n:.1f}' for n in LOOKED]
    return pd.DataFrame.from_dict(
        rows, 'index', columns=[f'first {n}' for n in LOOKED])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        'checkout', nargs='?', help='of label-errors (default: print)')
    parser.add_argument('--data', default='data/cifar10/cifar10.npz')
    parser.add_argument(
        '--iters', type=int, help='of the training, for a trial')
    parser.add_argument('--out', default=RESULTS)
    run.add_arguments(parser)
    args = parser.parse_args()
    if args.checkout:
        run.run(parser, make_cells, LIBRARIES)
    print(markdown(table(args.out), 'ranking'))


if __name__ == '__main__':
    main()
