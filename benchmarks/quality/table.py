# Copyright (c) mmib contributors. All rights reserved.
"""Print what a comparison found: a table for each dataset, number of passes
and ratio, with the mean and the standard deviation of each arm over its seeds,
V, and the difference to a chosen arm.

A difference is the mean over the seeds that both arms have, with its 95 %
t-interval. If the interval holds 0, the difference may be chance. If the
chosen arm has several learning rates, the best one counts.
"""
import argparse
import json
import sys
from typing import Iterator, Tuple

import pandas as pd
from scipy import stats

from .run import read_results

NONE = '-'


def groups(cells: pd.DataFrame) -> Iterator[Tuple[str, pd.DataFrame]]:
    """The cells that are compared with each other, with a title. What runs all
    iterations belongs to each ratio."""
    cells['options'] = cells['options'].map(json.dumps)
    for (name, passes,
         options), found in cells.groupby(['data_set', 'passes', 'options']):
        shares = sorted({*found['ratio']} - {1.}) or [1.]
        for ratio in shares:
            title = f'{name}, {passes:g} passes, ratio {ratio:g}'
            yield (title if options == '{}' else f'{title}, {options}',
                   found[found['ratio'].isin([ratio, 1.])])


def difference(values: pd.Series, others: pd.Series) -> str:
    """How far some values lie above others with the same seeds."""
    found = (values - others).dropna()
    if len(found) < 2:
        return f'{found.mean():+.2f}' if len(found) else NONE
    low, high = stats.ttest_1samp(found, 0).confidence_interval()
    return f'{found.mean():+.2f} [{low:+.2f}, {high:+.2f}]'


def table(cells: pd.DataFrame, against: str) -> pd.DataFrame:
    """The table of cells that are compared with each other, without
    differences if none of them is of the chosen arm."""
    seeds = cells.pivot(index=['arm', 'lr'], columns='seed', values='quality')
    of_arms = cells.groupby(['arm', 'lr'])
    found = pd.DataFrame({
        'seeds': of_arms.size(),
        'iterations': of_arms['iters'].first(),
        cells['metric'].iloc[0]: of_arms['quality'].mean(),
        'sd': of_arms['quality'].std(),
        'V': of_arms['v'].mean().astype(float)
    })
    if against in seeds.index:
        best = against, seeds.loc[against].mean(axis=1).idxmax()
        found[f'difference to {against} at {best[1]}'] = [
            NONE
            if row == best else difference(seeds.loc[row], seeds.loc[best])
            for row in found.index
        ]
    return found


def markdown(found: pd.DataFrame) -> str:
    """A table as text."""
    rates = [f'{arm};{lr}' for arm, lr in found.index]
    text = found.set_axis(rates).to_csv(
        sep='\t', float_format='%.2f', na_rep=NONE, index_label='arm;lr')
    head, *rows = text.replace('\t', ' | ').replace(';', ' | ').splitlines()
    rule = '|---' * (head.count('|') + 1) + '|'
    return '\n'.join([f'| {head} |', rule, *[f'| {row} |' for row in rows]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('results', nargs='+', help='files by run.py')
    parser.add_argument('--against', default='short', help='default: short')
    args = parser.parse_args()
    try:
        lines = sum(map(read_results, args.results), [])
        cells = pd.DataFrame([{'v': None, **line} for line in lines])
        if args.against not in {*cells['arm']}:
            raise ValueError(f'The results have no arm {args.against}, but '
                             f'{sorted({*cells["arm"]})}: give --against.')
        for title, group in groups(cells):
            print(f'### {title}\n\n{markdown(table(group, args.against))}\n')
    except (KeyError, ValueError) as error:
        sys.exit(f'Error: {error}')


if __name__ == '__main__':
    main()
