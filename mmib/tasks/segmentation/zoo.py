# Copyright (c) mmib contributors. All rights reserved.
"""Where the configs of MMSegmentation lie, on both stacks."""
import difflib
import glob
import os.path as osp
from typing import List, Optional

import mmseg

CONFIGS = osp.join(mmseg.__path__[0], '.mim', 'configs')
_SCOPE = 'mmseg::'


def zoo_names() -> List[str]:
    """Name the configs of MMSegmentation that can be trained.

    Returns:
        list[str]: Sorted names relative to :data:`CONFIGS`, such as
        ``'upernet/upernet_r50_4xb4-80k_ade20k-512x512.py'``.
    """
    paths = glob.glob(osp.join(CONFIGS, '**', '*.py'), recursive=True)
    names = [osp.relpath(path, CONFIGS) for path in paths]
    return sorted(
        name.replace(osp.sep, '/') for name in names
        if '_base_' not in name.split(osp.sep))


def zoo_name(path: str) -> Optional[str]:
    """Name a config of MMSegmentation by its path.

    Args:
        path (str): Path of a config.

    Returns:
        str, optional: Its name relative to :data:`CONFIGS`, or None if it
        isn't one of those.
    """
    name = osp.relpath(osp.realpath(path), osp.realpath(CONFIGS))
    if name.split(osp.sep)[0] == osp.pardir or osp.isabs(name):
        return None
    return name.replace(osp.sep, '/')


def resolve_config(path: str) -> str:
    """Find a config that is named ``mmseg::...``, on both stacks.

    MMEngine's own functions for this look for a distribution called
    mmsegmentation. Where the stack is OneDL's, those in ``mmengine.hub``
    install it over the fork.

    Args:
        path (str): Path of a config, or ``mmseg::`` and the name of one of
            MMSegmentation's, with or without ``.py``.

    Returns:
        str: Its path. Paths without ``mmseg::`` are returned as they are.

    Raises:
        FileNotFoundError: If MMSegmentation has no config of this name.
    """
    if not path.startswith(_SCOPE):
        return path
    name = path[len(_SCOPE):]
    if not name.endswith('.py'):
        name += '.py'
    found = osp.join(CONFIGS, *name.split('/'))
    if osp.isfile(found):
        return found
    names = zoo_names()
    # The folder is easily forgotten, so files are compared without it too.
    close = [n for n in names if osp.basename(n) == osp.basename(name)]
    close = close or difflib.get_close_matches(name, names)
    hint = ''.join(f'\n  {_SCOPE}{match}' for match in close)
    raise FileNotFoundError(f'MMSegmentation has no config `{path}`' + (
        f'. Close matches:{hint}' if close else f': see {CONFIGS}'))
