# Copyright (c) mmib contributors. All rights reserved.
"""Write one HTML file that shows a training: what was saved, metrics, what was
pruned, and the images with the highest and the lowest scores. It opens without
a server. The training may be finished, running or stopped. The config in its
folder is code, and is run.
"""
import argparse
import glob
import os.path as osp
import sys
from typing import List

from mmib.errors import Refusal

_EXTRA = ('matplotlib', 'jinja2', 'pandas')
# The name of a start of a training, a time.
_START = 8 * '[0-9]' + '_' + 6 * '[0-9]'


def trainings_below(folder: str) -> List[str]:
    """Work folders in a folder that is none itself, one or two levels deep."""
    root = glob.escape(folder)
    if any(glob.glob(osp.join(root, name)) for name in (_START, '*.pth')):
        return []
    starts = (
        path for level in ('*', osp.join('*', '*'))
        for path in glob.glob(osp.join(root, level, _START)))
    return sorted({*map(osp.dirname, starts)})


def main(args: List[str]) -> None:
    parser = argparse.ArgumentParser(prog='mmib report', description=__doc__)
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
    parser.add_argument(
        '--review',
        nargs='+',
        metavar='FILE',
        help='review.csv files, whose images aren\'t shown again')
    parsed = parser.parse_args(args)
    if parsed.images < 0:
        parser.error('--images: give 0 or more')
    if parsed.no_predictions and parsed.rank_by != 'score':
        parser.error(f'--rank-by {parsed.rank_by} is of predictions: leave '
                     '--no-predictions out')
    try:
        from mmib.report.write import write_report
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise Refusal(f'a report needs {error.name}, which isn\'t installed: '
                      "pip install 'mmib[report]'") from error
    below = trainings_below(parsed.work_dir)
    if below:
        raise Refusal(f'{parsed.work_dir} has trainings below it, and is '
                      f'none: give one of {", ".join(below)}.')
    print(
        f'Reading {parsed.work_dir}, which takes up to a minute ...',
        file=sys.stderr,
        flush=True)
    paths = write_report(parsed.work_dir, parsed.compare, parsed.out,
                         parsed.images, not parsed.no_predictions,
                         parsed.rank_by, parsed.review)
    print('\n'.join(paths))
