# Copyright (c) mmib contributors. All rights reserved.
"""Copy a data set in ADE20K's layout with all images of one small size.

Decoding, resizing and evaluating large images would take most of the time of
a small benchmark. With ``--redundant`` a share of the training images is
replaced by near-duplicates of ten, in which only what is easy is labelled: a
network soon knows them.
"""
import argparse
import os.path as osp

import mmcv
import numpy as np
from mmengine.utils import scandir

SCALE = 160, 120
# How to read, as MMSegmentation does (masks with a palette have indices only
# so), and to resize.
FOLDERS = dict(
    images=(dict(flag='color'), 'area'),
    annotations=(dict(flag='unchanged', backend='pillow'), 'nearest'))
# CamVid's sky and road, as masks have them.
EASY_LABELS = 1, 4


def shrink(data, out, scale):
    """Write the copy, of a width and height. All of it is PNG: what is
    compressed without loss is the same on every machine."""
    for folder, (how, interpolation) in FOLDERS.items():
        for name in scandir(
                osp.join(data, folder), ('.jpg', '.png'), recursive=True):
            image = mmcv.imread(osp.join(data, folder, name), **how)
            image = mmcv.imresize(image, scale, interpolation=interpolation)
            png = osp.splitext(name)[0] + '.png'
            mmcv.imwrite(image, osp.join(out, folder, png))


def make_redundant(data, share):
    """Replace a share of the training images of a copy, drawn at random but
    always the same, by near-duplicates of ten others with the labels of sky
    and road alone."""
    images, masks = (osp.join(data, folder, 'training') for folder in FOLDERS)
    names = sorted(scandir(images, '.png'))
    rng = np.random.default_rng(0)
    rng.shuffle(names)
    num_replaced = round(share * len(names))
    sources = names[num_replaced:][:10]
    for number, name in enumerate(names[:num_replaced]):
        source = sources[number % len(sources)]
        image = mmcv.imread(osp.join(images, source))
        mask = mmcv.imread(
            osp.join(masks, source), **FOLDERS['annotations'][0])
        mask = np.where(np.isin(mask, EASY_LABELS), mask, 0)
        # A little moved: near-duplicates.
        left = rng.integers(1, 5)
        for folder, moved in ((images, image[:, left:]), (masks, mask[:,
                                                                      left:])):
            mmcv.imwrite(
                mmcv.imresize(moved, SCALE, interpolation='nearest'),
                osp.join(folder, name))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('data', help='folder with images/ and annotations/')
    parser.add_argument('out', help='folder for the copy')
    parser.add_argument(
        '--redundant',
        type=float,
        default=0,
        help='share of the training images to replace by easy '
        'near-duplicates, in [0, 1) (default: 0)')
    args = parser.parse_args()
    if not 0 <= args.redundant < 1:
        parser.error('--redundant must be in [0, 1)')
    shrink(args.data, args.out, SCALE)
    make_redundant(args.out, args.redundant)


if __name__ == '__main__':
    main()
