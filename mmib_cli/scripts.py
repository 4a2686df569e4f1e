# Copyright (c) mmib contributors. All rights reserved.
"""The libraries' own scripts, with mmib's parts registered."""
import argparse
import os.path as osp
import runpy
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any, Callable, List

from mmengine.config import Config
from mmengine.device import get_device

from mmib.compat import (allow_scoped_bases, change_next_config,
                         distributed_on_cpu)
from mmib.config.checks import check_stack
from mmib.config.parts import check_parts
from mmib.config.zoo import LIBRARIES, mim_folder, resolve_config

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
