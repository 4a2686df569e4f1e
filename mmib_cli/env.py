# Copyright (c) mmib contributors. All rights reserved.
"""Print versions and devices, for a bug report."""
import argparse
import os.path as osp
import re
from importlib.metadata import distributions

from mmengine.utils.dl_utils import collect_env

import mmib
from mmib.openmmlab.runner.checks import check_stack

_PACKAGES = re.compile(r'(onedl-)?mm(?!ib$)\w+(-lite)?|numpy|torch\w*')


def main(parsed: argparse.Namespace) -> None:
    facts = dict(mmib=f'{mmib.__version__}, {osp.dirname(mmib.__file__)}')
    facts.update(
        sorted((found.metadata['Name'], found.version)
               for found in distributions()
               if _PACKAGES.fullmatch(found.metadata['Name'] or '')))
    for name, value in [*facts.items(), *collect_env().items()]:
        print(f'{name}: {value}')
    check_stack()
