# Copyright (c) mmib contributors. All rights reserved.
"""Convert a config of the baseline to InfoBatch. A schedule that counts
iterations is shorter then, and of one that counts epochs each epoch is.

It writes a short config that inherits CONFIG, and prints what changes and what
that saves. The file trains with the library's own tools/train.py, from any
folder.
"""
from typing import List

from .files import write_changed
from .options import add_conversion_options, conversion, file_parser, listing


def main(args: List[str]) -> None:
    parser = file_parser('convert', __doc__)
    add_conversion_options(parser)
    parsed = parser.parse_args(args)
    write_changed(parsed.config, parsed.out, conversion(parsed),
                  listing(parsed))
