# Copyright (c) mmib contributors. All rights reserved.
"""Oxford-IIIT Pet at 128 x 128, read as the public repository
Mohammed14324/Pet-image-segmentation has it."""
import os.path as osp

from mmengine.config import Config

METRIC = 'mIoU'
DATA = 'data/pet'
CONFIG = osp.join(
    osp.dirname(__file__),
    '../../configs/upernet/upernet_r18-w32_1xb16-4600_pet-96x96.py')
# Of CONFIG, with 3,680 images.
PASSES = 20


def full_training(data: str) -> Config:
    """The config of the full training. All is read in the main process, which
    gives the same bits again."""
    cfg = Config.fromfile(CONFIG, import_custom_modules=False)
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.data_root = osp.abspath(data)
        loader.update(num_workers=0, persistent_workers=False)
    cfg.env_cfg.mp_cfg.opencv_num_threads = 0
    return cfg
