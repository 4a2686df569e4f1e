# Copyright (c) mmib contributors. All rights reserved.
"""Rank the images of a data set by how unlike their labels the predictions of
a finished network are, to find wrong labels: of MMSegmentation and
MMPretrain, trained with or without mmib. Writes a page to look at the images
and judge them, and a table of all images. Nothing is trained. CONFIG is code,
and is run.
"""
import argparse
import os.path as osp
import sys
from typing import List

from mmib.errors import Refusal
from mmib.labels.rankings import RANKINGS
from mmib.labels.verdicts import read_review

from .files import find_config, read
from .options import add_cfg_options
from .report import check_writable, needs_report


def _parse(args: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='mmib rank', description=__doc__)
    parser.add_argument('config', help='path or name, as for mmib train')
    parser.add_argument('checkpoint', help='file with the weights')
    parser.add_argument(
        '--data',
        choices=('train', 'val', 'test'),
        default='train',
        help='whose images: those of train_dataloader (default), '
        'val_dataloader or test_dataloader')
    parser.add_argument(
        '--rank-by',
        choices=RANKINGS,
        help='pixels, the mean of the highest 5 %% of the pixel losses '
        '(default of segmentation); regions, the largest area in which the '
        'network is sure of another class than the label; margin, how far '
        'another class is above the label (default of classification); or '
        'score, of a training with mmib')
    parser.add_argument(
        '--images',
        type=int,
        default=30,
        metavar='N',
        help='images to show of each end of the ranking (default: '
        '%(default)s)')
    parser.add_argument(
        '--out',
        metavar='DIR',
        help='folder for the page and the table (default: that of the '
        'checkpoint)')
    parser.add_argument(
        '--review',
        nargs='+',
        default=(),
        metavar='FILE',
        help='review.csv files, whose images aren\'t shown again')
    add_cfg_options(parser)
    parsed = parser.parse_args(args)
    if parsed.images < 0:
        parser.error('--images: give 0 or more')
    return parsed


@needs_report
def main(args: List[str]) -> None:
    parsed = _parse(args)
    from mmib.labels.gallery import rank_images
    from mmib.labels.page import render_gallery, render_page, write_table
    from mmib.report.checkpoint import read_checkpoint
    from mmib.report.write import write_text
    split, path = parsed.data, parsed.checkpoint
    if not osp.isfile(path):
        raise Refusal(f'There is no checkpoint {path}.')
    config = read(find_config(parsed.config))
    config.merge_from_dict(parsed.cfg_options)
    judged = {row.image for file in parsed.review for row in read_review(file)}
    out = osp.join(parsed.out or osp.dirname(path), f'rank_{split}.html')
    table = osp.join(osp.dirname(out), f'rank_{split}_images.csv')
    for file in out, table:
        check_writable(file, parsed.review)
    checkpoint = read_checkpoint(path)
    scores = checkpoint.images if split == 'train' else None
    gallery, rank_by = rank_images(config, checkpoint.weights, split,
                                   parsed.rank_by, parsed.images, scores,
                                   checkpoint.images_checksum, judged)
    write_table(table, gallery.images)
    section = render_gallery(
        gallery, rank_by,
        checkpoint.name, f'{osp.abspath(path)} {split} {gallery.checksum}',
        osp.basename(table), config, parsed.review, split)
    write_text(
        out, render_page(config, split, checkpoint.name, gallery.notes,
                         section))
    print('\n'.join(gallery.notes), file=sys.stderr)
    print(f'{out}\n{table}')
