# Copyright (c) mmib contributors. All rights reserved.
"""Write the short baseline: CONFIG with a shorter schedule, and nothing else.

It is the control that pruning has to beat. The file inherits CONFIG and has no
part of mmib in it.
"""
from typing import List

from .convert import write
from .options import parser_of, shortening


def main(args: List[str]) -> None:
    parser = parser_of('shorten', __doc__)
    parser.add_argument(
        '--ratio',
        type=float,
        help='share of the iterations to run (default: 0.6)')
    write(parser, args, shortening)
