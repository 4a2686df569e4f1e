# Copyright (c) mmib contributors. All rights reserved.
"""Print what reviews bring back, and draw it."""
import argparse
import os.path as osp
import re
from typing import List

import matplotlib
import numpy as np
import pandas as pd

from benchmarks.compare.paired import (NONE, compare, in_words, interval,
                                       markdown)
from benchmarks.compare.results import read_results

from .study import FOLDER, WRONG, first_images, percent

STUDIES = dict(
    cifar10=('CIFAR-10', 'accuracy'), camvid=('CamVid, pretrained', 'mIoU'))
# Reviews by how they are called in a picture, and their colours.
CURVES = dict(
    score_repaired=('highest scores, repaired', 'tab:green'),
    score_removed=('highest scores, left out', 'tab:orange'),
    margin_removed=('by cleanlab, left out', 'tab:blue'),
    cleanlab_removed=('by cleanlab, left out', 'tab:blue'),
    pixels_removed=('by --rank-by pixels, left out', 'tab:purple'),
    random_removed=('at random, left out', 'tab:gray'))
LOOKED = (0.1, 0.2, 0.3)


def load(name: str, folder: str = FOLDER) -> List[dict]:
    """The lines of a study."""
    return read_results(osp.join(folder, f'{name}.jsonl'))


def qualities(lines: List[dict], metric: str) -> pd.DataFrame:
    """The metric at the end of each training: a row for each arm, a column for
    each seed."""
    return pd.DataFrame([
        dict(
            arm=line['arm'],
            seed=line['seed'],
            value=line['evals'][-1][metric]) for line in lines
    ]).pivot(
        index='arm', columns='seed', values='value')


def found_table(lines: List[dict]) -> pd.DataFrame:
    """The share of the errors among the first images of each ranking, in the
    mean over the seeds."""
    rows = []
    for wrong in WRONG:
        dirty = [
            line for line in lines if line['arm'] == f'dirty_{percent(wrong)}'
        ]
        for ranking in dirty[0]['orders']:
            shares = [
                np.mean([
                    np.isin(line['errors'],
                            first_images(line, ranking, looked)).mean()
                    for line in dirty
                ]) for looked in LOOKED
            ]
            rows.append([f'{wrong:.0%}', ranking] +
                        [f'{share:.0%}' for share in shares])
    columns = ['wrong', 'ranking', *(f'first {each:.0%}' for each in LOOKED)]
    return pd.DataFrame(rows, columns=columns).set_index('wrong')


def table(lines: List[dict], metric: str) -> pd.DataFrame:
    """The metric after each review, and its difference to the training on the
    labels as they are."""
    values = qualities(lines, metric)
    rows = []
    for arm in values.index:
        review, *shares = re.split(r'_(\d\d)', arm)
        wrong = shares[0]
        looked = '' if 'pruned' in review else ''.join(shares[2:3])
        rows.append((wrong, review.replace('_', ' '), looked, arm))
    shown = []
    for wrong, review, looked, arm in sorted(rows):
        mean, half, count = interval(values.loc[arm].dropna())
        dirty = f'dirty_{wrong}'
        shown.append([
            f'{int(wrong)}%', review, looked and f'{int(looked)}%', count,
            f'{mean:.2f}',
            *(in_words(*compare(values, arm, dirty)) if arm != dirty else
              (NONE, NONE))
        ])
    columns = [
        'wrong', 'training', 'looked at', 'seeds', metric,
        'difference to dirty', 'which is'
    ]
    return pd.DataFrame(shown, columns=columns).set_index('wrong')


def draw(path: str, folder: str = FOLDER) -> None:
    """Draw the metric over the share of the images that were looked at, with
    95 % intervals of the difference to no review: a row for each study, a
    panel for each share of wrong labels."""
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        len(STUDIES),
        len(WRONG),
        figsize=(9, 5.4),
        sharey='row',
        layout='constrained')
    for row, (name, (title, metric)) in zip(axes, STUDIES.items()):
        values = qualities(load(name, folder), metric)
        for axis, wrong in zip(row, map(percent, WRONG)):
            dirty = values.loc[f'dirty_{wrong}'].mean()
            for place, (review, (label, color)) in enumerate(CURVES.items()):
                arms = sorted(
                    arm for arm in values.index
                    if arm.startswith(f'{review}_{wrong}_'))
                if not arms:
                    continue
                looked = np.array([0, *(int(arm[-2:]) for arm in arms)])
                means, halves, _ = zip(
                    (0., 0., 0),
                    *(compare(values, arm, f'dirty_{wrong}') for arm in arms))
                axis.errorbar(
                    # Side by side, as they would hide each other.
                    looked + (place - 2) * 0.5,
                    dirty + np.array(means),
                    halves,
                    color=color,
                    label=label,
                    marker='o',
                    ms=3,
                    capsize=2,
                    lw=1.2)
            axis.axhline(
                values.loc['dirty_00'].mean(),
                color='black',
                ls=':',
                label='no wrong labels')
            axis.set_title(f'{title}: {int(wrong)} % wrong', fontsize=9)
            axis.grid(alpha=0.3)
            axis.set_xlabel('images looked at (%)', fontsize=9)
        row[0].set_ylabel(metric)
    drawn = {
        label: handle
        for axis in axes.flat
        for handle, label in zip(*axis.get_legend_handles_labels())
    }
    figure.legend(
        drawn.values(),
        drawn.keys(),
        loc='outside lower center',
        ncols=3,
        fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', help='PNG file of the picture')
    args = parser.parse_args()
    for name, (title, metric) in STUDIES.items():
        lines = load(name)
        print(f'### {title}\n')
        for shown in (found_table(lines), table(lines, metric)):
            print(markdown(shown, 'wrong'), end='\n\n')
    if args.out:
        draw(args.out)


if __name__ == '__main__':
    main()
