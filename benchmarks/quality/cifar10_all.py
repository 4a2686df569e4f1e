# Copyright (c) mmib contributors. All rights reserved.
"""All 50,000 training images of CIFAR-10 in 200 passes, as in the paper, on a
GPU. The images are those of ``cifar10``."""
from mmengine.config import Config

from . import cifar10

METRIC, DATA, PASSES = cifar10.METRIC, cifar10.DATA, 200


def full_training(data: str) -> Config:
    """The config of the full training: a ResNet of twice the width, in
    bfloat16, and a learning rate of 0.1 after a warm-up of 5 passes."""
    cfg = cifar10.full_training(data)
    pass_iters = 50_000 / cfg.train_dataloader.batch_size
    warmup, iters = round(5 * pass_iters), round(PASSES * pass_iters)
    rise, fall = cfg.param_scheduler
    rise.end = fall.begin = warmup
    fall.end, fall.T_max = iters, iters - warmup
    cfg.merge_from_dict({
        'model.backbone.stem_channels': 32,
        'model.backbone.base_channels': 32,
        'model.channels': 128,
        'model.bfloat16': True,
        'train_dataloader.dataset.split': 'train+held_out+rest',
        'train_dataloader.dataset.device': 'cuda',
        'optim_wrapper.optimizer.lr': 0.1,
        'train_cfg.max_iters': iters
    })
    return cfg
