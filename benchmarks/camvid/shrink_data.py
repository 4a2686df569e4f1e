# Copyright (c) mmib contributors. All rights reserved.
"""Copy a data set in ADE20K's layout with all images of one small size.

Decoding, resizing and evaluating large images would take most of the time of
a small benchmark. With ``--redundant`` a share of the training images is
replaced by near-duplicates of ten easy ones, which a network soon knows.
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
# Side of a piece in that of its image.
PART = 3


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
    always the same, by near-duplicates of ten easy ones: pieces of one of the
    others, nearly all of one class, magnified."""
    images, masks = (osp.join(data, folder, 'training') for folder in FOLDERS)
    names = sorted(scandir(images, '.png'))
    rng = np.random.default_rng(0)
    rng.shuffle(names)
    num_replaced = round(share * len(names))
    pieces = []
    for name in names[num_replaced:]:
        mask = mmcv.imread(osp.join(masks, name), **FOLDERS['annotations'][0])
        pieces.append((*most_uniform(mask), name))
    pieces = sorted(pieces, reverse=True)[:10]
    for number, name in enumerate(names[:num_replaced]):
        _, top, left, source = pieces[number % len(pieces)]
        # A little beside it: near-duplicates.
        top, left = np.maximum((top, left) + rng.integers(-2, 3, 2), 0)
        for folder, (how, interpolation) in FOLDERS.items():
            path = osp.join(data, folder, 'training')
            image = mmcv.imread(osp.join(path, source), **how)
            height, width = image.shape[0] // PART, image.shape[1] // PART
            piece = image[top:top + height, left:left + width]
            mmcv.imwrite(
                mmcv.imresize(piece, SCALE, interpolation=interpolation),
                osp.join(path, name))


def most_uniform(mask):
    """Largest share of one class in a piece of a mask of shape (H, W), and
    where the piece begins: share, top, left."""
    shape = mask.shape[0] // PART, mask.shape[1] // PART
    pieces = np.lib.stride_tricks.sliding_window_view(mask, shape)[::4, ::4]
    # Not of what is ignored.
    shares = np.stack([(pieces == label).mean((2, 3))
                       for label in range(1,
                                          mask.max() + 1)]).max(0)
    top, left = np.unravel_index(shares.argmax(), shares.shape)
    return shares[top, left], 4 * top, 4 * left


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
    shrink(args.data, args.out, SCALE)
    make_redundant(args.out, args.redundant)


if __name__ == '__main__':
    main()
