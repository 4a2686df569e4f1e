# Copyright (c) mmib contributors. All rights reserved.
"""Test a checkpoint with the library's own script."""
import argparse

from .scripts import run_script


def main(parsed: argparse.Namespace) -> None:
    run_script('test.py', parsed)
