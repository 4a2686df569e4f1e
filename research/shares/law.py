# Copyright (c) mmib contributors. All rights reserved.
"""What V says that choices of images bring, against what was seen: a table and
a picture of all arms of all trainings in research/."""
import argparse
import os.path as osp
from typing import Iterator, NamedTuple, Sequence

import matplotlib
import numpy as np
import pandas as pd

from benchmarks.compare.paired import compare, in_words, markdown
from benchmarks.compare.results import read_results

FOLDER = osp.dirname(osp.dirname(osp.abspath(__file__)))


class Source(NamedTuple):
    """Results of a training: its name, its files, its metric and what a point
    of the metric is (negative where less is better)."""

    name: str
    files: Sequence[str]
    metric: str
    point: float = 1.


SOURCES = (
    Source('CamVid', ['camvid/camvid-worth'], 'mIoU'),
    Source('CamVid, pretrained', ['camvid/camvid-pretrained'], 'mIoU'),
    Source('CamVid, 50 % easy', ['camvid/camvid-redundant-50'], 'mIoU'),
    Source('CamVid, 80 % easy', ['camvid/camvid-redundant-80'], 'mIoU'),
    Source('CIFAR-10, 24 passes', ['cifar10/passes-24', 'shares/passes-24'],
           'accuracy'),
    Source('CIFAR-10, 72 passes', ['cifar10/passes-72'], 'accuracy'),
    Source('Swin, CIFAR-10', ['networks/swin-w48'], 'accuracy'),
    Source('MAE, CIFAR-10', ['networks/mae-w64'], 'loss', -1.),
    Source('Llama, LoRA', ['instruction_tuning/lora'], 'exact'),
    Source('Llama, from scratch', ['instruction_tuning/scratch'], 'exact'),
    Source('CamVid, shares', ['shares/camvid'], 'mIoU'),
    Source('DDPM, CIFAR-10', ['diffusion/arms'], 'held_out_loss', -1e-3),
)


def quality(line: dict, metric: str) -> float:
    """The metric of a cell at its end."""
    return line[metric] if metric in line else line['evals'][-1][metric]


def load(source: Source, folder: str = FOLDER) -> pd.DataFrame:
    """The cells of a source: quality in points, iterations and V, by arm and
    seed."""
    lines = [
        line for file in source.files
        for line in read_results(osp.join(folder, f'{file}.jsonl'))
    ]
    rows = [
        dict(
            arm=line['arm'],
            seed=line['seed'],
            quality=quality(line, source.metric) / source.point,
            iters=line['iters'],
            V=(line.get('variance_ratio') or [None])[0]) for line in lines
    ]
    return pd.DataFrame(rows).set_index(['arm', 'seed'])


def arms_of(cells: pd.DataFrame) -> Iterator[tuple]:
    """For each arm with V that was compared with pruning at random: V, what V
    and the plain short training predict, and the paired difference that was
    seen."""
    values = cells['quality'].unstack()
    iters = cells['iters'].groupby('arm').first()
    worth = cells['V'].dropna().astype(float).groupby('arm').mean()
    for arm, ratio in worth.items():
        # An arm such as neyman_90 is compared with those of its own share, and
        # one such as neyman_full_rate of its own learning rate.
        _, mark, name = arm.partition('_')
        random = f'random{mark}{name}'
        random = random if random in values.index else 'random'
        plain = f'short_{name}' if name.isdigit() else 'short'
        if (arm.startswith('random') or {random, plain} - {*values.index}
                or iters[arm] != iters[random]):
            continue
        steps = compare(values, 'full', plain)[0]
        slope = steps / np.log(iters['full'] / iters[plain])
        yield (arm, ratio, -np.log(ratio) * slope,
               compare(values, arm, random))


def law_table(folder: str = FOLDER) -> pd.DataFrame:
    """A row for each arm with three seeds or more: V, what V predicts, and
    what was seen."""
    rows = [[source.name, arm, ratio, predicted, *seen[:2]]
            for source in SOURCES
            for arm, ratio, predicted, seen in arms_of(load(source, folder))
            if seen[-1] >= 3]
    columns = ['training', 'arm', 'V', 'predicted', 'seen', 'half']
    return pd.DataFrame(rows, columns=columns)


def sentence(table: pd.DataFrame) -> str:
    """How many arms have an interval that holds the prediction, and that holds
    no gain."""
    apart, half = table['seen'] - table['predicted'], table['half']
    return (f'Of {len(table)} arms {(apart.abs() <= half).sum()} lie within '
            f'their interval, {(apart > half).sum()} above and '
            f'{(apart < -half).sum()} below it. No gain at all lies within '
            f'{(table["seen"].abs() <= half).sum()} of the intervals, too')


def in_markdown(table: pd.DataFrame) -> str:
    """The table for the page."""
    seen = [in_words(row.seen, row.half, 2)[0] for row in table.itertuples()]
    shown = pd.DataFrame({
        'arm': table['arm'],
        'V': table['V'].map('{:.2f}'.format),
        'V predicts': table['predicted'].map('{:+.2f}'.format),
        'seen: difference to random': seen
    }).set_index(pd.Index(table['training']))
    return markdown(shown, 'training')


def draw(table: pd.DataFrame, path: str) -> None:
    """What was seen over what V predicts, with 95 % intervals."""
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout='constrained')
    for number, (name,
                 rows) in enumerate(table.groupby('training', sort=False)):
        axes.errorbar(
            rows['predicted'],
            rows['seen'],
            rows['half'],
            fmt='osD^v<>P*Xh'[number % 11],
            markersize=5,
            elinewidth=0.8,
            label=name)
    ends = np.array([table['predicted'].min(), table['predicted'].max()])
    axes.plot(ends, ends, color='gray', linewidth=1, label='as V predicts')
    axes.axhline(0, color='gray', linewidth=0.5)
    axes.set_xlabel('what V predicts, in points: -log(V) x slope')
    axes.set_ylabel('seen: points above pruning at random')
    axes.legend(
        fontsize=7, loc='center left', bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', help='PNG file of the picture')
    args = parser.parse_args()
    table = law_table()
    print(in_markdown(table))
    print(f'\n{sentence(table)}.')
    if args.out:
        draw(table, args.out)


if __name__ == '__main__':
    main()
