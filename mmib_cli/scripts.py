# Copyright (c) mmib contributors. All rights reserved.
"""The libraries' own scripts, with mmib's parts registered."""
import argparse
import gc
import os.path as osp
import re
import runpy
import sys
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any, Callable, Iterator, List, Optional

import torch.distributed as dist
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.runner import Runner
from torch import nn

from mmib.config.parts import check_parts
from mmib.config.zoo import (LIBRARIES, allow_scoped_bases, mim_folder,
                             resolve_config)
from mmib.errors import Refusal
from mmib.runner.checks import check_stack

from .files import find_config


def run_script(
        name: str,
        args: List[str],
        change: Callable[[str, Config],
                         Config] = lambda path, cfg: cfg) -> None:
    """Run a script of the library of a config. The script reads the config
    first.

    Args:
        name (str): File of the script in ``tools``.
        args (list[str]): Arguments of the script. The config may be named by
            its package, such as ``mmseg::...``.
        change (Callable): Takes the path of the config and the config, and
            returns the config to use. Defaults to the config itself.
    """

    def read(fromfile: Callable, path: str, *args: Any,
             **kwargs: Any) -> Config:
        path = find_config(path)
        return change(path, fromfile(path, *args, **kwargs))

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('--launcher')
    launcher = parser.parse_known_args(args)[0].launcher

    check_stack()
    allow_scoped_bases()
    script = osp.join(mim_folder(library_of(args)), 'tools', name)
    change_next_config(read)
    sys.argv[1:] = args
    on_cpu = launcher == 'pytorch' and get_device() == 'cpu'
    with distributed_on_cpu() if on_cpu else nullcontext():
        runpy.run_path(script, run_name='__main__')


def library_of(args: List[str]) -> str:
    """The library whose script trains the config in the arguments: the one of
    its ``default_scope``, or any that is installed where the config names
    none."""
    for path in map(resolve_config, args):
        if path.endswith('.py') and osp.isfile(path):
            # Custom modules are imported where processes train together.
            cfg = Config.fromfile(path, import_custom_modules=False)
            check_parts(cfg)
            scope = cfg.get('default_scope')
            if scope in LIBRARIES:
                return scope
    installed = (name for name in LIBRARIES if find_spec(name) is not None)
    return next(installed, next(iter(LIBRARIES)))


def change_next_config(change: Callable[..., Config]) -> None:
    """Let ``change(fromfile, path, *args, **kwargs)`` read the next config.

    The libraries' ``tools/train.py`` read the config of the training first,
    and have no place to change it. The function can go when mmib no longer
    runs these scripts.
    """
    fromfile = Config.fromfile

    def changed(path: str, *args: Any, **kwargs: Any) -> Config:
        # Later configs stay as they are.
        Config.fromfile = staticmethod(fromfile)
        return change(fromfile, path, *args, **kwargs)

    Config.fromfile = staticmethod(changed)


@contextmanager
def distributed_on_cpu() -> Iterator[None]:
    """Let processes without a GPU train together.

    MMEngine's launcher gives each process a CUDA device, which fails without
    CUDA. So the process group is made here, and the Runner makes none.
    MMEngine's model wrapper names a device, which ``DistributedDataParallel``
    refuses on a CPU. So the wrapper gets no device here. The function can go
    when MMEngine's launcher knows processes without a GPU.
    """
    dist.init_process_group('gloo')
    wrap_model = Runner.wrap_model

    def wrap_on_cpu(self: Runner, model_wrapper_cfg: Optional[dict],
                    model: nn.Module) -> nn.Module:
        # Names as in the config, where the parts of a list have numbers.
        parts = {
            match[0]: None
            for name, module in model.named_modules()
            if isinstance(module, nn.SyncBatchNorm) and (
                match := re.match(r'[^.]+(\.\d+)?', name))
        }
        if parts:
            raise Refusal(
                'SyncBN needs GPUs, and these processes have none: add '
                '`--cfg-options ' + ' '.join(f'model.{part}.norm_cfg.type=BN'
                                             for part in parts) +
                '`, or train in one process, which needs no SyncBN.')
        if model_wrapper_cfg is None:
            model_wrapper_cfg = dict(
                broadcast_buffers=False,
                find_unused_parameters=self.cfg.get('find_unused_parameters',
                                                    False))
        return wrap_model(self, {
            'device_ids': None,
            **model_wrapper_cfg
        }, model)

    Runner.wrap_model = wrap_on_cpu
    yield
    # A thread of gloo that frees a tensor when the interpreter ends aborts the
    # process, so that a complete training exits with 1
    # (pytorch/pytorch#179291). Gloo waits for its threads when nothing refers
    # to the group. The Runner, which refers to the group, is in a cycle.
    gc.collect()
    dist.destroy_process_group()
