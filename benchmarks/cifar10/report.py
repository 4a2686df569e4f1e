# Copyright (c) mmib contributors. All rights reserved.
"""Print what the comparison by run.py found, as tables."""
import argparse
import glob
import json
import os.path as osp
from typing import Optional

import pandas as pd

from benchmarks.camvid import paired
from benchmarks.camvid.paired import markdown
from benchmarks.camvid.results import read_results

from .arms import ARMS, MORE_PASSES, PASSES

TUNING, OFFICIAL, PASSES_OF = 'learning-rates', 'official', 'passes-'
# Each arm but for one thing like the other.
PAIRS = ('random:short', 'tiers:short', 'neyman:short', 'budget:short',
         'random_full_rate:short', 'neyman_full_rate:short',
         'epsilon_greedy:short', 'ucb:short', 'el2n:short', 'random:short_lr',
         'tiers:short_lr', 'neyman:short_lr', 'tiers:random', 'neyman:random',
         'budget:random', 'tiers_shuffled:random', 'epsilon_greedy:random',
         'ucb:random', 'el2n:random', 'neyman:tiers', 'tiers:tiers_shuffled',
         'neyman_full_rate:random_full_rate', 'random_full_rate:random',
         'neyman_full_rate:neyman', 'epsilon_greedy:neyman_full_rate',
         'ucb:neyman_full_rate', 'mean:short_80', 'mean_no_rescale:short_80',
         'mean_no_annealing:short_80', 'mean_neither:short_80',
         'above_mean:short_80', 'official:short_80', 'mean:mean_no_rescale',
         'mean:mean_no_annealing', 'mean:mean_neither',
         'mean_no_annealing:mean_neither', 'mean_no_rescale:mean_neither',
         'mean:above_mean', 'official:mean', 'mean_25:short_90',
         'mean_75:short_70')


def load(path: str) -> pd.DataFrame:
    """Read the results of one setting, by `arm` and `seed`, the arms in the
    order of arms.py. It raises a ValueError where cells can't be compared with
    each other."""
    order = list(ARMS)
    rows = sorted(
        read_results(path),
        key=lambda row: order.index(row['arm'])
        if row['arm'] in order else len(order))
    return paired.by_arm_and_seed(rows, ('batch_size', 'device', 'versions'))


def ratios(cells: pd.DataFrame) -> Optional[pd.Series]:
    """V of each arm that has it, in the mean over its seeds."""
    if 'variance_ratio' not in cells:
        return None
    values = cells['variance_ratio'].dropna().str[0].astype(float).dropna()
    return values.groupby('arm', observed=True).mean()


def result_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Quality of each arm."""
    of_arms = cells.groupby('arm', observed=True)
    return pd.DataFrame({
        'learning rate': of_arms['lr'].first().map('{:g}'.format),
        'seeds': of_arms.size(),
        'iterations': of_arms['iters'].first(),
        'virtual epochs': of_arms['virtual_epochs'].mean().map(
            '{:.1f}'.format),
        'accuracy': of_arms['accuracy'].mean(),
        'sd': of_arms['accuracy'].std()
    }).join(paired.differences(cells['accuracy'].unstack(), ratios(cells)))


def worth_table(cells: pd.DataFrame) -> pd.DataFrame:
    """What V says that choices of images are worth, and what came of them."""
    alike = cells.groupby('arm', observed=True)[['iters', 'lr']].first()
    # V of those that cost as much as the control and have its learning rate.
    found = ratios(cells)
    if found is not None and paired.RANDOM in found:
        same = (alike == alike.loc[paired.RANDOM]).all(axis=1)
        found = found[same[found.index]]
    return paired.worth_table(cells['accuracy'].unstack(), alike['iters'],
                              found, 'accuracy', (paired.SHORT, ))


def quarter_table(cells: pd.DataFrame) -> pd.DataFrame:
    """V in each quarter of the training, mean over the seeds."""
    if 'variance_ratio_of_quarters' not in cells:
        return pd.DataFrame()
    quarters = cells['variance_ratio_of_quarters'].dropna()
    table = pd.DataFrame(quarters.tolist(), quarters.index,
                         [f'quarter {number}' for number in (1, 2, 3, 4)],
                         float)
    table = table.dropna(how='all').groupby('arm', observed=True).mean()
    table.insert(0, 'V', ratios(cells))
    return table


def curve_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Accuracy on the way, mean over the seeds."""
    evals = cells['evals'].map(
        lambda points: [accuracy for _, accuracy in points])
    table = pd.DataFrame(evals.tolist(), evals.index)
    count = len(table.columns)
    table.columns = [
        f'after {(number + 1) / count:.0%}' for number in table.columns
    ]
    return table.groupby('arm', observed=True).mean()


def rate_table(path: str) -> pd.DataFrame:
    """Accuracy on held-out images of the tuned arms (rows) at each learning
    rate, mean over the seeds."""
    rows = pd.DataFrame(read_results(path))
    table = rows.pivot_table('accuracy', 'arm', 'lr')
    order = [arm for arm in ARMS if arm in table.index]
    table.insert(0, 'seeds', rows.groupby('arm')['seed'].nunique())
    table.columns = [
        f'{name:g}' if isinstance(name, float) else name
        for name in table.columns
    ]
    return table.loc[order]


def rates(path: str) -> str:
    """What the learning rates were chosen by."""
    table = rate_table(path)
    best = table.drop(columns='seeds').idxmax(axis=1)
    chosen = ', '.join(f'`{arm}` {rate}' for arm, rate in best.items())
    return '\n\n'.join([
        '### Learning rates',
        'Accuracy on 5,000 training images that no arm is trained on, mean '
        f'over the seeds. Best: {chosen}.',
        markdown(table),
    ])


def report(cells: pd.DataFrame, passes: int) -> str:
    """All tables of a setting, with what their columns are."""
    pairs = paired.pair_table(cells['accuracy'].unstack(), PAIRS)
    worth, quarters = worth_table(cells), quarter_table(cells)
    parts = [
        f'### Results of {passes} passes',
        'Accuracy on the 10,000 test images at the end of the training, mean '
        'over seeds. Differences: mean over the seeds that both arms have, '
        'with its 95 % t-interval. Undecided: the interval holds 0, the '
        'difference is inside the spread of the seeds.',
        markdown(result_table(cells)),
    ]
    if len(pairs):
        parts += [
            f'### What each part does in {passes} passes',
            markdown(pairs)
        ]
    if len(worth):
        parts += [
            f'### What the choice was worth in {passes} passes',
            'V, mean over the seeds, and the share of the steps that it makes '
            'of it; the accuracy that as many more steps bring a plain '
            f'training, by what `full` gains over `{paired.SHORT}`, each at '
            'its best rate; and what was seen.',
            markdown(worth)
        ]
    if len(quarters):
        parts += [
            f'### V by quarter of {passes} passes',
            'Of the iterations, in the mean over the visits and the seeds.',
            markdown(quarters)
        ]
    return '\n\n'.join([
        *parts,
        f'### Accuracy on the way of {passes} passes',
        'After shares of the iterations of the arm, mean over the seeds.',
        markdown(curve_table(cells)),
    ])


def official(path: str) -> str:
    """What the official package costs beside mmib, by official.py."""
    with open(path, encoding='utf-8') as file:
        found = json.load(file)
    step, resumed = found['step_ms'], found['after_resume']
    costs = {
        'step without pruning': (step['plain loop'], step['MMEngine']),
        'step with pruning': (step['official'], step['mmib']),
        **{
            f'plan of {int(size):,} images': [
                1000 * seconds[name] for name in ('official', 'mmib')
            ]
            for size, seconds in found['plan_seconds'].items()
        }
    }
    known = pd.DataFrame(resumed)[['before', 'after']].map('{:g}'.format)
    known.columns = ['before', 'built again']
    known.index = known.index.str.replace('_', ' ')
    return '\n\n'.join([
        '### Cost beside the official package',
        'Milliseconds, of a step the median.',
        markdown(pd.DataFrame(costs, ['official package', 'mmib']).T, 'what'),
        'What the official package knows in the sixth epoch of a training, '
        'and when it is built again to go on from there:',
        markdown(known, 'what'),
    ])


def network_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Quality of each arm of a network other than the ResNet, and its V."""
    metric = 'loss' if 'loss' in cells else 'accuracy'
    values = cells[metric].unstack()
    of_arms = cells.groupby('arm', observed=True)
    iters = of_arms['iters'].first()
    found = cells['variance_ratio'].dropna().str[0].groupby(
        'arm', observed=True)
    table = pd.DataFrame({
        'seeds': of_arms.size(),
        'iterations': iters,
        'saved': (1 - iters / iters[paired.BASELINE]).map('{:.0%}'.format),
        'V': found.apply(_with_interval),
        metric: of_arms[metric].mean(),
        'sd': of_arms[metric].std()
    })
    for other in (paired.BASELINE, paired.SHORT, paired.RANDOM):
        table[f'difference to {other}'] = pd.Series({
            arm: paired.in_words(*paired.compare(values, arm, other))[0]
            for arm in values.index.drop(other)
        })
    return table


def _with_interval(values: pd.Series) -> str:
    mean, half, _ = paired.interval(values)
    return f'{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]'


def network(path: str, name: str) -> str:
    """The table of a network other than the ResNet."""
    return f'### Results of {name}\n\n{markdown(network_table(load(path)))}'


def block(path: str) -> str:
    """All tables of a file of results."""
    name = osp.splitext(osp.basename(path))[0]
    if name == OFFICIAL:
        return official(path)
    if name == TUNING:
        return rates(path)
    if name.startswith(PASSES_OF):
        return report(load(path), int(name[len(PASSES_OF):]))
    return network(path, name)


def reports(folder: str) -> str:
    """The tables of all results in a folder."""
    names = [
        f'{TUNING}.jsonl', f'{PASSES_OF}{PASSES}.jsonl',
        f'{PASSES_OF}{MORE_PASSES}.jsonl', f'{OFFICIAL}.json'
    ]
    paths = [osp.join(folder, name) for name in names]
    paths = [path for path in paths if osp.exists(path)]
    # Networks other than the ResNet.
    paths += sorted(
        set(glob.glob(osp.join(folder, '*.jsonl'))).difference(paths))
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
