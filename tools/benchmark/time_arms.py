# Copyright (c) mmib contributors. All rights reserved.
"""Time a step of each arm, and say how much of the training time it saves.

All arms train in one process and take turns, an iteration each, so that
whatever else the machine does hits all of them. Cells that run_arms.py trains
at different hours can't say that.

A step is compared with that of the baseline in the same turn: the median of
these ratios and their quartiles. The mean step of an arm, to that of the
baseline, has the plans in it that are drawn in some of the steps; the wall
time saved is what it makes of the iterations saved.
"""
import argparse

import numpy as np
from arms.configs import add_arguments, load_arms, positive
from report_arms import markdown
from step import pruned_iters, take_turns


def rows_of(iters, times, baseline):
    """What the times say, below a row of titles.

    Args:
        iters (dict[str, int]): Iterations of the whole training of each arm.
        times (dict[str, np.ndarray]): Wall time of each timed iteration in
            seconds, of shape (N,).
        baseline (str): Arm to compare with.

    Returns:
        list[list[str]]: Cells of a table.
    """
    rows = [[
        'arm', 'iterations', 'iterations saved', 'step (ms)',
        f'step / {baseline}', 'quartiles', 'mean step', 'wall time saved'
    ]]
    for name, seconds in times.items():
        ratios = seconds / times[baseline]
        low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
        # A plan is drawn in one of many steps, which a median leaves out.
        mean_ratio = np.mean(seconds) / np.mean(times[baseline])
        share = iters[name] / iters[baseline]
        rows.append([
            name, f'{iters[name]}', f'{1 - share:.1%}',
            f'{1000 * np.median(seconds):.1f}', f'{middle:.3f}',
            f'{low:.3f} to {high:.3f}', f'{mean_ratio:.3f}',
            f'{1 - share * mean_ratio:.1%}'
        ])
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument(
        '--baseline', default='full', help='arm to compare with')
    parser.add_argument(
        '--iters', type=positive, default=200, help='iterations of each arm')
    parser.add_argument(
        '--warmup', type=positive, default=10, help='iterations not counted')
    args = parser.parse_args()
    if args.only:
        args.only.append(args.baseline)
    try:
        arms = load_arms(args)
    except ValueError as error:
        parser.error(str(error))
    if args.baseline not in arms:
        parser.error(f'--baseline {args.baseline} is none of {list(arms)}')
    configs = {name: arm.cfg for name, arm in arms.items()}
    fewest = min(pruned_iters(cfg) for cfg in configs.values())
    if args.warmup + args.iters > fewest:
        parser.error('annealing, which has no cost, begins at '
                     f'{fewest} iterations: take fewer --iters')
    times, _ = take_turns(configs, args.iters, args.warmup)
    iters = {name: cfg.train_cfg.max_iters for name, cfg in configs.items()}
    print(markdown(rows_of(iters, times, args.baseline)))


if __name__ == '__main__':
    main()
