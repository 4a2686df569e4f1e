# Copyright (c) mmib contributors. All rights reserved.
"""Convert a config of the baseline to InfoBatch. A schedule that counts
iterations is shorter then, and of one that counts epochs each epoch is.

It writes a short config that inherits CONFIG, and prints what changes and what
that saves. The file trains with the library's own tools/train.py, from any
folder.
"""
import argparse
import os.path as osp
from typing import Callable, List

from mmengine.utils import mkdir_or_exist

from mmib.errors import Refusal
from mmib.openmmlab.runner.checks import check_stack

from .files import converted_name, find_config, read, report, write_child
from .options import (CONFIG_HELP, add_conversion_options, conversion, listing,
                      parser_of)


def main(args: List[str]) -> None:
    parser = parser_of('convert', __doc__)
    add_conversion_options(parser)
    write(parser, args, conversion, listing)


def write(parser: argparse.ArgumentParser,
          args: List[str],
          change_of: Callable,
          listing_of: Callable = lambda parsed: lambda cfg: cfg) -> None:
    """Write a config that is made from another one, and print what differs.

    Args:
        parser (ArgumentParser): The options of the command.
        args (list[str]): Arguments of the command.
        change_of (Callable): Takes the parsed arguments, and returns what
            makes the new config from the original one.
        listing_of (Callable): The same of what puts a list of images into the
            original config first, which isn't printed. Defaults to no list.
    """
    parser.add_argument('config', help=CONFIG_HELP)
    parser.add_argument(
        'out', help='.py file to write, or a folder, which names the file')
    parsed = parser.parse_args(args)
    check_stack()
    path, out = find_config(parsed.config), parsed.out
    before = read(path)
    listed = listing_of(parsed)(before)
    after = change_of(parsed)(listed)
    if not out.endswith('.py'):
        out = osp.join(out, converted_name(path, before, after) + '.py')
    if osp.exists(out):
        raise Refusal(f'{out} exists: remove it, or give another OUT.')
    mkdir_or_exist(osp.dirname(osp.abspath(out)))
    write_child(path, before, after, out)
    print(f'{report(listed, after)}\n\nWritten to {out}')
