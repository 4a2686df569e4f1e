# Copyright (c) mmib contributors. All rights reserved.
"""The command ``mmib``.

The command lies beside the package ``mmib``: ``import mmib`` takes seconds and
needs a stack, and ``mmib --help`` works without one.
"""
import argparse
import difflib
import functools
import io
import logging
import os
import os.path as osp
import re
import runpy
import sys
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Iterator, List, Optional

from . import early
from .completion import completion
from .parsers import parse

# What each sub-command does. Its module has its name.
COMMANDS = dict(
    train='train a model, also with InfoBatch',
    test='test a checkpoint',
    convert='write a config that trains with InfoBatch',
    shorten='write the control of it: as short, nothing is pruned',
    forecast='say what a run will prune and save',
    report='write one HTML file that shows a run',
    rank='find wrong labels in a dataset by a finished network',
    review='say what a review has found, and what is left',
    demo='train a small network on synthetic images, to try mmib',
    env='print versions and devices, for a bug report')


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


def mistake(error: Exception) -> Optional[str]:
    """The message of an error that says enough: of a stack or operations that
    are missing, or a part of a config that isn't known."""
    if isinstance(error, ModuleNotFoundError) and str(
            error.name).partition('.')[0] == 'mmengine':
        return ('The command needs MMEngine, and `mmengine` is missing: run '
                '`pip install onedl-mmengine onedl-mmcv onedl-mmsegmentation`'
                '. Other libraries of OpenMMLab bring it too.')
    if isinstance(error, ModuleNotFoundError) and error.name == 'scipy':
        return ('The command needs `scipy`: run `pip install scipy`, or '
                'install mmib with the extra `report`.')
    if _lacks_operations(error):
        return ('The model needs compiled operations of mmcv, and this mmcv '
                'has none: use OpenMMLab\'s stack in an environment of its '
                'own (`pip install mmengine mmcv mmdet` for MMDetection), or '
                'build mmcv with its operations.')
    text = str(error.args[0] if len(error.args) == 1 else error)
    found = re.search(r'.* is not in the .*registry\. Please check.*', text)
    return found[0] if found and isinstance(error, KeyError) else None


def _lacks_operations(error: Optional[BaseException]) -> bool:
    """Return whether an error comes from an mmcv without operations."""
    while error is not None and getattr(error, 'name', None) != 'mmcv._ext':
        error = error.__cause__ or error.__context__
    return isinstance(error, ModuleNotFoundError)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with a sentence where mmib refuses something, where a
    config has a known mistake, and where somebody stops the command. All other
    errors keep their traceback: only what the command itself has looked for is
    known to be the user's to correct."""
    try:
        yield
    except Exception as error:
        text = refusal(error) or mistake(error)
        if text is None:
            raise
        sys.exit(f'Error: {text}')
    except KeyboardInterrupt as stop:
        print('\nStopped.', *stop.args, file=sys.stderr)
        sys.exit(130)


@contextmanager
def no_debugging() -> Iterator[None]:
    """Keep MMEngine's ``print_log`` from printing what is for debugging.

    Without a logger it prints messages of any level, and OneDL's
    MMSegmentation says twice so that it could not import OneDL. The function
    can go when ``print_log`` looks at the level.
    """
    try:
        module: Any = import_module('mmengine.logging')
    except ImportError:  # The command itself says what is missing.
        yield
        return
    print_log = module.print_log

    @functools.wraps(print_log)
    def filtered(msg: Any,
                 logger: Any = None,
                 level: int = logging.INFO) -> None:
        if logger is not None or level > logging.DEBUG:
            print_log(msg, logger, level)

    module.print_log = filtered
    try:
        yield
    finally:
        module.print_log = print_log


class _Version(argparse.Action):
    """Print the version, without the import of mmib, which takes seconds."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        spec = find_spec('mmib')
        assert spec is not None and spec.origin is not None
        file = osp.join(osp.dirname(spec.origin), 'version.py')
        print(f'mmib {runpy.run_path(file)["__version__"]}')
        parser.exit()


class _PrintCompletion(argparse.Action):
    """Prints what a shell needs to complete the command."""

    def __call__(self, parser: argparse.ArgumentParser, *args: Any) -> None:
        try:
            print(completion(str(args[1]), COMMANDS))
        except ModuleNotFoundError:
            parser.error('completion needs shtab: run `pip install shtab`')
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='mmib',
        usage='mmib COMMAND ...',
        description='InfoBatch data pruning for MMEngine, MMSegmentation, '
        'MMPretrain and MMDetection.',
        epilog='commands:\n' + '\n'.join(f'  {name:10}{text}'
                                         for name, text in COMMANDS.items()) +
        '\n\n`mmib COMMAND --help` lists the arguments of a command.',
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--version',
        nargs=0,
        action=_Version,
        help='show the version and exit')
    parser.add_argument(
        '--print-completion',
        action=_PrintCompletion,
        choices=['bash', 'zsh', 'tcsh'],
        help='print the script with which a shell completes mmib, and exit')
    parser.add_argument('command', metavar='COMMAND', help=argparse.SUPPRESS)
    parser.add_argument(
        'args', nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(args: Optional[List[str]] = None) -> None:
    """Run a sub-command.

    Args:
        args (list[str], optional): Name and arguments of the sub-command.
            Defaults to the arguments of the process.
    """
    args = sys.argv[1:] if args is None else args
    parser = _parser()
    if not args:
        parser.print_help()
        return
    given = parser.parse_args(args)
    if given.command not in COMMANDS:
        close = difflib.get_close_matches(given.command, COMMANDS, 1)
        hint = (f'did you mean {close[0]}?'
                if close else f'give one of {", ".join(COMMANDS)}')
        parser.error(f'{given.command} is not a command: {hint}')
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names may be no text in UTF-8.
        sys.stdout.reconfigure(errors='backslashreplace')
    # Modules beside a config are found, as with `python`. What is installed
    # comes first: the folder may be the source of a library.
    sys.path.append(os.getcwd())
    with one_line_errors():
        parsed = parse(given.command, given.args)
        early.check(given.command, parsed)
        import_module('mmib')  # Says what to install where there is no stack.
        with no_debugging():
            import_module(f'mmib_cli.{given.command}').main(parsed)
