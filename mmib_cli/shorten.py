# Copyright (c) mmib contributors. All rights reserved.
"""Write the short baseline: CONFIG with a shorter schedule, and nothing else.

It is the control that pruning has to beat. The file inherits CONFIG and has no
part of mmib in it.
"""
from typing import List

from .files import write_changed
from .options import file_parser, shortening


def main(args: List[str]) -> None:
    parser = file_parser('shorten', __doc__)
    parser.add_argument(
        '--ratio',
        type=float,
        help='share of the iterations to run (default: 0.6)')
    parsed = parser.parse_args(args)
    write_changed(parsed.config, parsed.out, shortening(parsed.ratio))
