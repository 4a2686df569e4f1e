# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp

import mmcv
import numpy as np

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
CAMVID = osp.join(ROOT, 'configs', 'upernet',
                  'upernet_r18-w32_1xb8-2k_camvid-72x96.py')


def rows_of(output):
    """The cells of a printed table, without its head. The stack may have
    printed before it."""
    lines = [line for line in output.splitlines() if line.startswith('|')]
    return [[cell.strip() for cell in line.split('|')[1:-1]]
            for line in lines[2:]]


def write_images(folder, num_training, num_test=1):
    """Draw a data set in ADE20K's layout: noise, brighter in one half, with
    the half as label."""
    rng = np.random.default_rng(0)
    labels = np.full((64, 64), 1, np.uint8)
    labels[:, 32:] = 2
    for part, number in (('training', num_training), ('test', num_test)):
        for i in range(number):
            noise = rng.integers(100, size=(64, 64, 3), dtype=np.uint8)
            mmcv.imwrite(noise + 60 * (labels[..., None] - 1),
                         f'{folder}/images/{part}/{i}.png')
            mmcv.imwrite(labels, f'{folder}/annotations/{part}/{i}.png')
