# Copyright (c) mmib contributors. All rights reserved.
"""Print what hard selection is above the plain short training."""
import argparse
import os.path as osp

import pandas as pd

from benchmarks.cifar10.run import TUNING, best_rates
from benchmarks.compare.paired import (NONE, SHORT, compare, in_words,
                                       interval, markdown)
from benchmarks.compare.results import read_results

FOLDER = osp.dirname(osp.abspath(__file__))
SETTINGS = {
    'resnet': 'ResNet',
    'resnet-wrong': 'ResNet, 10 % wrong labels',
    'plain_cnn': 'plain CNN',
    'plain_cnn-wrong': 'plain CNN, 10 % wrong labels'
}
COLUMNS = [
    'arm', 'learning rate', 'seeds', 'at the end', 'difference to short',
    'which is'
]


def qualities(lines: list, metric: str) -> pd.DataFrame:
    """The metric at the end of each cell: a row for each arm and learning
    rate, a column for each seed."""
    rows = [(line['arm'], line.get('lr', 0.), line['seed'],
             line['evals'][-1][metric]) for line in lines]
    cells = pd.DataFrame(rows, columns=['arm', 'lr', 'seed', 'value'])
    return cells.pivot_table(
        'value', ['arm', 'lr'], 'seed', sort=False).sort_index()


def rate_table(folder: str = FOLDER) -> pd.DataFrame:
    """The accuracy on held-out images by the learning rate."""
    found = {}
    for name, title in SETTINGS.items():
        lines = read_results(osp.join(folder, name, f'{TUNING}.jsonl'))
        values = qualities(lines, 'accuracy').mean(axis=1)
        for arm, of_arm in values.groupby(level='arm'):
            found[title, arm] = of_arm.droplevel('arm')
    table = pd.DataFrame(found).T
    table.columns = [f'{rate:g}' for rate in table.columns]
    return table.reset_index(
        level=1, names=['', 'arm']).rename_axis('training')


def cifar10_table(folder: str = FOLDER) -> pd.DataFrame:
    """What each arm on CIFAR-10 is above the plain short training, each at the
    learning rate that is best on held-out images."""
    rows = []
    for name, title in SETTINGS.items():
        rates = best_rates(
            read_results(osp.join(folder, name, f'{TUNING}.jsonl')))
        values = qualities(
            read_results(osp.join(folder, name, 'passes-24.jsonl')),
            'accuracy')
        values = values.loc[[x for x in rates.items() if x in values.index]]
        rows += _rows(title, values.droplevel('lr'), rates)
    return _table(rows)


def camvid_table(folder: str = FOLDER) -> pd.DataFrame:
    """The same on CamVid, where each policy has the better one of two learning
    rates."""
    shares = osp.join(folder, '..', 'shares', 'camvid.jsonl')
    lines = [
        dict(line, arm='short_0.06')
        for line in read_results(shares) if line['arm'] == 'short_60'
    ] + read_results(osp.join(folder, 'camvid.jsonl'))
    values = qualities(lines, 'mIoU').droplevel('lr')
    arms = [arm.rpartition('_') for arm in values.index]
    values.index = pd.MultiIndex.from_tuples([(arm, float(rate))
                                              for arm, _, rate in arms])
    best = values.mean(axis=1).groupby(level=0).idxmax()
    values = values.loc[best].droplevel(1)
    return _table(_rows('CamVid', values, dict(best.tolist())))


def _rows(title: str, values: pd.DataFrame, rates: dict) -> list:
    rows = []
    for arm in sorted(values.index, key=lambda arm: (arm != SHORT, arm)):
        mean, _, seeds = interval(values.loc[arm].dropna())
        found = (
            in_words(*compare(values, arm, SHORT)) if arm != SHORT else
            (NONE, NONE))
        rows.append([title, arm, f'{rates[arm]:g}', seeds, f'{mean:.2f}'])
        rows[-1] += found
    return rows


def _table(rows: list) -> pd.DataFrame:
    return pd.DataFrame(
        rows, columns=['training', *COLUMNS]).set_index('training')


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for table in (cifar10_table(), camvid_table(), rate_table()):
        print(markdown(table, 'training'), end='\n\n')


if __name__ == '__main__':
    main()
