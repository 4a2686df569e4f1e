# Copyright (c) mmib contributors. All rights reserved.
"""Print what reviews bring back, and draw it."""
import argparse
import os.path as osp
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
    margin_removed=('by cleanlab\'s margin, left out', 'tab:blue'),
    pixels_removed=('by --rank-by pixels, left out', 'tab:blue'),
    random_removed=('at random, left out', 'tab:gray'))


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


def found(lines: List[dict], wrong: str, ranking: str, looked: str) -> str:
    """Share of the errors among the images that were looked at."""
    shares = [
        np.isin(line['errors'], first_images(line, ranking,
                                             int(looked) / 100)).mean()
        for line in lines
        if line['arm'] == f'dirty_{wrong}' and ranking in line['orders']
    ]
    return f'{100 * np.mean(shares):.0f} %' if shares else NONE


def table(lines: List[dict], metric: str) -> pd.DataFrame:
    """A row for each share of wrong labels and review: the share of the errors
    among the images that were looked at, the metric, and how far the metric
    lies above that of the training on the labels as they are."""
    values = qualities(lines, metric)
    rows = []
    for arm in values.index:
        ranking, what, wrong, looked = arm.split('_') if arm.count(
            '_') == 3 else ('none', '', arm[-2:], '')
        dirty = f'dirty_{wrong}'
        is_review = what in ('removed', 'repaired')
        mean, half, _ = interval(values.loc[arm].dropna())
        rows.append([
            wrong, f'{ranking} {what}'.strip(), looked,
            found(lines, wrong, ranking, looked) if is_review else NONE,
            f'{mean:.2f}' if np.isnan(half) else f'{mean:.2f} ± {half:.2f}',
            in_words(*compare(values, arm, dirty))[0] if looked else NONE
        ])
    columns = ['wrong (%)', 'review', 'looked at (%)', 'errors found']
    shown = pd.DataFrame(
        rows, columns=[*columns, metric, 'difference to none'])
    return shown.sort_values(columns[:3]).set_index(columns[0])


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
            for review, (label, color) in CURVES.items():
                arms = sorted(
                    arm for arm in values.index
                    if arm.startswith(f'{review}_{wrong}_'))
                if not arms:
                    continue
                looked = [0, *(int(arm[-2:]) for arm in arms)]
                means, halves, _ = zip(
                    (0., 0., 0),
                    *(compare(values, arm, f'dirty_{wrong}') for arm in arms))
                axis.errorbar(
                    looked,
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
        row[-1].legend(fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', help='PNG file of the picture')
    args = parser.parse_args()
    for name, (title, metric) in STUDIES.items():
        shown = markdown(table(load(name), metric), 'wrong (%)')
        print(f'### {title}\n\n{shown}\n')
    if args.out:
        draw(args.out)


if __name__ == '__main__':
    main()
