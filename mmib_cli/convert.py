# Copyright (c) mmib contributors. All rights reserved.
"""Convert a config of the baseline to InfoBatch, and write it to a file."""
import argparse
import os.path as osp
from typing import Callable

from mmengine.utils import mkdir_or_exist

from mmib.errors import Refusal
from mmib.openmmlab.runner.checks import check_stack

from .answer import answer
from .data import missing_data
from .files import converted_name, find_config, read, write_child
from .options import conversion, listing


def main(parsed: argparse.Namespace) -> None:
    write(parsed, conversion(parsed), listing(parsed))


def write(parsed: argparse.Namespace,
          change: Callable,
          listing: Callable = lambda cfg: cfg) -> None:
    """Write a config that is made from another one, and print what differs.

    Args:
        parsed (Namespace): Arguments of the command.
        change (Callable): Makes the new config from the original one.
        listing (Callable): Puts a list of images into the original config
            first, which isn't printed. Defaults to no list.
    """
    check_stack()
    path, out = find_config(parsed.config), parsed.out
    before = read(path)
    listed = listing(before)
    after = change(listed)
    if not out.endswith('.py'):
        out = osp.join(out, converted_name(path, before, after) + '.py')
    if osp.exists(out):
        raise Refusal(f'{out} exists: remove it, or give another OUT.')
    mkdir_or_exist(osp.dirname(osp.abspath(out)))
    write_child(path, before, after, out)
    outlook = answer(
        listed, after, parsed, advises=not missing_data(after, 'train', 'val'))
    print(f'{outlook.text(parsed.verbose)}\n\nWritten to {out}')
