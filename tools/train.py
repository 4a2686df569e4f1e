# Copyright (c) mmib contributors. All rights reserved.
"""Train a segmentor: MMSegmentation's own tools/train.py with mmib's parts
registered, so with the same arguments and a few more. CONFIG may also be a
name such as mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512.

  --infobatch    Convert CONFIG, of stock training, to InfoBatch first, with
                 `mmib.convert`. --cfg-options change the converted config, as
                 if it were a file: train_cfg.max_iters=100 moves nothing else.
                 InfoBatchHook is the last of custom_hooks. Without --work-dir
                 the folder has the name of the converted config.
  --ratio RATIO  With --infobatch: share of the iterations (default: 0.6).
  --delta DELTA  With --infobatch: fraction that prunes (default: 0.85).
"""
import argparse
import gc
import os
import os.path as osp
import runpy
import sys
from contextlib import contextmanager, nullcontext
from typing import Iterator, Optional

# First, as it says what to install where there is no stack.
import mmib

# isort: split
import mmseg
import torch.distributed as dist
from convert_config import table
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.runner import Runner
from torch import nn

from mmib.schedule import changes, converted_name
from mmib.zoo import allow_scoped_bases, resolve_config

TRAIN = osp.join(mmseg.__path__[0], '.mim', 'tools', 'train.py')


def read_config_with_mmib(conversion: Optional[dict]) -> None:
    """Let the next config that is read be one of MMSegmentation's by name,
    and converted.

    Args:
        conversion (dict, optional): Arguments of ``mmib.convert``. If None,
            it isn't converted.
    """
    stock = Config.fromfile

    def fromfile(path: str, *args, **kwargs) -> Config:
        # What is read after the config of the training is as it was.
        Config.fromfile = staticmethod(stock)
        path = resolve_config(path)
        cfg = stock(path, *args, **kwargs)
        if conversion is None:
            return cfg
        converted = mmib.convert(cfg, **conversion)
        if os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) == '0':
            print(table(changes(cfg, converted)), flush=True)
        if converted.get('work_dir') is None:
            # The folder of CONFIG's name is that of the stock training.
            converted.work_dir = osp.join('./work_dirs',
                                          converted_name(path, cfg, converted))
        return converted

    Config.fromfile = staticmethod(fromfile)


@contextmanager
def distributed_on_cpu() -> Iterator[None]:
    """Let processes without a GPU train together.

    MMEngine's launcher gives each a CUDA device, which builds of torch for
    CPU can't, and its wrapper names a device, which
    ``DistributedDataParallel`` refuses for models on the CPU. So the process
    group is there before the Runner, which then makes none, and the wrapper
    has no device. Its other arguments are those of the Runner.
    """
    dist.init_process_group('gloo')
    stock = Runner.wrap_model

    def wrap_model(self, model_wrapper_cfg: Optional[dict],
                   model: nn.Module) -> nn.Module:
        if model_wrapper_cfg is None:
            model_wrapper_cfg = dict(
                broadcast_buffers=False,
                find_unused_parameters=self.cfg.get('find_unused_parameters',
                                                    False))
        return stock(self, {'device_ids': None, **model_wrapper_cfg}, model)

    Runner.wrap_model = wrap_model
    yield
    # A thread of gloo that lets go of a tensor when the interpreter ends
    # aborts the process, and a training that is complete exits with 1
    # (pytorch/pytorch#179291). Gloo waits for its threads when nothing refers
    # to the group any more; the Runner, whose model does, is in a cycle.
    gc.collect()
    dist.destroy_process_group()


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
    read_config_with_mmib(conversion if infobatch else None)
    on_cpu = args.launcher == 'pytorch' and get_device() == 'cpu'
    with distributed_on_cpu() if on_cpu else nullcontext():
        runpy.run_path(TRAIN, run_name='__main__')


if __name__ == '__main__':
    main()
