# Copyright (c) mmib contributors. All rights reserved.
"""One HTML file that shows a training, for ``mmib report``."""
import argparse
import sys
from typing import List, Optional

_EXTRA = ('matplotlib', 'jinja2', 'pandas')


def main(argv: Optional[List[str]] = None) -> None:
    """Write the report of a work folder, by the arguments of the command or,
    without them, of the process."""
    parser = argparse.ArgumentParser(
        description='Write one HTML file that shows a training: what was '
        'saved, metrics, what was pruned, and the images with the highest and '
        'the lowest scores. It opens without a server. The training may be '
        'finished, running or stopped. The config in its folder is code, and '
        'is run.')
    parser.add_argument('work_dir', help='folder of the training')
    parser.add_argument(
        '--compare',
        metavar='WORK_DIR',
        help='folder of another training to show beside it, such as the '
        'baseline')
    parser.add_argument(
        '--out', help='file to write (default: report.html in work_dir)')
    parser.add_argument(
        '--images',
        type=int,
        default=12,
        metavar='N',
        help='images to show with the highest scores, and as many with the '
        'lowest (default: %(default)s)')
    parser.add_argument(
        '--rank-by',
        choices=('score', 'pixels'),
        default='score',
        help='what ranks the images: score, a moving average from the '
        'training (default); or pixels, the mean of the highest 5 %% of the '
        'pixel losses of the network, which then predicts all images: this '
        'finds small errors too')
    parser.add_argument(
        '--no-predictions', action='store_true', help='run no network: faster')
    args = parser.parse_args(argv)
    if args.images < 0:
        parser.error('--images: give 0 or more')
    if args.no_predictions and args.rank_by != 'score':
        parser.error(f'--rank-by {args.rank_by} is of predictions: leave '
                     '--no-predictions out')
    try:
        from .read import ReportError
        from .write import write_report
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.exit(f'Error: a report needs {error.name}, which isn\'t '
                 "installed: pip install 'mmib[report]'")
    try:
        paths = write_report(args.work_dir, args.compare, args.out,
                             args.images, not args.no_predictions,
                             args.rank_by)
    except ReportError as error:
        sys.exit(f'Error: {error}')
    print('\n'.join(paths))
