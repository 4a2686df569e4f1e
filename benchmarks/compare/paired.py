# Copyright (c) mmib contributors. All rights reserved.
"""Tables of arms that are compared seed by seed."""
from typing import Optional, Sequence, Tuple

import numpy as np
import pandas as pd
from scipy import stats

# The full training, pruning at random, and the plain short training.
BASELINE, RANDOM, SHORT = 'full', 'random', 'short'
NONE = '-'


def by_arm_and_seed(rows: Sequence[dict],
                    alike: Sequence[str]) -> pd.DataFrame:
    """Index results by `arm`, the baseline first and else in their order, and
    `seed`. A ValueError names cells that can't be compared with each other, as
    where they differ in one of the keys ``alike``."""
    cells = pd.DataFrame(rows)
    if BASELINE not in cells.get('arm', pd.Series()).values:
        raise ValueError(f'The results have no cell of {BASELINE}, the '
                         'baseline: train it.')
    for _, cell in cells[cells.duplicated(['arm', 'seed'])].iterrows():
        raise ValueError(f'The results have two lines for seed {cell["seed"]} '
                         f'of {cell["arm"]}: remove one of them.')
    for key in cells.columns.intersection(alike):
        _check_alike('the results', cells[key])
    for arm, of_arm in cells.groupby('arm'):
        _check_alike(arm, of_arm['config'])
    names = [BASELINE, *cells['arm'][cells['arm'] != BASELINE].unique()]
    cells['arm'] = pd.Categorical(cells['arm'], names)
    return cells.sort_values(['arm', 'seed']).set_index(['arm', 'seed'])


def _check_alike(name: str, column: pd.Series) -> None:
    values = sorted(column.astype(str).unique())
    if len(values) > 1:
        raise ValueError(f'The cells of {name} differ in `{column.name}`, '
                         f'{", ".join(values)}: compare those that are alike.')


def interval(values: pd.Series) -> Tuple[float, float, int]:
    """Mean, half of its 95 % t-interval (nan of less than two values), and the
    number of values."""
    quantile = stats.t.ppf(0.975, len(values) - 1)
    return values.mean(), quantile * values.sem(), len(values)


def compare(values: pd.DataFrame, arm: str,
            other: str) -> Tuple[float, float, int]:
    """:func:`interval` of how far an arm (a row) lies above another one with
    the seeds (columns) of both."""
    return interval((values.loc[arm] - values.loc[other]).dropna())


def in_words(mean: float, half: float, n: int) -> Tuple[str, str]:
    """A difference that :func:`compare` found, and what its interval says."""
    if n < 2:
        return f'{mean:+.2f}' if n else NONE, NONE
    text = f'{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]'
    if abs(mean) <= half:
        return text, 'undecided'
    return text, 'above' if mean > 0 else 'below'


def differences(values: pd.DataFrame,
                ratios: Optional[pd.Series]) -> pd.DataFrame:
    """What each arm (row of the quality) but the baseline differs from the
    baseline by, with the seeds (columns) of both; and the V of the arm."""
    arms = values.index.drop(BASELINE)
    both = [
        values.loc[BASELINE][values.loc[arm].notna()].mean() for arm in arms
    ]
    found = [in_words(*compare(values, arm, BASELINE)) for arm in arms]
    columns = [f'difference to {BASELINE}', 'which is']
    return pd.DataFrame({
        f'{BASELINE} with these seeds': pd.Series(both, arms, float),
        **({} if ratios is None else {
               'V': ratios.reindex(arms)
           })
    }).join(pd.DataFrame(found, arms, columns))


def difference_columns(values: pd.DataFrame,
                       others: Sequence[str]) -> pd.DataFrame:
    """How far each arm lies above some others, a column for each of them."""
    return pd.DataFrame(
        {
            f'difference to {other}': [
                in_words(
                    *compare(values, arm, other))[0] if arm != other else NONE
                for arm in values.index
            ]
            for other in others
        }, values.index)


def pair_table(values: pd.DataFrame, pairs: Sequence[str]) -> pd.DataFrame:
    """What the arms of pairs, as ``arm:other``, differ by. Pairs of which one
    wasn't run have no row."""
    rows = []
    for arm, other in (pair.split(':') for pair in pairs):
        if arm in values.index and other in values.index:
            found = compare(values, arm, other)
            rows.append([arm, other, found[-1], *in_words(*found)])
    columns = ['arm', 'compared with', 'seeds', 'difference', 'which is']
    return pd.DataFrame(rows, columns=columns).set_index('arm')


def worth_table(values: pd.DataFrame, iters: pd.Series,
                ratios: Optional[pd.Series], unit: str) -> pd.DataFrame:
    """What V says that choices of images are worth, and what came of them.
    The plain short training tells what steps are worth. Empty without V,
    pruning at random or it."""
    if SHORT not in values.index or ratios is None or RANDOM not in ratios:
        return pd.DataFrame()
    # What more iterations are worth: quality for each e-fold.
    gain = compare(values, BASELINE, SHORT)[0]
    slope = gain / np.log(iters[BASELINE] / iters[SHORT])
    rows = {
        arm: [
            ratio, f'{1 - ratio:.1%}', f'{-slope * np.log(ratio):+.2f}',
            in_words(*compare(values, arm, RANDOM))[0]
        ]
        for arm, ratio in ratios.items() if arm != RANDOM
    }
    columns = [
        'V', 'worth of the steps', f'{unit} by that', f'difference to {RANDOM}'
    ]
    return pd.DataFrame.from_dict(rows, 'index', columns=columns)


def markdown(table: pd.DataFrame, index: str = 'arm') -> str:
    """A table with the arms, or another index, in its first column."""
    text = table.to_csv(
        sep=';', index_label=index, float_format='%.2f', na_rep=NONE)
    head, *rows = [
        f'| {line} |' for line in text.replace(';', ' | ').splitlines()
    ]
    rule = '|---' * (len(table.columns) + 1) + '|'
    return '\n'.join([head, rule, *rows])
