# Copyright (c) mmib contributors. All rights reserved.
"""Print and draw what fewer iterations cost: the metric over the share of the
iterations, plain, pruned by Neyman, and pruned at random; and why pruning at
random is above the plain training on CamVid."""
import argparse
import os.path as osp
import re
from typing import Dict, NamedTuple, Tuple

import matplotlib
import pandas as pd

from benchmarks.compare.paired import (NONE, compare, difference_columns,
                                       in_words, interval, markdown)
from benchmarks.compare.results import read_results

FOLDER = osp.dirname(osp.abspath(__file__))
PLAIN, NEYMAN, RANDOM = 'plain', 'Neyman', 'at random'
CURVES = dict(short=PLAIN, neyman=NEYMAN, random=RANDOM)


class Panel(NamedTuple):
    """A training: its metric, and its results, each file with what its arms
    are called here. Others are called by their share, as ``neyman_90``."""

    name: str
    metric: str
    files: Dict[str, Dict[str, Tuple[str, float]]]


PANELS = (
    Panel(
        'CIFAR-10, 24 passes, from scratch', 'accuracy', {
            '../cifar10/passes-24.jsonl': {
                'full': (PLAIN, 1.),
                'short': (PLAIN, 0.6),
                'neyman_full_rate': (NEYMAN, 0.6),
                'random_full_rate': (RANDOM, 0.6)
            },
            'passes-24.jsonl': {},
        }),
    Panel(
        'CamVid, 22 passes, pretrained backbone', 'mIoU', {
            '../camvid/camvid-pretrained.jsonl': {
                'neyman': (NEYMAN, 0.6),
                'random': (RANDOM, 0.6)
            },
            'camvid.jsonl': {
                'full': (PLAIN, 1.)
            },
        }),
)
# Arms of CamVid in 60 % of the iterations, by their file.
STEPS = {
    '../camvid/camvid-pretrained.jsonl': ['short', 'random'],
    'camvid.jsonl': [
        'long_steps', 'long_steps_keep_decay', 'random_normalized'
    ]
}


def load(panel: Panel, folder: str = FOLDER) -> pd.DataFrame:
    """The metric at the end of each cell, a column for each seed, by curve and
    share."""
    rows = []
    for file, names in panel.files.items():
        for line in read_results(osp.join(folder, file)):
            by_share = re.fullmatch(r'(short|neyman|random)_(\d\d)',
                                    line['arm'])
            known = names.get(line['arm'])
            if known is None and by_share:
                known = CURVES[by_share[1]], int(by_share[2]) / 100
            if known is not None:
                last = line['evals'][-1][panel.metric]
                rows.append((*known, line['seed'], last))
    columns = ['curve', 'share', 'seed', 'quality']
    cells = pd.DataFrame(rows, columns=columns)
    return cells.pivot(
        index=['curve', 'share'], columns='seed', values='quality')


def losses(cells: pd.DataFrame) -> pd.DataFrame:
    """What each share of the iterations costs a plain training, and how far
    the pruned ones lie above the plain one of the same share."""
    plain = cells.loc[PLAIN].sort_index(ascending=False)
    rows = {}
    for share in plain.index:
        mean, _, seeds = interval(plain.loc[share].dropna())
        pairs = [((PLAIN, share), (PLAIN, 1.)),
                 ((NEYMAN, share), (PLAIN, share)),
                 ((RANDOM, share), (PLAIN, share))]
        rows[f'{share:g}'] = [
            seeds, f'{mean:.2f}',
            *(in_words(*compare(cells, *pair))[0]
              if pair[0] != pair[1] and pair[0] in cells.index else NONE
              for pair in pairs)
        ]
    return pd.DataFrame.from_dict(
        rows,
        'index',
        columns=[
            'seeds', PLAIN, 'difference to all iterations',
            f'{NEYMAN} to {PLAIN}', f'{RANDOM} to {PLAIN}'
        ])


def steps_table(folder: str = FOLDER) -> pd.DataFrame:
    """Plain trainings on CamVid with the steps of a pruned one, and the other
    way round, at one learning rate and in 60 % of the iterations."""
    rows = [(line['arm'], line['seed'], line['evals'][-1]['mIoU'])
            for file, arms in STEPS.items()
            for line in read_results(osp.join(folder, file))
            if line['arm'] in arms]
    cells = pd.DataFrame(
        rows, columns=['arm', 'seed', 'mIoU']).pivot(
            index='arm', columns='seed', values='mIoU')
    cells = cells.reindex([arm for arms in STEPS.values() for arm in arms])
    return pd.DataFrame({
        'seeds': cells.notna().sum(axis=1),
        'mIoU': cells.mean(axis=1)
    }).join(difference_columns(cells, ['short', 'random']))


def draw(path: str, folder: str = FOLDER) -> None:
    """Draw a curve of each kind with its 95 % intervals, a panel for each
    training."""
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, len(PANELS), figsize=(9, 3.6), layout='constrained')
    for axis, panel in zip(axes, PANELS):
        cells = load(panel, folder)
        for curve, color in zip(CURVES.values(),
                                ('black', 'tab:orange', 'tab:blue')):
            found = [(share, *interval(cells.loc[curve, share].dropna())[:2])
                     for share in cells.loc[curve].index]
            shares, means, halves = map(pd.Series, zip(*found))
            axis.plot(shares, means, 'o-', color=color, ms=4, label=curve)
            axis.fill_between(
                shares,
                means - halves,
                means + halves,
                color=color,
                alpha=0.15,
                linewidth=0)
        axis.invert_xaxis()
        axis.set_title(panel.name, fontsize=10)
        axis.set_xlabel('share of the iterations')
        axis.set_ylabel(panel.metric)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', help='PNG file of the picture')
    args = parser.parse_args()
    for panel in PANELS:
        table = markdown(losses(load(panel)), 'share')
        print(f'### {panel.name}: {panel.metric}\n\n{table}\n')
    print(markdown(steps_table()))
    if args.out:
        draw(args.out)


if __name__ == '__main__':
    main()
