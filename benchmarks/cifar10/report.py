# Copyright (c) mmib contributors. All rights reserved.
"""Print what the comparison on CIFAR-10 found, as tables."""
import argparse
import glob
import os.path as osp

import pandas as pd

from benchmarks.compare import paired, report
from benchmarks.compare.paired import markdown
from benchmarks.compare.results import read_results

from .arms import ARMS, MORE_PASSES, PASSES, TUNED

TUNING, PASSES_OF = 'learning-rates', 'passes-'
TASK = report.Task(
    metric='accuracy',
    quality='Accuracy on the 10,000 test images at the end of the training, '
    'mean over seeds.',
    gain='`full` gains over `short`, each at its best rate',
    # Each arm but for one thing like the other.
    pairs=('random:short', 'tiers:short', 'neyman:short', 'budget:short',
           'random_full_rate:short', 'neyman_full_rate:short',
           'epsilon_greedy:short', 'ucb:short', 'el2n:short',
           'random:short_lr', 'tiers:short_lr', 'neyman:short_lr',
           'tiers:random', 'neyman:random', 'budget:random',
           'tiers_shuffled:random', 'epsilon_greedy:random', 'ucb:random',
           'el2n:random', 'neyman:tiers', 'tiers:tiers_shuffled',
           'neyman_full_rate:random_full_rate', 'random_full_rate:random',
           'neyman_full_rate:neyman', 'epsilon_greedy:neyman_full_rate',
           'ucb:neyman_full_rate', 'mean:short_80', 'mean_no_rescale:short_80',
           'mean_no_annealing:short_80', 'mean_neither:short_80',
           'above_mean:short_80', 'official:short_80', 'mean:mean_no_rescale',
           'mean:mean_no_annealing', 'mean:mean_neither',
           'mean_no_annealing:mean_neither', 'mean_no_rescale:mean_neither',
           'mean:above_mean', 'official:mean', 'mean_25:short_90',
           'mean_75:short_70'),
    arms=tuple(ARMS),
    has_curve=True)


def rates(path: str) -> str:
    """What the learning rates were chosen by."""
    rows = pd.DataFrame(read_results(path))
    means = rows.pivot_table('accuracy', 'arm', 'lr')
    means = means.reindex(TUNED).dropna(how='all')
    best = means.idxmax(axis=1)
    chosen = ', '.join(f'`{arm}` {rate}' for arm, rate in best.items())
    table = means.rename(columns='{:g}'.format)
    table.insert(0, 'seeds', rows.groupby('arm')['seed'].nunique())
    return '\n\n'.join([
        '### Learning rates',
        'Accuracy on 5,000 training images that no arm is trained on, mean '
        f'over the seeds. Best: {chosen}.',
        markdown(table),
    ])


def network_table(path: str) -> pd.DataFrame:
    """Quality of each arm of a network other than the ResNet, and its V."""
    metric = 'loss' if 'loss' in read_results(path)[0] else 'accuracy'
    cells = report.load(path, TASK._replace(metric=metric))
    values, of_arms = cells['quality'].unstack(), report.by_arm(cells)
    iters = of_arms['iters'].first()
    found = report.by_arm(cells['variance_ratio'].dropna().str[0])
    table = pd.DataFrame({
        'seeds': of_arms.size(),
        'iterations': iters,
        'saved': (1 - iters / iters[paired.BASELINE]).map('{:.0%}'.format),
        'V': found.apply(_with_interval),
        metric: of_arms['quality'].mean(),
        'sd': of_arms['quality'].std()
    })
    return table.join(
        paired.difference_columns(
            values, (paired.BASELINE, paired.SHORT, paired.RANDOM)))


def _with_interval(values: pd.Series) -> str:
    mean, half, _ = paired.interval(values)
    return f'{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]'


def block(path: str) -> str:
    """All tables of a file of results."""
    name = osp.splitext(osp.basename(path))[0]
    if name == TUNING:
        return rates(path)
    if name.startswith(PASSES_OF):
        passes = int(name[len(PASSES_OF):])
        return report.report(report.load(path, TASK), TASK, passes)
    return f'### Results of {name}\n\n{markdown(network_table(path))}'


def reports(folder: str) -> str:
    """The tables of all results in a folder."""
    first = [TUNING, f'{PASSES_OF}{PASSES}', f'{PASSES_OF}{MORE_PASSES}']
    first = [osp.join(folder, f'{name}.jsonl') for name in first]
    # Networks other than the ResNet follow.
    paths = sorted(
        glob.glob(osp.join(folder, '*.jsonl')),
        key=lambda path: first.index(path) if path in first else len(first))
    blocks = [block(path) for path in paths]
    if not blocks:
        raise FileNotFoundError(f'{folder} has no results of run.py.')
    return '\n\n'.join(blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('results', help='folder of the results by run.py')
    args = parser.parse_args()
    try:
        print(reports(args.results))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == '__main__':
    main()
