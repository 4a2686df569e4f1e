# Copyright (c) mmib contributors. All rights reserved.
"""Print which share of the errors of masks each ranking has among the first
images, from the lines that ``small_masks.py`` has written:

    python -m benchmarks.quality.small_masks_table research/small_masks/*.csv
"""
import argparse
from typing import List

import numpy as np
import pandas as pd

from .small_masks import RANKINGS

SHARES = (0.05, 0.1, 0.2)
# Of which the others are compared.
BEFORE = 'highest 5 %'
DRAWS = 10000


def interval(found: np.ndarray, seeds: np.ndarray) -> List[float]:
    """The 95 % interval of means, by drawing again the errors of each network.

    Args:
        found (np.ndarray): A number of each error, of shape (N, M).
        seeds (np.ndarray): The network of each error, of shape (N, ).

    Returns:
        list: Ends of shape (2, M).
    """
    rng = np.random.default_rng(0)
    drawn = np.concatenate([
        rng.choice(
            np.flatnonzero(seeds == seed),
            (DRAWS, np.count_nonzero(seeds == seed)))
        for seed in np.unique(seeds)
    ], 1)
    return np.percentile(found[drawn].mean(1), (2.5, 97.5), axis=0)


def print_table(errors: pd.DataFrame) -> None:
    """Of one dataset and size."""
    limits = np.round(np.outer(errors['images'], SHARES))
    found = {name: errors[[name]].values <= limits for name in RANKINGS}
    seeds = errors['seed'].values
    for name in RANKINGS:
        cells = [
            f'{100 * mean:.0f} ({100 * low:.0f} to {100 * high:.0f})'
            for mean, low, high in zip(found[name].mean(0),
                                       *interval(found[name], seeds))
        ]
        more = found[name].mean(1) - found[BEFORE].mean(1)
        (low, ), (high, ) = 100 * interval(more[:, None], seeds)
        cells.append('-' if name == BEFORE else
                     f'{100 * more.mean():+.0f} [{low:+.0f}, {high:+.0f}]')
        print('|', ' | '.join([name, *cells]), '|')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('files', nargs='+')
    files = parser.parse_args().files
    errors = pd.concat([*map(pd.read_csv, files)])
    # Each network, of any kind.
    errors['seed'] = errors['dataset'] + errors['seed'].astype(str)
    errors['dataset'] = errors['dataset'].replace('camvid-unet', 'camvid')
    for (name, size), group in errors.groupby(['dataset', 'size'], sort=False):
        counts = group.groupby('kind', sort=False).size()
        kinds = ', '.join(f'{kind} {n}' for kind, n in counts.items())
        print(f'\n{name}, {size}: {len(group)} errors ({kinds}) in '
              f'{group["seed"].nunique()} networks\n')
        print('| ranking |', ' | '.join(f'{x:.0%}' for x in SHARES),
              f'| mean, compared with {BEFORE} |\n|---|---|---|---|---|')
        print_table(group)


if __name__ == '__main__':
    main()
