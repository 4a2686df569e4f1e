# Copyright (c) mmib contributors. All rights reserved.
"""Differences of arms, seed by seed, as tables have them."""
from typing import Tuple

import pandas as pd
from scipy import stats

NONE = '-'


def compare(values_of_arms: pd.DataFrame, arm: str,
            other: str) -> Tuple[float, float, int]:
    """How far an arm (a row) lies above another one in the mean over the seeds
    (columns) of both, half of the 95 % t-interval of that (nan for less than
    two seeds), and the number of these seeds."""
    values = (values_of_arms.loc[arm] - values_of_arms.loc[other]).dropna()
    quantile = stats.t.ppf(0.975, len(values) - 1)
    return values.mean(), quantile * values.sem(), len(values)


def in_words(mean: float, half: float, n: int) -> Tuple[str, str]:
    """A difference that :func:`compare` found, and what its interval says."""
    if n < 2:
        return f'{mean:+.2f}' if n else NONE, NONE
    text = f'{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]'
    if abs(mean) <= half:
        return text, 'undecided'
    return text, 'above' if mean > 0 else 'below'


def markdown(table: pd.DataFrame) -> str:
    """A table with the arms in its first column."""
    text = table.to_csv(
        sep=';', index_label='arm', float_format='%.2f', na_rep=NONE)
    head, *rows = [
        f'| {line} |' for line in text.replace(';', ' | ').splitlines()
    ]
    rule = '|---' * (len(table.columns) + 1) + '|'
    return '\n'.join([head, rule, *rows])
