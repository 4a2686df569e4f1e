# Copyright (c) mmib contributors. All rights reserved.
"""Print versions and devices, for a bug report."""
import argparse
import os.path as osp
import re
import sys
from importlib.metadata import distributions
from typing import Any, Dict

import torch

import mmib

_PACKAGES = re.compile(r'(onedl-)?mm(?!ib$)\w+(-lite)?|numpy|torch\w*')


def main(parsed: argparse.Namespace) -> None:
    facts = dict(mmib=f'{mmib.__version__}, {osp.dirname(mmib.__file__)}')
    facts.update(
        sorted((found.metadata['Name'], found.version)
               for found in distributions()
               if _PACKAGES.fullmatch(found.metadata['Name'] or '')))
    try:
        from mmengine.utils.dl_utils import collect_env

        from mmib.openmmlab.runner.checks import check_stack
    except ImportError as error:  # A PyTorch loop needs no MMEngine.
        facts['mmengine'] = f'not imported ({error})'
        collect_env, check_stack = _collect_env, lambda: None
    for name, value in [*facts.items(), *collect_env().items()]:
        print(f'{name}: {value}')
    check_stack()


def _collect_env() -> Dict[str, Any]:
    devices = range(torch.cuda.device_count())
    return dict(
        platform=sys.platform,
        Python=sys.version,
        GPUs=[torch.cuda.get_device_name(i) for i in devices])
