# Copyright (c) mmib contributors. All rights reserved.
"""Print what a comparison by run_arms.py found, as tables and plots.

The results may still grow: arms with few seeds have rows too.
"""
import argparse
from typing import List

import numpy as np
from arms.plots import scores_arm, write_plots
from arms.results import (NONE, Arms, group, mious, paired_difference,
                          read_results, spread)

Rows = List[List[str]]
# Of configs/benchmark/arms.py: each but for one thing like the other.
PAIRS = [
    'tiers:short', 'budget:short', 'random:short', 'mean:short_80',
    'above_mean:short_80', 'no_rescale:short', 'epsilon_greedy:short',
    'ucb:short', 'tiers:random', 'budget:random', 'epsilon_greedy:random',
    'ucb:random', 'budget:tiers', 'no_rescale:tiers', 'no_annealing:tiers',
    'ema:tiers', 'mean:above_mean'
]


def text(value: float, form: str) -> str:
    return NONE if np.isnan(value) else format(value, form)


def result_rows(arms: Arms, baseline: str, last: float) -> Rows:
    """Quality of each arm, below a row of titles.

    Args:
        arms (dict): Cells of each arm by seed.
        baseline (str): Arm to compare with.
        last (float): Part of the iterations whose evaluations count.
    """
    rows = [[
        'arm', 'seeds', 'iterations', 'virtual epochs', 'mIoU', 'sd',
        f'{baseline} with these seeds', f'difference to {baseline}', 'which is'
    ]]
    values = mious(arms, last)
    for arm, seeds in arms.items():
        cells, miou = list(seeds.values()), list(values[arm].values())
        row = [
            arm,
            str(len(cells)),
            str(cells[0]['iters']),
            f'{np.mean([cell["virtual_epochs"] for cell in cells]):.1f}',
            f'{np.mean(miou):.2f}',
            text(spread(miou), '.2f'),
        ]
        if arm == baseline:
            row += [NONE] * 3
        else:
            found = paired_difference(values[arm], values[baseline])
            both = [
                value for seed, value in values[baseline].items()
                if seed in values[arm]
            ]
            row += [
                f'{np.mean(both):.2f}' if both else NONE,
                str(found), found.verdict
            ]
        rows.append(row)
    return rows


def pair_rows(arms: Arms, pairs: List[str], last: float) -> Rows:
    """What arms differ by from others than the baseline, below titles.

    Args:
        arms (dict): Cells of each arm by seed.
        pairs (list[str]): Two arms with a colon between. Those of which one
            wasn't run are left out.
        last (float): Part of the iterations whose evaluations count.
    """
    rows, values = [[
        'arm', 'compared with', 'seeds', 'difference', 'which is'
    ]], mious(arms, last)
    for pair in pairs:
        arm, _, other = pair.partition(':')
        if arm in arms and other in arms:
            found = paired_difference(values[arm], values[other])
            rows.append([arm, other, str(found.n), str(found), found.verdict])
    return rows


def check_pairs(arms: Arms, pairs: List[str]) -> None:
    """Refuse pairs of arms that are misspelt.

    Args:
        arms (dict): Cells of each arm by seed.
        pairs (list[str]): Two arms with a colon between.

    Raises:
        ValueError: If a pair isn't of two arms that the results have.
    """
    for pair in pairs:
        names = pair.split(':')
        if len(names) != 2 or not arms.keys() >= set(names):
            raise ValueError(f'--pairs has {pair}, which are no two of '
                             f'{list(arms)} with a colon between.')


def cost_rows(arms: Arms, baseline: str) -> Rows:
    """Cost of each arm, below a row of titles."""
    full_iters = next(iter(arms[baseline].values()))['iters']
    rows = [[
        'arm', 'iterations', 'iterations saved', 'covered besides',
        'wall time (s)', 'CPU time (s)', 'step (ms)'
    ]]
    for arm, seeds in arms.items():

        def median(figure):
            return np.median([cell[figure] for cell in seeds.values()])

        iters = next(iter(seeds.values()))['iters']
        rows.append([
            arm,
            str(iters),
            f'{1 - iters / full_iters:.1%}',
            f'{median("saved_iters"):.0f}',
            f'{median("train_seconds"):.0f}',
            f'{median("train_cpu_seconds"):.0f}',
            f'{1000 * median("step_seconds"):.0f}',
        ])
    return rows


def cell_rows(arms: Arms, last: float) -> Rows:
    """The mIoU of each cell, below a row of titles."""
    seeds = sorted({seed for cells in arms.values() for seed in cells})
    return [['arm'] + [f'seed {seed}' for seed in seeds]] + [
        [arm] + [text(of_arm.get(seed, np.nan), '.2f') for seed in seeds]
        for arm, of_arm in mious(arms, last).items()
    ]


def markdown(rows: Rows) -> str:
    """A table whose first row are the titles."""
    head, *body = ('| ' + ' | '.join(row) + ' |' for row in rows)
    return '\n'.join([head, '|---' * len(rows[0]) + '|', *body])


def report(arms: Arms,
           baseline: str = 'full',
           pairs: List[str] = PAIRS,
           last: float = 0.1) -> str:
    """All tables, with what their columns are."""
    paired = pair_rows(arms, pairs, last)
    return '\n\n'.join([
        '### Results',
        f'mIoU: mean of the evaluations in the last {last:.0%} of the '
        'iterations, over seeds. Differences: mean over the seeds that both '
        'arms have, with its 95 % t-interval. Undecided: the interval holds '
        '0, the difference is inside the spread of the seeds.',
        markdown(result_rows(arms, baseline, last)),
        *([
            '### What each part does',
            markdown(paired),
        ] if len(paired) > 1 else []),
        '### Cost',
        'Covered besides: iterations that stock training needs more for the '
        'same virtual epochs. Times are those of training without validation, '
        'medians over the seeds. They hold what other work on the machine '
        'took, so arms of different hours are not to be compared by them: '
        'time_arms.py does that.',
        markdown(cost_rows(arms, baseline)),
        '### mIoU of each cell',
        markdown(cell_rows(arms, last)),
    ])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('results', help='file of JSON lines by run_arms.py')
    parser.add_argument('--out', help='folder for the plots (default: none)')
    parser.add_argument(
        '--last',
        type=float,
        default=0.1,
        help='part of the iterations whose evaluations count')
    parser.add_argument(
        '--baseline', default='full', help='arm to compare with')
    parser.add_argument(
        '--pairs',
        nargs='+',
        default=PAIRS,
        metavar='ARM:ARM',
        help='arms to compare with each other (default: %(default)s)')
    parser.add_argument(
        '--scores', metavar='ARM', help='arm whose scores are drawn')
    args = parser.parse_args()
    if not 0 <= args.last <= 1:
        parser.error(f'--last is a part, from 0 to 1, but got {args.last}')
    try:
        arms = group(read_results(args.results), args.baseline)
        arm_of_scores = scores_arm(arms, args.scores)
        if args.pairs != PAIRS:
            check_pairs(arms, args.pairs)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(report(arms, args.baseline, args.pairs, args.last))
    if args.out:
        write_plots(args.out, arms, args.baseline, args.last, arm_of_scores)


if __name__ == '__main__':
    main()
