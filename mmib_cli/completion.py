# Copyright (c) mmib contributors. All rights reserved.
"""Completion of the command in a shell, by shtab."""
from argparse import ArgumentParser
from typing import Dict

from . import parsers


def completion(shell: str, commands: Dict[str, str]) -> str:
    """Return the script with which a shell completes the command.

    Args:
        shell (str): ``'bash'``, ``'zsh'`` or ``'tcsh'``.
        commands (dict[str, str]): Name and help of each sub-command.

    Raises:
        ModuleNotFoundError: If shtab isn't installed.
    """
    import shtab
    root = ArgumentParser('mmib')
    choices = root.add_subparsers()
    for name, text in commands.items():
        own = choices.add_parser(
            name,
            help=text,
            parents=[getattr(parsers, name)()],
            conflict_handler='resolve')
        for action in own._actions:
            if action.nargs != 0 and action.choices is None:
                is_folder = 'DIR' in str(action.metavar)
                action.complete = (  # type: ignore[attr-defined]
                    shtab.DIRECTORY if is_folder else shtab.FILE)
    return shtab.complete(root, shell)
