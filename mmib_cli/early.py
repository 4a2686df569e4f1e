# Copyright (c) mmib contributors. All rights reserved.
"""What is refused before the stack is imported, which takes seconds: options
that no script has, and files that don't exist."""
import argparse
import difflib
import os
import os.path as osp
import re
from importlib.util import find_spec
from typing import Optional, Set

# The name of each library, and the packages that were tested with it.
LIBRARIES = dict(
    mmseg=('MMSegmentation', 'onedl-mmengine onedl-mmcv onedl-mmsegmentation'),
    mmpretrain=('MMPretrain', 'onedl-mmengine onedl-mmcv onedl-mmpretrain'),
    mmdet=('MMDetection', 'mmengine mmcv mmdet'))
# The arguments of all commands that name files to read.
_FILES = 'checkpoint', 'files', 'review', 'subset', 'without', 'relabel'


def check(command: str, parsed: argparse.Namespace) -> None:
    """Refuse options that the script of no library has, and arguments that
    name missing files.

    Args:
        command (str): Name of the command.
        parsed (Namespace): What :func:`mmib_cli.parsers.parse` returns.

    Raises:
        SystemExit: With a sentence that says what to correct.
    """
    if command in ('train', 'test'):
        # Before the library of the config is known, the options of any.
        known = {*parsed.parser._option_string_actions}
        known.update(*(options_of(library, f'{command}.py')
                       for library in LIBRARIES))
        check_options(parsed, known)
    config = getattr(parsed, 'config', None)
    text = config and '::' not in config and no_config(config)
    for name in _FILES:
        given = getattr(parsed, name, None) or ()
        for path in [given] if isinstance(given, str) else given:
            # An address isn't a file.
            if not text and ':' not in path and not osp.isfile(path):
                kind = name if name == 'checkpoint' else 'file'
                text = f'There is no {kind} {path}: correct the path.'
    if command == 'report':
        for path in (parsed.work_dir, *parsed.compare):
            if not osp.isdir(path):
                text = f'{path} is not a folder.'
    if text:
        raise SystemExit(f'Error: {text}')


def no_config(path: str) -> Optional[str]:
    """Return what is wrong with the path of a config, None if nothing is."""
    if not path.endswith(('.py', '.yaml', '.yml', '.json')):
        return (f'{path} is not a config, whose name ends with .py: give '
                'CONFIG first, and then all others.')
    if not osp.isfile(path):
        return (f'There is no config {path}; a relative path counts from the '
                f'current folder, which is {os.getcwd()}.')
    return None


def options_of(library: str, name: str) -> Set[str]:
    """Return the options of a script of a library. There are none if the
    library isn't installed."""
    spec = find_spec(library)
    if spec is None or spec.submodule_search_locations is None:
        return set()
    path = osp.join(spec.submodule_search_locations[0], '.mim', 'tools', name)
    if not osp.isfile(path):
        return set()
    with open(path, encoding='utf-8') as file:
        return {*re.findall(r"'(--[\w-]+)'", file.read())}


def check_options(parsed: argparse.Namespace,
                  known: Set[str],
                  owner: str = '') -> None:
    """Refuse an option that the script of the library doesn't have. The script
    would refuse the option too, and list only its own options."""
    for arg in parsed.script_args:
        option = arg.partition('=')[0]
        if option.startswith('-') and option not in known:
            close = difflib.get_close_matches(option, known, 1, 0.7)
            hint = f': did you mean {close[0]}?' if close else ''
            parsed.parser.error(f'{option} is not an option{owner}{hint}')
