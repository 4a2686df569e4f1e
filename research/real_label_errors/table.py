# Copyright (c) mmib contributors. All rights reserved.
"""Tables of ``run.py``, from its folder OUT:

    python -m research.real_label_errors.table OUT
"""
import os.path as osp
import sys

import numpy as np
import pandas as pd
from scipy import stats

from .run import FOLDS, QUALITIES, margins

LOOKED = (0.05, 0.1, 0.2, 0.3)


def rankings(out, quality, seed, labels):
    """Scores of images by the name of a ranking."""
    with np.load(osp.join(out, f'score-{quality}-{seed}.npz')) as file:
        known = dict(file)
    rows = np.arange(len(labels))
    logs = known['logs']
    yield 'average', known['average']
    yield 'last loss', known['last']
    yield 'AUM', known['aum']
    yield 'margin', margins(logs, labels)
    # cleanlab's normalized margin.
    probabilities = np.exp(logs)
    own = probabilities[rows, labels].copy()
    others = probabilities.copy()
    others[rows, labels] = -1
    yield 'normalized margin', others.max(1) - own
    yield 'loss', -logs[rows, labels]
    fold = np.random.default_rng(seed).integers(FOLDS, size=len(labels))
    held = np.full_like(logs, np.nan)
    for number in range(FOLDS):
        path = osp.join(out, f'fold-{quality}-{seed}-{number}.npz')
        if not osp.exists(path):
            return
        with np.load(path) as file:
            held[fold == number] = file['logs'][fold == number]
    yield 'margin, 4 folds', margins(held, labels)
    own, others = np.exp(held[rows, labels]), np.exp(held)
    others[rows, labels] = -1
    yield 'cleanlab, 4 folds', others.max(1) - own


def area(scores, wrong):
    ranks = stats.rankdata(scores)
    count = wrong.sum()
    return (ranks[wrong].sum() - count * (count + 1) / 2) / (
        count * (len(wrong) - count))


def spread(values):
    values = np.asarray(values)
    if len(values) < 2:
        return f'{values.mean():.1f}'
    half = stats.t.ppf(0.975,
                       len(values) - 1) * values.std(ddof=1) / len(values)**0.5
    return f'{values.mean():.1f} +- {half:.1f}'


def main():
    out = sys.argv[1]
    clean = np.load(osp.join(out, 'clean_label.npy'))
    for quality in QUALITIES:
        labels = np.load(osp.join(out, f'{quality}.npy'))
        wrong = labels != clean
        found = {}
        for seed in range(9):
            if osp.exists(osp.join(out, f'score-{quality}-{seed}.npz')):
                for name, scores in rankings(out, quality, seed, labels):
                    order = np.argsort(-scores, kind='stable')
                    found.setdefault(name, []).append([
                        100 * wrong[order[:round(x * len(order))]].sum() /
                        wrong.sum() for x in LOOKED
                    ] + [100 * area(scores, wrong)])
        print(f'\n{quality}: {100 * wrong.mean():.1f} % wrong')
        print('| ranking | ' + ' | '.join(f'{100 * x:.0f} %' for x in LOOKED) +
              ' | area |\n|---|' + '---|' * 5)
        for name, rows in found.items():
            print(f'| {name} | ' +
                  ' | '.join(map(spread, np.transpose(rows))) +
                  f' | {len(rows)} seeds')
    table = pd.read_json(osp.join(out, 'results.jsonl'), lines=True)
    if 'share' not in table:
        table['share'] = np.nan
    table = table[table.what != 'fold']
    for (quality, what,
         share), rows in table.groupby(['quality', 'what', 'share'],
                                       dropna=False):
        print(quality, what, share, spread(rows.accuracy), len(rows))


if __name__ == '__main__':
    main()
