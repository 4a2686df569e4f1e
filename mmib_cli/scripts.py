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
from typing import Callable, Iterator, List, Optional, Tuple

import torch.distributed as dist
from mmengine.config import Config, DictAction
from mmengine.device import get_device
from mmengine.runner import Runner
from torch import nn

from mmib.errors import Refusal
from mmib.openmmlab.config.parts import check_parts
from mmib.openmmlab.config.zoo import LIBRARIES, mim_folder
from mmib.openmmlab.runner.checks import check_stack

from .files import check_checkpoint, find_config

Prepare = Callable[[argparse.Namespace, str, List[str]], Tuple[str, List[str]]]


def as_given(given: argparse.Namespace, path: str,
             args: List[str]) -> Tuple[str, List[str]]:
    """Change nothing, and check that the checkpoint is there."""
    check_checkpoint(given.checkpoint, 'CHECKPOINT')
    return path, args


def run_script(name: str,
               args: List[str],
               prepare: Prepare = as_given) -> None:
    """Run a script of the library of a config.

    Args:
        name (str): File of the script in ``tools``.
        args (list[str]): Arguments of the script. The config may be named by
            its package, such as ``mmseg::...``.
        prepare (Callable): Takes what :func:`parse` finds, the path of the
            config, and the arguments. Returns the path of the config to use,
            and arguments. Defaults to :func:`as_given`.
    """
    given = parse(name, args)
    check_stack()
    path = find_config(given.config)
    # Custom modules are imported where processes train together.
    cfg = Config.fromfile(path, import_custom_modules=False)
    check_parts(cfg)
    on_cpu = given.launcher == 'pytorch' and get_device() == 'cpu'
    with distributed_on_cpu() if on_cpu else nullcontext():
        path, args = prepare(given, path, args)
        args = [path if arg == given.config else arg for arg in args]
        _run(library_of(cfg), name, args)


def parse(name: str, args: List[str]) -> argparse.Namespace:
    """The arguments of a script that all libraries have, and that stand before
    the config or say what becomes of it."""
    parser = argparse.ArgumentParser(
        prog=f'mmib {osp.splitext(name)[0]}',
        usage='%(prog)s CONFIG ..., and --help lists all options',
        add_help=False,
        allow_abbrev=False)
    parser.add_argument('config', metavar='CONFIG')
    parser.add_argument('checkpoint', nargs='?')  # Of a test.
    parser.add_argument('--work-dir')
    parser.add_argument('--launcher')
    parser.add_argument('--local-rank', '--local_rank')
    # With a checkpoint in MMPretrain and MMDetection.
    parser.add_argument('--resume', nargs='?', const='auto')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, default={})
    return parser.parse_known_args(args)[0]


def show_help(name: str, text: str) -> None:
    """Print a text, and the help of a script of a library."""
    print(text)
    _run(library_of(Config()), name, ['--help'])


def _run(library: str, name: str, args: List[str]) -> None:
    sys.argv[1:] = args
    script = osp.join(mim_folder(library), 'tools', name)
    runpy.run_path(script, run_name='__main__')


def library_of(cfg: Config) -> str:
    """The library whose script trains a config: the one of its
    ``default_scope``, or any that is installed where the config names none."""
    scope = cfg.get('default_scope')
    if scope in LIBRARIES:
        return scope
    installed = (name for name in LIBRARIES if find_spec(name) is not None)
    return next(installed, next(iter(LIBRARIES)))


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
