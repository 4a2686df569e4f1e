# Copyright (c) mmib contributors. All rights reserved.
"""What does looking at the images with the highest scores bring back?

A share of the labels of CIFAR-10 is made wrong. A training on them scores the
images. A perfect reviewer looks at the first images of a ranking, and a new
training leaves out what is wrong among them, or has it repaired. The test
images are clean.
"""
import argparse
import copy
import os.path as osp
from typing import Dict, List, Sequence

import numpy as np
import pandas as pd
import torch
from mmengine.config import Config

import mmib
from benchmarks.compare import run
from benchmarks.compare.arms import Cell
from benchmarks.compare.paired import compare, in_words, markdown
from benchmarks.compare.results import read_results

FOLDER = osp.dirname(osp.abspath(__file__))
CONFIG = osp.join(osp.dirname(FOLDER), 'hard_selection', 'plain_cnn.py')
WRONG = (0.05, 0.1, 0.2)
LOOKED = (0.05, 0.1, 0.2, 0.3)
SEEDS = 3
# How images are ranked: by the average score, by the margin of the label in
# the predictions of the trained network (as cleanlab's `normalized_margin`),
# and at random.
RANKINGS = ('score', 'margin', 'random')
LIBRARIES = ('mmpretrain', )


def dirty(base: Config, wrong: float, seed: int) -> Config:
    """The training on images of which a share has wrong labels."""
    cfg = copy.deepcopy(base)
    cfg.train_dataloader.dataset.update(wrong=wrong, wrong_seed=seed)
    return cfg


def cleaned(base: Config, line: dict, looked: Sequence[int],
            repair: bool) -> Config:
    """The training after a review of some images."""
    cfg = dirty(base, line['wrong'], line['seed'])
    found = sorted(set(looked) & set(line['errors']))
    if repair:
        cfg.train_dataloader.dataset.repaired = found
    else:
        kept = np.setdiff1d(np.arange(line['num_images']), found)
        cfg.train_dataloader.dataset.indices = kept.tolist()
    return cfg


def train_cell(cfg: Config, seed: int, rank: bool = False) -> dict:
    """Train a cell, and return its figures. With ``rank`` the training scores
    the images, and the order of the first ones is returned too."""
    # Here, so that the tables need no MMPretrain.
    from benchmarks.cifar10.cell import CIFARRecorder, predict
    from benchmarks.cifar10.data import load, wrong_labels

    recorder = CIFARRecorder('test')
    if not rank:
        run.train(cfg, seed, recorder)
        return recorder.summary
    data = cfg.train_dataloader.dataset
    cfg = mmib.convert(cfg, policy=dict(type='ScoreOnly'), delta=1.)
    model = run.train(cfg, seed, recorder)
    images = load(data.data_root, data.split)
    labels = wrong_labels(
        images.labels, data.wrong,
        seed=data.wrong_seed) if data.wrong else images.labels
    shares = predict(model, images.inputs).softmax(1).cpu()
    own = shares.gather(1, labels[:, None])
    others = shares.scatter(1, labels[:, None], 0).max(1, keepdim=True)[0]
    values = dict(
        score=recorder.infobatch.scores.state_dict()['averages'].numpy(),
        margin=(others - own)[:, 0].numpy(),
        random=np.random.default_rng(seed).random(len(labels)))
    most = round(LOOKED[-1] * len(labels))
    return dict(
        recorder.summary,
        wrong=data.wrong,
        errors=torch.nonzero(labels != images.labels)[:, 0].tolist(),
        orders={
            name: np.argsort(-value, kind='stable')[:most].tolist()
            for name, value in values.items()
        })


def percent(share: float) -> str:
    """A share as names of arms have it."""
    return f'{round(100 * share):02d}'


def first_cells(out: str, base: Config, seeds: Sequence[int]) -> List[Cell]:
    """The trainings on labels as they are, which rank the images. Without
    errors it is the training on clean labels."""
    return [
        Cell(
            osp.join(out, 'cifar10.jsonl'), f'dirty_{percent(wrong)}', seed,
            dirty(base, wrong, seed), __name__, None, dict(rank=True))
        for seed in seeds for wrong in (0., *WRONG)
    ]


def later_cells(out: str, base: Config, lines: Dict[tuple, dict],
                seeds: Sequence[int]) -> List[Cell]:
    """The trainings after a review."""
    cells = []
    for seed in seeds:
        for wrong in WRONG:
            line = lines[f'dirty_{percent(wrong)}', seed]
            for looked in LOOKED:
                for ranking in RANKINGS:
                    first = line['orders'][ranking]
                    first = first[:round(looked * line['num_images'])]
                    # One repair is enough to see what leaving out loses.
                    for repair in (False, True)[:1 + (ranking == 'score')]:
                        name = '_'.join([
                            ranking, 'repaired' if repair else 'removed',
                            percent(wrong),
                            percent(looked)
                        ])
                        cells.append(
                            Cell(
                                osp.join(out, 'cifar10.jsonl'), name, seed,
                                cleaned(base, line, first, repair), __name__))
        # What it costs to leave out the first ones of clean images blindly.
        line = lines['dirty_00', seed]
        for looked in LOOKED[:2]:
            first = line['orders']['score']
            first = set(first[:round(looked * line['num_images'])])
            cfg = copy.deepcopy(base)
            cfg.train_dataloader.dataset.indices = [
                i for i in range(line['num_images']) if i not in first
            ]
            cells.append(
                Cell(
                    osp.join(out, 'cifar10.jsonl'),
                    f'blind_00_{percent(looked)}', seed, cfg, __name__))
    return cells


def make_cells(args: argparse.Namespace,
               comparison: run.Comparison) -> List[Cell]:
    """The cells after a review. Those before are trained first."""
    from benchmarks.cifar10.run import load_base
    base = load_base(args.data, changes=args.cfg_options, config=CONFIG)
    seeds = range(SEEDS if args.seeds is None else args.seeds)
    if not comparison.train(first_cells(args.out, base, seeds)):
        return []
    lines = {
        (line['arm'], line['seed']): line
        for line in read_results(osp.join(args.out, 'cifar10.jsonl'))
    }
    return later_cells(args.out, base, lines, seeds)


def table(folder: str = FOLDER) -> pd.DataFrame:
    """A row for each share of errors, ranking and number of images that were
    looked at: the share of the errors among them, accuracy, and what it is
    above the training on dirty labels."""
    lines = read_results(osp.join(folder, 'cifar10.jsonl'))
    values = pd.DataFrame([
        dict(arm=line['arm'], seed=line['seed'], value=line['accuracy'])
        for line in lines
    ]).pivot(
        index='arm', columns='seed', values='value')
    rows = []
    for arm in values.index:
        ranking, _, settings = arm.partition('_')
        if ranking == 'dirty':
            rows.append([settings, 'as they are', '', '-', arm, arm])
            continue
        what, _, settings = settings.rpartition('_')
        kind, _, wrong = what.rpartition('_')
        rows.append([
            wrong, f'{ranking} {kind}'.strip(), settings,
            _found(lines, wrong, ranking, settings), arm, f'dirty_{wrong}'
        ])
    columns = ['wrong (%)', 'ranking', 'looked at (%)', 'errors found']
    cells = [(*row[:4], f'{values.loc[row[4]].mean():.2f}',
              in_words(*compare(values, *row[4:]))[0]) for row in rows]
    shown = pd.DataFrame(
        cells, columns=[*columns, 'accuracy', 'difference to as they are'])
    return shown.sort_values(columns[:3]).set_index(columns[0])


def _found(lines: List[dict], wrong: str, ranking: str, looked: str) -> str:
    """Share of the errors among the images that were looked at."""
    shares = []
    for line in lines:
        if line['arm'] == f'dirty_{wrong}' and line['errors']:
            order = line['orders'].get(ranking, [])
            first = order[:round(int(looked) / 100 * line['num_images'])]
            shares.append(np.isin(line['errors'], first).mean())
    return f'{100 * np.mean(shares):.0f} %' if shares else '-'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--data', default='data/cifar10/cifar10.npz')
    parser.add_argument('--out', default=FOLDER)
    parser.add_argument('--table', action='store_true', help='print the table')
    run.add_arguments(parser)
    if parser.parse_known_args()[0].table:
        print(markdown(table(parser.parse_known_args()[0].out), 'wrong (%)'))
        return
    run.run(parser, make_cells, LIBRARIES)


if __name__ == '__main__':
    main()
