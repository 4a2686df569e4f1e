# Copyright (c) mmib contributors. All rights reserved.
"""Copy a data set in ADE20K's layout with all images of one small size.

Decoding, resizing and evaluating large images would take most of the time of
a small benchmark.
"""
import argparse
import os.path as osp

import mmcv
from mmengine.utils import scandir

SCALE = 160, 120
# How to read, as MMSegmentation does (masks with a palette have indices only
# so), and to resize.
FOLDERS = dict(
    images=(dict(flag='color'), 'area'),
    annotations=(dict(flag='unchanged', backend='pillow'), 'nearest'))


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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('data', help='folder with images/ and annotations/')
    parser.add_argument('out', help='folder for the copy')
    args = parser.parse_args()
    shrink(args.data, args.out, SCALE)


if __name__ == '__main__':
    main()
