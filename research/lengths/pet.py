# Copyright (c) mmib contributors. All rights reserved.
"""Oxford-IIIT Pet of ``benchmarks.quality`` at 64 x 64, with crops of 48 x 48:
a step takes a third of the time.

    python -m research.lengths.pet $PET
"""
import os.path as osp
import sys

import mmcv
from mmengine.utils import scandir

from benchmarks.quality import pet
from benchmarks.quality.pet import METRIC, PASSES  # noqa: F401

DATA = 'data/pet-64x64'
SIZE, CROP = 64, 48
# How to read, as MMSegmentation does, and to resize.
FOLDERS = dict(
    images=(dict(flag='color'), 'area'),
    masks=(dict(flag='unchanged', backend='pillow'), 'nearest'))


def prepare(source, out=DATA):
    """Write a copy of all images and masks."""
    for name in scandir(source, '.png', recursive=True):
        how, interpolation = FOLDERS[osp.basename(osp.dirname(name))]
        image = mmcv.imread(osp.join(source, name), **how)
        image = mmcv.imresize(image, (SIZE, SIZE), interpolation=interpolation)
        mmcv.imwrite(image, osp.join(out, name))


def full_training(data):
    cfg = pet.full_training(data)
    cfg.model.data_preprocessor.size = CROP, CROP
    dataset = cfg.train_dataloader.dataset
    for step in dataset.pipeline:
        if step.type == 'RandomResize':
            step.scale = SIZE, SIZE
        elif step.type == 'RandomCrop':
            step.crop_size = CROP, CROP
    cfg.val_dataloader.batch_size = 64
    return cfg


if __name__ == '__main__':
    prepare(*sys.argv[1:])
