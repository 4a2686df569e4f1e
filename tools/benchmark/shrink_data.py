# Copyright (c) mmib contributors. All rights reserved.
"""Copy a data set in ADE20K's layout with smaller images.

Decoding, resizing and evaluating large images would take most of the time of
a small benchmark.
"""
import argparse
import os.path as osp

import mmcv
from mmengine.utils import scandir


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('data', help='folder with images/ and annotations/')
    parser.add_argument('out', help='folder for the copy')
    parser.add_argument(
        '--scale',
        type=int,
        nargs=2,
        default=(160, 120),
        metavar=('WIDTH', 'HEIGHT'))
    args = parser.parse_args()
    for folder, interpolation in (('images', 'area'), ('annotations',
                                                       'nearest')):
        for name in scandir(
                osp.join(args.data, folder), ('.jpg', '.png'), recursive=True):
            image = mmcv.imread(osp.join(args.data, folder, name), 'unchanged')
            image = mmcv.imresize(
                image, tuple(args.scale), interpolation=interpolation)
            # What is compressed without loss is the same on every machine.
            name = osp.splitext(name)[0] + '.png'
            mmcv.imwrite(image, osp.join(args.out, folder, name))


if __name__ == '__main__':
    main()
