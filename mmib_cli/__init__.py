# Copyright (c) mmib contributors. All rights reserved.
"""The command ``mmib``.

It lies beside the package ``mmib``, as ``import mmib`` takes seconds and needs
a stack, which ``mmib --help`` and ``mmib env`` have to do without.
"""
import argparse
import os.path as osp
import sys
import traceback
from contextlib import contextmanager
from importlib import import_module
from typing import Iterator, List, Optional

# The module of each sub-command, whose ``main`` takes its arguments, and what
# it does.
COMMANDS = {
    'train': ('mmib_cli.train', 'train a model, also with InfoBatch'),
    'test': ('mmib_cli.test', 'test a checkpoint'),
    'convert': ('mmib_cli.convert', 'write a config that trains with '
                'InfoBatch'),
    'shorten': ('mmib_cli.shorten', 'write the control of it: as short, '
                'nothing is pruned'),
    'forecast': ('mmib_cli.forecast', 'say what a training will prune and '
                 'save'),
    'report': ('mmib.report', 'write one HTML file that shows a training'),
    'env': ('mmib_cli.env', 'print versions and devices, for a bug report'),
}
_ROOT = osp.dirname(osp.dirname(osp.abspath(__file__)))
_FOLDERS = tuple(osp.join(_ROOT, name, '') for name in ('mmib', 'mmib_cli'))


def refusal(error: Optional[BaseException]) -> Optional[str]:
    """What an error says to the user.

    Args:
        error (BaseException): Any error.

    Returns:
        str, optional: The text that mmib stopped with, without a traceback;
        None if something else went wrong.
    """
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        # MMEngine's registries raise anew what the parts they build raise.
        if frames and frames[-1].filename.startswith(_FOLDERS):
            if (frames[-1].line or '').startswith('raise '):
                # The text of a KeyError is quoted.
                return str(error.args[0] if error.args else error)
        error = error.__cause__ or (None if error.__suppress_context__ else
                                    error.__context__)
    return None


@contextmanager
def one_line_refusals() -> Iterator[None]:
    """End the process with a sentence where mmib refuses something."""
    try:
        yield
    except Exception as error:
        text = refusal(error)
        if text is None:
            raise
        sys.exit(f'Error: {text}')


def main(args: Optional[List[str]] = None) -> None:
    """Run a sub-command.

    Args:
        args (list[str], optional): Its name and its arguments. Defaults to
            those of the process.
    """
    parser = argparse.ArgumentParser(
        prog='mmib',
        description='InfoBatch data pruning for MMEngine, MMSegmentation and '
        'MMPretrain.',
        epilog='commands:\n' +
        '\n'.join(f'  {name:10}{text}'
                  for name, (_, text) in COMMANDS.items()) +
        '\n\n`mmib COMMAND --help` tells the arguments of a command.',
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('command', choices=COMMANDS, metavar='COMMAND')
    parser.add_argument('args', nargs=argparse.REMAINDER, metavar='...')
    parsed = parser.parse_args(args)
    with one_line_refusals():
        if parsed.command != 'env':
            # First, as it says what to install where there is no stack.
            import_module('mmib')
        import_module(COMMANDS[parsed.command][0]).main(parsed.args)
