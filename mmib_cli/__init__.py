# Copyright (c) mmib contributors. All rights reserved.
"""The command ``mmib``.

The command lies beside the package ``mmib``: ``import mmib`` takes seconds and
needs a stack, and ``mmib --help`` and ``mmib env`` work without one.
"""
import argparse
import io
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import Iterator, List, Optional

# The module of each sub-command, whose ``main`` takes the arguments, and what
# the sub-command does.
COMMANDS = {
    'train': ('mmib_cli.train', 'train a model, also with InfoBatch'),
    'test': ('mmib_cli.test', 'test a checkpoint'),
    'convert': ('mmib_cli.convert', 'write a config that trains with '
                'InfoBatch'),
    'shorten': ('mmib_cli.shorten', 'write the control of it: as short, '
                'nothing is pruned'),
    'forecast': ('mmib_cli.forecast', 'say what a training will prune and '
                 'save'),
    'report': ('mmib_cli.report', 'write one HTML file that shows a '
               'training'),
    'review': ('mmib_cli.review', 'say what a review of a report has found, '
               'and what is left'),
    'env': ('mmib_cli.env', 'print versions and devices, for a bug report'),
}


def refusal(error: Optional[BaseException]) -> Optional[str]:
    """What mmib refuses, with what text.

    Args:
        error (BaseException): Any error.

    Returns:
        str, optional: The text of the first refusal that led to the error,
        None if there is none.
    """
    # Nothing is refused before the module is imported.
    kind = getattr(sys.modules.get('mmib.errors'), 'Refusal', ())
    while error is not None:
        if isinstance(error, kind):
            return str(error)
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


def _import_mmib() -> None:
    try:
        import_module('mmib')
    except ModuleNotFoundError as error:
        if error.name != 'mmengine':
            raise
        # mmib says what to install where there is no stack.
        sys.exit(f'Error: {error}')


def main(args: Optional[List[str]] = None) -> None:
    """Run a sub-command.

    Args:
        args (list[str], optional): Name and arguments of the sub-command.
            Defaults to the arguments of the process.
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
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names may be no text in UTF-8.
        sys.stdout.reconfigure(errors='backslashreplace')
    with one_line_refusals():
        if parsed.command != 'env':
            _import_mmib()
        import_module(COMMANDS[parsed.command][0]).main(parsed.args)
