# Copyright (c) mmib contributors. All rights reserved.
"""Print versions and devices, for a bug report: what MMEngine tells, and the
packages of the stack."""
import argparse
import os.path as osp
import re
from importlib.metadata import distributions
from typing import List

from mmengine.utils.dl_utils import collect_env

import mmib
from mmib.openmmlab.runner.checks import check_stack

_PACKAGES = re.compile(r'(onedl-)?mm\w+(-lite)?|numpy|torch\w*')


def main(args: List[str]) -> None:
    argparse.ArgumentParser(
        prog='mmib env', description=__doc__).parse_args(args)
    facts = collect_env()
    facts.update(
        sorted((found.metadata['Name'], found.version)
               for found in distributions()
               if _PACKAGES.fullmatch(found.metadata['Name'] or '')))
    facts['mmib'] = f'{mmib.__version__}, {osp.dirname(mmib.__file__)}'
    for name, value in facts.items():
        print(f'{name}: {value}')
    check_stack()
