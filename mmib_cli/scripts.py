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
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.runner import Runner
from torch import nn

from mmib.errors import Refusal
from mmib.openmmlab.config.parts import check_parts
from mmib.openmmlab.runner.checks import check_stack

from .early import check_options, options_of
from .files import find_config
from .zoo import LIBRARIES, mim_folder

Prepare = Callable[[argparse.Namespace, str], Tuple[str, List[str]]]


def run_script(name: str, parsed: argparse.Namespace,
               prepare: Prepare) -> None:
    """Run a script of the library of a config.

    Args:
        name (str): File of the script in ``tools``.
        parsed (Namespace): What :func:`mmib_cli.parsers.parse` returns. The
            config may be named by its package, such as ``mmseg::...``.
        prepare (Callable): Takes the arguments and the path of the config.
            Returns the path of the config to use, and arguments of the script.
    """
    check_stack()
    path = find_config(parsed.config)
    # Custom modules are imported where processes train together.
    cfg = Config.fromfile(path, import_custom_modules=False)
    check_parts(cfg)
    library = library_of(cfg)
    script = osp.join(mim_folder(library), 'tools', name)
    if not osp.isfile(script):
        raise Refusal(f'{LIBRARIES[library][0]} has no script {script}, which '
                      'its wheel has: install the wheel.')
    check_options(parsed, options_of(library, name),
                  f' of {LIBRARIES[library][0]}')
    on_cpu = parsed.launcher == 'pytorch' and get_device() == 'cpu'
    with distributed_on_cpu() if on_cpu else nullcontext():
        path, args = prepare(parsed, path)
        args = [path if arg == parsed.config else arg for arg in args]
        sys.argv[1:] = args
        code = None
        try:
            runpy.run_path(script, run_name='__main__')
        except SystemExit as end:
            # Without its traceback, which refers to the process group.
            code = end.code
    if code:
        raise SystemExit(code)


def library_of(cfg: Config) -> str:
    """Return the library whose script trains a config: the library of its
    ``default_scope``, or else any library that is installed."""
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
