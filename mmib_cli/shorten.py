# Copyright (c) mmib contributors. All rights reserved.
"""Write the short baseline, the control that pruning has to beat."""
import argparse

from .convert import write
from .options import shortening


def main(parsed: argparse.Namespace) -> None:
    write(parsed, shortening(parsed))
