# Copyright (c) mmib contributors. All rights reserved.
"""Set a pruned training up whose gradients and visits are looked at."""
import argparse
from typing import Any, Optional

from mmengine.config import Config, DictAction
from mmengine.runner import Runner

import mmib
from mmib.compat import allow_scoped_bases
from mmib.hook import InfoBatchHook
from mmib.tasks.segmentation.zoo import resolve_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Let a command choose the config."""
    parser.add_argument('config', help='config of the full training')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--work-dir', default='work_dirs/pruned_training')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, default={})


def build_runner(args: argparse.Namespace,
                 iters: Optional[int] = None,
                 **conversion: Any) -> Runner:
    """Build the runner of a config that is converted to InfoBatch. It doesn't
    validate until the end, and with ``iters`` it ends early."""
    allow_scoped_bases()
    cfg = Config.fromfile(resolve_config(args.config))
    cfg.merge_from_dict(args.cfg_options)
    cfg = mmib.convert(cfg, **conversion)
    cfg.train_cfg.max_iters = iters or cfg.train_cfg.max_iters
    cfg.train_cfg.val_interval = cfg.train_cfg.max_iters + 1
    cfg.work_dir = args.work_dir
    cfg.randomness = dict(seed=args.seed)
    return Runner.from_cfg(cfg)


def infobatch_hook(runner: Runner) -> InfoBatchHook:
    """The hook of a training."""
    return next(h for h in runner.hooks if isinstance(h, InfoBatchHook))
