# Copyright (c) mmib contributors. All rights reserved.
"""Train a segmentor: MMSegmentation's own tools/train.py with mmib's parts
registered, so with the same arguments and a few more. CONFIG may also be a
name such as mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512.

  --infobatch    Convert CONFIG, of the baseline, to InfoBatch first, with
                 `mmib.convert`. --cfg-options change the converted config, as
                 if it were a file: train_cfg.max_iters=100 moves nothing else.
                 InfoBatchHook is the last of custom_hooks. Without --work-dir
                 the folder has the name of the converted config.
  --shorten      Shorten CONFIG as much and prune nothing, with `mmib.shorten`:
                 the control that pruning has to beat.
  --policy TYPE  With --infobatch: type of the policy (default: Neyman).
  --ratio RATIO  Share of the iterations (default: 0.6; 0.8 for the policies
                 MeanThreshold, as in the paper, and AboveMean).
  --delta DELTA  With --infobatch: fraction that prunes (default: 0.85).
"""
import argparse
import os
import os.path as osp
import runpy
import sys
from contextlib import nullcontext
from functools import partial
from typing import Callable, List, Optional, Tuple

# First, as it says what to install where there is no stack.
import mmib

# isort: split
from convert_config import (conversion, converted_name, one_line_refusals,
                            report)
from mmengine.config import Config
from mmengine.device import get_device

from mmib.checks import check_stack
from mmib.compat import (allow_scoped_bases, change_next_config,
                         distributed_on_cpu)
from mmib.pruning.budget import DEFAULT_RATIO
from mmib.tasks.segmentation.zoo import CONFIGS, resolve_config

TRAIN = osp.join(osp.dirname(CONFIGS), 'tools', 'train.py')


def read_config(changed: Callable[[Config], Config], policy: Optional[str],
                fromfile: Callable, path: str, *args, **kwargs) -> Config:
    """Read the config of the training, which may be one of MMSegmentation's
    by name, and change it.

    Args:
        changed (Callable): Makes the config to train of it.
        policy (str, optional): What ``--policy`` names.
        fromfile (Callable): MMEngine's function that reads it.
        path (str): The config.

    Returns:
        Config: The config to train.
    """
    path = resolve_config(path)
    before = fromfile(path, *args, **kwargs)
    after = changed(before)
    if after is before:
        return before
    if os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) == '0':
        print(report(before, after), flush=True)
    if after.get('work_dir') is None:
        # The folder of CONFIG's name is that of the baseline.
        name = converted_name(path, before, after)
        if policy is not None:
            # Another policy must not go on from its checkpoints.
            name += f'_{policy}'
        after.work_dir = osp.join('./work_dirs', name)
    return after


def parse_args() -> Tuple[Callable, List[str]]:
    """What reads the config, and the arguments for MMSegmentation's script."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('--infobatch', action='store_true')
    parser.add_argument('--shorten', action='store_true')
    parser.add_argument('--policy')
    parser.add_argument('--ratio', type=float)
    parser.add_argument('--delta', type=float)
    args, others = parser.parse_known_args()
    if args.infobatch and args.shorten:
        sys.exit('Error: --shorten is the control of --infobatch: give one.')
    for name in ('policy', 'delta', 'ratio'):
        if getattr(
                args,
                name) is not None and not (args.infobatch or
                                           (args.shorten and name == 'ratio')):
            sys.exit(f'Error: --{name} needs --infobatch.')
    if args.infobatch:
        arguments = conversion(args.policy, args.ratio, args.delta)
        changed = partial(mmib.convert, **arguments)
        return partial(read_config, changed, args.policy), others
    if args.shorten:
        ratio = DEFAULT_RATIO if args.ratio is None else args.ratio
        changed = partial(mmib.shorten, ratio=ratio)
        return partial(read_config, changed, None), others
    return partial(read_config, lambda cfg: cfg, None), others


def main():
    if {'-h', '--help'} & set(sys.argv):
        print(__doc__)
    read, sys.argv[1:] = parse_args()
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('--launcher')
    args, _ = parser.parse_known_args()

    check_stack()
    allow_scoped_bases()
    change_next_config(read)
    on_cpu = args.launcher == 'pytorch' and get_device() == 'cpu'
    with distributed_on_cpu() if on_cpu else nullcontext():
        runpy.run_path(TRAIN, run_name='__main__')


if __name__ == '__main__':
    with one_line_refusals():
        main()
