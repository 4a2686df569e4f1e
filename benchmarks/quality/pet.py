# Copyright (c) mmib contributors. All rights reserved.
"""Oxford-IIIT Pet at 128 x 128, read as the public repository
Mohammed14324/Pet-image-segmentation has it."""
import os.path as osp
from functools import partial

from .arms import read_full_training

METRIC = 'mIoU'
DATA = 'data/pet'
CONFIG = osp.join(
    osp.dirname(__file__),
    '../../configs/upernet/upernet_r18-w32_1xb16-4600_pet-96x96.py')
# Of CONFIG, with 3,680 images.
PASSES = 20
full_training = partial(read_full_training, CONFIG)
