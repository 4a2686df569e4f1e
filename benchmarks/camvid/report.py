# Copyright (c) mmib contributors. All rights reserved.
"""Print what the comparison on CamVid found, as tables."""
import argparse

from benchmarks.compare import report

LAST = 0.1
TASK = report.Task(
    metric='mIoU',
    quality=f'mIoU: mean of the evaluations in the last {LAST:.0%} of the '
    'iterations, over seeds.',
    gain='the longer one gains',
    # Each arm but for one thing like the other.
    pairs=('tiers:short', 'budget:short', 'random:short', 'mean:short_80',
           'above_mean:short_80', 'no_rescale:short', 'epsilon_greedy:short',
           'ucb:short', 'tiers:random', 'budget:random',
           'epsilon_greedy:random', 'ucb:random', 'budget:tiers',
           'no_rescale:tiers', 'no_annealing:tiers', 'ema:tiers',
           'mean:above_mean', 'neyman:random', 'neyman:tiers',
           'tiers_shuffled:random', 'random:short_lr', 'tiers:short_lr',
           'neyman:short_lr'),
    alike=(*report.ALIKE, 'num_images'),
    last=LAST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('results', help='file of JSON lines by run.py')
    args = parser.parse_args()
    try:
        print(report.report(report.load(args.results, TASK), TASK))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == '__main__':
    main()
