# Copyright (c) mmib contributors. All rights reserved.
"""Test a checkpoint with the library's own script."""
import argparse
from typing import List, Tuple

from .data import check_data
from .files import read
from .scripts import run_script


def prepare(parsed: argparse.Namespace, path: str) -> Tuple[str, List[str]]:
    """Change nothing, and check that the data are there."""
    cfg = read(path)
    cfg.merge_from_dict(parsed.cfg_options)
    check_data(cfg, 'test')
    return path, parsed.script_args


def main(parsed: argparse.Namespace) -> None:
    run_script('test.py', parsed, prepare)
