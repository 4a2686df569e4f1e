# Copyright (c) mmib contributors. All rights reserved.
"""Rank images to find wrong labels, by a finished network."""
import argparse
import os.path as osp
import sys

from mmib.errors import Refusal
from mmib.labels.verdicts import read_review

from .files import find_config, read
from .report import check_writable, needs_report


@needs_report
def main(parsed: argparse.Namespace) -> None:
    from mmib.labels.gallery import rank_images
    from mmib.labels.page import render, write_boxes, write_table
    from mmib.report.checkpoint import read_checkpoint
    from mmib.report.page import write_text
    split, path = parsed.data, parsed.checkpoint
    if not osp.isfile(path):
        raise Refusal(f'There is no checkpoint {path}: correct the path.')
    config = read(find_config(parsed.config))
    config.merge_from_dict(parsed.cfg_options)
    judged = {row.image for file in parsed.review for row in read_review(file)}
    out = osp.join(parsed.out or osp.dirname(path), f'rank_{split}.html')
    table = osp.join(osp.dirname(out), f'rank_{split}_images.csv')
    boxes = osp.join(osp.dirname(out), f'rank_{split}_boxes.csv')
    for file in out, table, boxes:
        check_writable(file, parsed.review)
    gallery = rank_images(config, read_checkpoint(path), split, parsed.rank_by,
                          parsed.images, judged)
    tables = [table]
    write_table(table, gallery.images)
    if gallery.boxes is not None:
        tables.append(boxes)
        write_boxes(boxes, gallery.boxes, gallery.images)
    key = f'{osp.abspath(path)} {split} {gallery.checksum}'
    write_text(
        out,
        render(gallery, key, config, parsed.review, *map(osp.basename,
                                                         tables)))
    for note in gallery.notes:
        print(note, file=sys.stderr)
    print('\n'.join([out, *tables]))
    # What follows is for people, and stdout has the paths for programs.
    print(
        'Open the page in a browser, judge the images and save the review. '
        'Then `mmib review FILE` says what was found, and `mmib train '
        '--without FILE` trains without the wrong images.',
        file=sys.stderr)
