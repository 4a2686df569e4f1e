# Copyright (c) mmib contributors. All rights reserved.
"""Print what a comparison by run_arms.py found, as tables and plots.

The results may still grow: arms with few seeds have rows too.
"""
import argparse
from typing import List

import numpy as np
from arms.plots import scores_arm, write_plots
from arms.results import (NONE, Arms, figures, group, mious, paired_difference,
                          paired_ratio, read_results, saved, spread)

Rows = List[List[str]]


def text(value: float, form: str) -> str:
    return NONE if np.isnan(value) else format(value, form)


def result_rows(arms: Arms, baseline: str, control: str, last: float) -> Rows:
    """Quality of each arm, below a row of titles.

    Args:
        arms (dict): Cells of each arm by seed.
        baseline (str): Arm to compare with.
        control (str): Second arm to compare with, if it is there.
        last (float): Part of the iterations whose evaluations count.
    """
    references = [baseline]
    if control in arms and control != baseline:
        references.append(control)
    head = [
        'arm', 'seeds', 'iterations', 'virtual epochs', 'mIoU', 'sd',
        'final mIoU'
    ]
    for reference in references:
        head += [f'difference to {reference}', 'pairs', 'verdict']
    rows, values = [head], mious(arms, last)
    for arm, seeds in arms.items():
        cells, miou = list(seeds.values()), list(values[arm].values())
        row = [
            arm,
            str(len(cells)),
            str(cells[0]['iters']),
            f'{np.mean([cell["virtual_epochs"] for cell in cells]):.1f}',
            f'{np.mean(miou):.2f}',
            text(spread(miou), '.2f'),
            f'{np.mean([cell["evals"][-1]["mIoU"] for cell in cells]):.2f}',
        ]
        for reference in references:
            if arm == reference:
                row += [NONE] * 3
                continue
            found = paired_difference(values[arm], values[reference])
            row += [str(found), str(found.n), found.verdict]
        rows.append(row)
    return rows


def cost_rows(arms: Arms, baseline: str) -> Rows:
    """Cost of each arm, below a row of titles."""

    def of(key):
        return {
            arm: figures(seeds, lambda cell: cell[key])
            for arm, seeds in arms.items()
        }

    iters, steps = of('iters'), of('step_seconds')
    wall, cpu = of('train_seconds'), of('train_cpu_seconds')
    # All cells of an arm have as many.
    full_iters = next(iter(iters[baseline].values()))
    rows = [[
        'arm', 'iterations', 'iterations saved', 'wall time (s)',
        'wall time saved', 'CPU time saved', 'step (ms)', 'step ratio',
        'saved by plans'
    ]]
    for arm, seeds in arms.items():
        arm_iters = next(iter(iters[arm].values()))
        counted = np.mean([cell['saved_iters'] for cell in seeds.values()])
        rows.append([
            arm,
            str(arm_iters),
            f'{1 - arm_iters / full_iters:.1%}',
            f'{np.mean(list(wall[arm].values())):.1f}',
            text(saved(wall[arm], wall[baseline]), '.1%'),
            text(saved(cpu[arm], cpu[baseline]), '.1%'),
            f'{np.median(list(steps[arm].values())) * 1000:.1f}',
            text(paired_ratio(steps[arm], steps[baseline]), '.3f'),
            f'{counted:.1f}',
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


def report(arms: Arms, baseline: str, control: str, last: float) -> str:
    """All tables, with what their columns are."""
    return '\n\n'.join([
        '### Results',
        f'mIoU: mean of the evaluations in the last {last * 100:g} % of the '
        'iterations, over seeds. Differences: mean over the seeds that both '
        'arms have, with a 95 % t-interval.',
        markdown(result_rows(arms, baseline, control, last)),
        '### Cost',
        'Times are those of training, without validation. What is saved of '
        f'them, and the step ratio, compare with {baseline} over the seeds '
        'that both arms have. The step is the median one. Saved by plans: '
        'iterations that stock training needs more for the same virtual '
        'epochs, as mmib counts them.',
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
        '--control',
        default='short',
        help='second arm to compare with, if it is there')
    parser.add_argument(
        '--scores', metavar='ARM', help='arm whose scores are drawn')
    args = parser.parse_args()
    if not 0 <= args.last <= 1:
        parser.error(f'--last is a part, from 0 to 1, but got {args.last}')
    try:
        arms = group(read_results(args.results), args.baseline)
        arm_of_scores = scores_arm(arms, args.scores)
    except ValueError as error:
        parser.error(str(error))
    print(report(arms, args.baseline, args.control, args.last))
    if args.out:
        write_plots(args.out, arms, args.baseline, args.last, arm_of_scores)


if __name__ == '__main__':
    main()
