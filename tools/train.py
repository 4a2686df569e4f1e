# Copyright (c) mmib contributors. All rights reserved.
"""Train a segmentor: MMSegmentation's own tools/train.py with mmib's parts
registered, so with the same arguments and a few more. CONFIG may also be a
name such as mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512.

  --infobatch    Convert CONFIG, of the baseline, to InfoBatch first, with
                 `mmib.convert`. --cfg-options change the converted config, as
                 if it were a file: train_cfg.max_iters=100 moves nothing else.
                 InfoBatchHook is the last of custom_hooks. Without --work-dir
                 the folder has the name of the converted config.
  --ratio RATIO  With --infobatch: share of the iterations (default: 0.6).
  --delta DELTA  With --infobatch: fraction that prunes (default: 0.85).
"""
import argparse
import os
import os.path as osp
import runpy
import sys
from contextlib import nullcontext
from functools import partial
from typing import Callable, Optional

# First, as it says what to install where there is no stack.
import mmib

# isort: split
import mmseg
from convert_config import changes, converted_name, table
from mmengine.config import Config
from mmengine.device import get_device

from mmib.compat import (allow_scoped_bases, change_next_config,
                         distributed_on_cpu)
from mmib.tasks.segmentation.zoo import resolve_config

TRAIN = osp.join(mmseg.__path__[0], '.mim', 'tools', 'train.py')


def read_config(conversion: Optional[dict], fromfile: Callable, path: str,
                *args, **kwargs) -> Config:
    """Read the config of the training, which may be one of MMSegmentation's
    by name, and convert it.

    Args:
        conversion (dict, optional): Arguments of ``mmib.convert``. If None,
            it isn't converted.
        fromfile (Callable): MMEngine's function for it.
        path (str): The config.

    Returns:
        Config: The config to train.
    """
    path = resolve_config(path)
    cfg = fromfile(path, *args, **kwargs)
    if conversion is None:
        return cfg
    converted = mmib.convert(cfg, **conversion)
    if os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) == '0':
        print(table(changes(cfg, converted)), flush=True)
    if converted.get('work_dir') is None:
        # The folder of CONFIG's name is that of the baseline.
        converted.work_dir = osp.join('./work_dirs',
                                      converted_name(path, cfg, converted))
    return converted


def main():
    if {'-h', '--help'} & set(sys.argv):
        print(__doc__)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('--infobatch', action='store_true')
    parser.add_argument('--ratio', type=float, default=argparse.SUPPRESS)
    parser.add_argument('--delta', type=float, default=argparse.SUPPRESS)
    ours, theirs = parser.parse_known_args()
    conversion = vars(ours)
    infobatch = conversion.pop('infobatch')
    if conversion and not infobatch:
        sys.exit(f'--{next(iter(conversion))} needs --infobatch.')
    sys.argv[1:] = theirs
    parser.add_argument('--launcher')
    args, _ = parser.parse_known_args()

    allow_scoped_bases()
    change_next_config(partial(read_config, conversion if infobatch else None))
    on_cpu = args.launcher == 'pytorch' and get_device() == 'cpu'
    with distributed_on_cpu() if on_cpu else nullcontext():
        runpy.run_path(TRAIN, run_name='__main__')


if __name__ == '__main__':
    main()
