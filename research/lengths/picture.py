# Copyright (c) mmib contributors. All rights reserved.
"""Print what 60 % of the iterations cost each arm and how many passes of the
plain training it is worth, and draw the accuracy over the iterations, with
V beside.

    python -m research.lengths.picture docs/images/lengths.png
"""
import os.path as osp
import sys

import matplotlib
import numpy as np
import pandas as pd

from benchmarks.quality.run import read_results
from benchmarks.quality.table import difference

FOLDER = osp.dirname(osp.abspath(__file__))
PLAIN = 'plain'
CURVES = {
    'short': PLAIN,
    'full': PLAIN,
    'random': 'at random',
    'mean': 'MeanThreshold',
    'tiers': 'QuantileTiers',
    'neyman': 'Neyman',
}
COLORS = dict(
    zip(
        dict.fromkeys(CURVES.values()),
        ('black', 'tab:blue', 'tab:green', 'tab:red', 'tab:orange')))


def load():
    """All cells, each with its curve and the passes that its iterations make.
    """
    cells = pd.DataFrame(read_results(osp.join(FOLDER, 'results.jsonl')))
    cells['curve'] = cells['arm'].replace(CURVES)
    slots = cells['iters'] * cells['batch_size']
    cells['passes'] = (slots / cells['num_images']).round(1)
    return cells


def summary(cells):
    """Mean and standard deviation of accuracy and V, by curve and by the
    passes that the iterations are worth, at the best learning rate."""
    found = cells.groupby(['curve', 'passes',
                           'lr'])[['quality',
                                   'v']].agg(['mean', 'std', 'size'])
    best = found['quality', 'mean'].groupby(['curve', 'passes']).idxmax()
    return found.loc[best].droplevel('lr')


def costs(cells, found):
    """How each arm with 60 % of the iterations differs from the plain training
    with all, and from the plain training of as many iterations."""
    seeds = cells.set_index(['curve', 'passes', 'lr',
                             'seed'])['quality'].sort_index()
    best = {
        row: seeds[row].groupby('lr').mean().idxmax()
        for row in found.index
    }

    def compare(curve, passes, other):
        rows = (curve, passes), (PLAIN, other)
        if rows[0] == rows[1] or not all(row in best for row in rows):
            return '-'
        return difference(*(seeds[(*row, best[row])] for row in rows))

    rows = [['passes', '60 % of them', 'to plain', *COLORS]]
    for less in found.loc[PLAIN].index:
        for other in (round(less / 0.6, 1), less):
            compared = [compare(curve, less, other) for curve in COLORS]
            if {*compared} != {'-'}:
                rows.append([round(less / 0.6, 1), less, other, *compared])
    return markdown(rows)


def markdown(rows):
    rows.insert(1, ['---'] * len(rows[0]))
    return '\n'.join(f'| {" | ".join(map(str, row))} |' for row in rows)


def table(found):
    """What each curve is worth in passes of the plain training, by linear
    interpolation over the logarithm of the passes."""
    plain = found.loc[PLAIN, ('quality', 'mean')].sort_index()
    rows = []
    for (curve, passes), row in found.iterrows():
        mean, std, seeds = row['quality']
        inside = plain.iloc[0] <= mean <= plain.iloc[-1]
        worth = np.exp(np.interp(mean, plain, np.log(plain.index)))
        v = row['v', 'mean']
        rows.append([
            curve, passes, f'{seeds:.0f}', f'{mean:.2f}', f'{std:.2f}',
            f'{worth:.1f}' if inside and curve != PLAIN else '-',
            f'{v:.2f}' if v == v else '-'
        ])
    head = ['arm', 'passes', 'seeds', 'accuracy', 'sd', 'plain passes', 'V']
    return markdown([head, *rows])


def draw(path, found):
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout='constrained')
    for axis, name, label in zip(axes, ('quality', 'v'), ('accuracy', 'V')):
        for curve, color in COLORS.items():
            values = found.loc[curve, name]
            axis.plot(
                values.index,
                values['mean'],
                'o-',
                color=color,
                ms=4,
                label=curve)
            axis.fill_between(
                values.index,
                values['mean'] - values['std'],
                values['mean'] + values['std'],
                color=color,
                alpha=0.15,
                linewidth=0)
        axis.set_xscale('log')
        ticks = [7, 14, 24, 43, 72, 120, 200]
        axis.set_xticks(ticks, ticks)
        axis.minorticks_off()
        axis.set_xlabel('iterations, in passes of the plain training')
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=9)
    figure.savefig(path, dpi=110)


if __name__ == '__main__':
    cells = load()
    figures = summary(cells)
    print(table(figures), costs(cells, figures), sep='\n\n')
    draw(sys.argv[1], figures)
