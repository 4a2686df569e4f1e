# Copyright (c) mmib contributors. All rights reserved.
"""Where the configs of the libraries and of mmib lie, on both stacks."""
import difflib
import glob
import os
import os.path as osp
from importlib.util import find_spec
from typing import Iterator, List, Optional

# Libraries: how they are called, and the extra of mmib that installs them.
LIBRARIES = dict(
    mmseg=('MMSegmentation', 'onedl'),
    mmpretrain=('MMPretrain', 'mmpretrain'),
    mmdet=('MMDetection', 'mmdet'))
# Whose configs have names, such as mmseg::upernet/...
PACKAGES = (*LIBRARIES, 'mmib')


def installed_packages() -> Iterator[str]:
    """Those of :data:`PACKAGES` that are installed."""
    for package in PACKAGES:
        if find_spec(package) is not None:
            yield package


def mim_folder(package: str) -> str:
    """Folder of what a wheel brings for mim: configs and tools.

    Args:
        package (str): One of :data:`PACKAGES`.

    Returns:
        str: The folder. There is none in a source checkout.

    Raises:
        ModuleNotFoundError: If the package isn't installed.
    """
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        name, extra = LIBRARIES[package]
        raise ModuleNotFoundError(
            f'This needs {name}, and `{package}` is missing: run '
            f"`pip install 'mmib[{extra}]'`, or see docs/install.md for the "
            'stack of OpenMMLab.',
            name=package)
    return osp.join(spec.submodule_search_locations[0], '.mim')


def installed_configs(package: str) -> str:
    """Folder of the configs that a wheel brings, see :func:`mim_folder`."""
    return osp.join(mim_folder(package), 'configs')


def zoo_names(folder: str) -> List[str]:
    """Name the configs that can be trained.

    Args:
        folder (str): Where they lie.

    Returns:
        list[str]: Sorted names relative to the folder, such as
        ``'upernet/upernet_r50_4xb4-80k_ade20k-512x512.py'``.
    """
    paths = glob.glob(osp.join(folder, '**', '*.py'), recursive=True)
    names = [osp.relpath(path, folder) for path in paths]
    return sorted(
        name.replace(osp.sep, '/') for name in names
        if '_base_' not in name.split(osp.sep))


def zoo_name(path: str, folder: str) -> Optional[str]:
    """Name a config by its path.

    Args:
        path (str): Path of a config.
        folder (str): Where such configs lie.

    Returns:
        str, optional: Its name relative to the folder, or None if it isn't in
        there.
    """
    name = osp.relpath(osp.realpath(path), osp.realpath(folder))
    if name.split(osp.sep)[0] == osp.pardir or osp.isabs(name):
        return None
    return name.replace(osp.sep, '/')


def resolve_config(path: str) -> str:
    """Find a config that is named by its package, such as ``mmseg::...``, on
    both stacks.

    MMEngine's own functions for this look for a distribution that is called
    as OpenMMLab's, such as mmsegmentation. Where the stack is OneDL's, those
    in ``mmengine.hub`` install it over the fork.

    Args:
        path (str): Path of a config, or one of :data:`PACKAGES`, ``::`` and
            the name of one of its configs, with or without ``.py``.

    Returns:
        str: Its path. Other paths are returned as they are.

    Raises:
        FileNotFoundError: If there is no config of this name.
        ModuleNotFoundError: If the package isn't installed.
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


def find_config(path: str) -> str:
    """Find a config that a user names, see :func:`resolve_config`.

    Args:
        path (str): Its path, or its name.

    Returns:
        str: Its path.

    Raises:
        ValueError: If this is no config.
        FileNotFoundError: If it isn't there.
    """
    path = resolve_config(path)
    if not path.endswith(('.py', '.yaml', '.yml', '.json')):
        raise ValueError(f'{path} is no config, whose name ends with .py: '
                         'give CONFIG first, and then all others.')
    if not osp.isfile(path):
        raise FileNotFoundError(
            f'There is no config {path}; a relative path counts from the '
            f'current folder, which is {os.getcwd()}.')
    return path
