# Copyright (c) mmib contributors. All rights reserved.
"""Where the configs of MMSegmentation and of mmib lie, on both stacks."""
import difflib
import glob
import os.path as osp
from importlib import import_module
from typing import List, Optional

import mmseg

CONFIGS = osp.join(mmseg.__path__[0], '.mim', 'configs')
# Whose configs have names, such as mmseg::upernet/...
PACKAGES = ('mmseg', 'mmib')


def installed_configs(package: str) -> str:
    """Folder of the configs that a wheel brings.

    Args:
        package (str): One of :data:`PACKAGES`.

    Returns:
        str: The folder. There is none in a source checkout.
    """
    return osp.join(import_module(package).__path__[0], '.mim', 'configs')


def zoo_names(folder: str = CONFIGS) -> List[str]:
    """Name the configs that can be trained.

    Args:
        folder (str): Where they lie. Defaults to :data:`CONFIGS`, those of
            MMSegmentation.

    Returns:
        list[str]: Sorted names relative to the folder, such as
        ``'upernet/upernet_r50_4xb4-80k_ade20k-512x512.py'``.
    """
    paths = glob.glob(osp.join(folder, '**', '*.py'), recursive=True)
    names = [osp.relpath(path, folder) for path in paths]
    return sorted(
        name.replace(osp.sep, '/') for name in names
        if '_base_' not in name.split(osp.sep))


def zoo_name(path: str, folder: str = CONFIGS) -> Optional[str]:
    """Name a config by its path.

    Args:
        path (str): Path of a config.
        folder (str): Where such configs lie. Defaults to :data:`CONFIGS`,
            those of MMSegmentation.

    Returns:
        str, optional: Its name relative to the folder, or None if it isn't in
        there.
    """
    name = osp.relpath(osp.realpath(path), osp.realpath(folder))
    if name.split(osp.sep)[0] == osp.pardir or osp.isabs(name):
        return None
    return name.replace(osp.sep, '/')


def resolve_config(path: str) -> str:
    """Find a config that is named ``mmseg::...`` or ``mmib::...``, on both
    stacks.

    MMEngine's own functions for this look for a distribution called
    mmsegmentation. Where the stack is OneDL's, those in ``mmengine.hub``
    install it over the fork.

    Args:
        path (str): Path of a config, or ``mmseg::`` and the name of one of
            MMSegmentation's, or ``mmib::`` and that of one of mmib's, with or
            without ``.py``.

    Returns:
        str: Its path. Other paths are returned as they are.

    Raises:
        FileNotFoundError: If there is no config of this name.
    """
    package, scope, name = path.partition('::')
    if not scope or package not in PACKAGES:
        return path
    folder = installed_configs(package)
    if not osp.isdir(folder):
        # A source checkout: they lie beside the package.
        folder = osp.normpath(osp.join(folder, '..', '..', '..', 'configs'))
    if not name.endswith('.py'):
        name += '.py'
    found = osp.join(folder, *name.split('/'))
    if osp.isfile(found):
        return found
    names = zoo_names(folder)
    # The folder is easily forgotten, so files are compared without it too.
    close = [n for n in names if osp.basename(n) == osp.basename(name)]
    close = close or difflib.get_close_matches(name, names)
    hint = ''.join(f'\n  {package}::{match}' for match in close)
    raise FileNotFoundError(f'{package} has no config `{path}`' + (
        f'. Close matches:{hint}' if close else f': see {folder}'))
