# Copyright (c) mmib contributors. All rights reserved.
"""Arms, the ways to train that are compared, and their configs."""
import copy
import math
import os.path as osp
from importlib import import_module
from types import ModuleType
from typing import Dict, Optional

from mmengine.config import Config

import mmib

# The arguments of `make_config`, by the name of the arm. A file for
# --arms-file has more of them, in a dict `arms`.
ARMS: Dict[str, dict] = dict(
    # The training to compare with: all iterations, and nothing pruned.
    full=dict(),
    # As short as a pruned training, and nothing pruned.
    short=dict(short=True),
    # The same with steps as long as those of a pruned training, by a larger
    # learning rate, and also without the stronger weight decay that it brings.
    short_lr=dict(short=True, lr_factor=1.9),
    short_lr_decay=dict(short=True, lr_factor=1.9, keep_decay=True),
    # Pruned at random, to the same iterations.
    random=dict(convert=dict(policy=dict(type='Neyman', num_tiers=1))),
    # Pruned by the scores of the images.
    mean=dict(convert=dict(policy=dict(type='MeanThreshold'))),
    tiers=dict(convert=dict(policy=dict(type='QuantileTiers'))),
    neyman=dict(convert=dict(policy=dict(type='Neyman'))),
)


def load_data_set(name: str) -> ModuleType:
    """The module of a dataset: one of this folder, or by its full name."""
    return import_module(name if '.' in name else f'{__package__}.{name}')


def load_arms(path: Optional[str] = None) -> Dict[str, dict]:
    """The arms, and those of a file."""
    return {
        **ARMS,
        **(Config.fromfile(path).to_dict()['arms'] if path else {})
    }


def read_full_training(path: str, data: str) -> Config:
    """The config of the full training, with images in another place."""
    cfg = Config.fromfile(path, import_custom_modules=False)
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.data_root = osp.abspath(data)
    return cfg


def with_passes(cfg: Config, factor: float) -> Config:
    """A training that is longer or shorter by a factor, with its warm-up."""
    cfg = copy.deepcopy(cfg)
    cfg.train_cfg.max_iters = round(factor * cfg.train_cfg.max_iters)
    for scheduler in cfg.param_scheduler:
        for name in {'begin', 'end', 'T_max'}.intersection(scheduler):
            scheduler[name] = round(factor * scheduler[name])
    return cfg


def make_config(full: Config,
                ratio: float,
                passes: float,
                short: bool = False,
                convert: Optional[dict] = None,
                lr_factor: float = 1.,
                keep_decay: bool = False,
                delta: float = 0.85) -> Config:
    """Make the config of an arm from that of the full training.

    An arm runs a share ``ratio`` of the iterations if it is ``short`` or
    prunes, by ``convert``, the arguments of :func:`mmib.convert`. Where others
    prune, from the second of the ``passes`` until the fraction ``delta``, the
    learning rate is multiplied by ``lr_factor``, and with ``keep_decay`` the
    weight decay is divided by it.
    """
    cfg = copy.deepcopy(full)
    if short:
        cfg = mmib.shorten(cfg, ratio)
    if convert is not None:
        cfg = mmib.convert(cfg, ratio, **dict(dict(delta=delta), **convert))
    if lr_factor != 1:
        # MMEngine's schedulers only lower a rate, so it is lowered elsewhere.
        cfg.optim_wrapper.optimizer.lr *= lr_factor
        begin = math.ceil(full.train_cfg.max_iters / passes)
        end = round(delta * cfg.train_cfg.max_iters)
        spans = [('lr', 0, begin), ('lr', end, full.train_cfg.max_iters)]
        if keep_decay:
            spans.append(('weight_decay', begin, end))
        cfg.param_scheduler += [
            dict(
                type='ConstantParamScheduler',
                param_name=name,
                factor=1 / lr_factor,
                begin=first,
                end=last + 1,
                by_epoch=False) for name, first, last in spans
        ]
    return cfg
