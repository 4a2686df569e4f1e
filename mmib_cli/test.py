# Copyright (c) mmib contributors. All rights reserved.
"""Test a checkpoint: the library's own tools/test.py with mmib's parts
registered, so with the same arguments. CONFIG may also be a name such as
mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512, or mmib:: and the name of a
config of mmib.
"""
from typing import List

from .scripts import run_script, show_help


def main(args: List[str]) -> None:
    if {'-h', '--help'} & set(args):
        show_help('test.py', __doc__)
    run_script('test.py', args)
