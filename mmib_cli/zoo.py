# Copyright (c) mmib contributors. All rights reserved.
"""Where the configs of the libraries and of mmib are, on both stacks."""
import difflib
import glob
import os.path as osp
from importlib.util import find_spec
from typing import Iterator, List, Optional, Tuple

from mmengine.config import Config

from mmib.errors import Refusal

from .early import LIBRARIES

# Packages whose configs have names, such as mmseg::upernet/...
PACKAGES = (*LIBRARIES, 'mmib')


def mim_folder(package: str) -> str:
    """Return the folder of the configs and tools in an installed package. A
    source checkout has no such folder."""
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        name, packages = LIBRARIES[package]
        raise Refusal(
            f'This needs {name}, and `{package}` is missing: run `pip install '
            f'{packages}`.')
    return osp.join(spec.submodule_search_locations[0], '.mim')


def installed_configs(package: str) -> str:
    """Return the folder of the configs in an installed package."""
    return osp.join(mim_folder(package), 'configs')


def shipped_folder(package: str, name: str) -> str:
    """Return the folder ``'configs'`` or ``'tools'`` of a package."""
    folder = osp.join(mim_folder(package), name)
    if not osp.isdir(folder):
        # In a source checkout the folder lies beside the package.
        folder = osp.normpath(osp.join(folder, '..', '..', '..', name))
    return folder


def zoo_names(folder: str) -> List[str]:
    """Return the sorted names of the configs in a folder that can be trained,
    such as ``'upernet/upernet_r50_4xb4-80k_ade20k-512x512.py'``."""
    paths = glob.glob(osp.join(folder, '**', '*.py'), recursive=True)
    names = [osp.relpath(path, folder) for path in paths]
    return sorted(
        name.replace(osp.sep, '/') for name in names
        if '_base_' not in name.split(osp.sep))


def resolve_config(path: str) -> str:
    """Find a config that is named by its package, such as
    ``mmseg::upernet/...``, with or without ``.py``, on both stacks. A path is
    returned as it is.

    MMEngine's own functions look for a distribution of OpenMMLab, such as
    mmsegmentation. On OneDL's stack the functions in ``mmengine.hub`` install
    this distribution over the fork.
    """
    package, scope, name = path.partition('::')
    if not scope or package not in PACKAGES:
        return path
    folder = shipped_folder(package, 'configs')
    if not name.endswith('.py'):
        name += '.py'
    found = osp.join(folder, *name.split('/'))
    if osp.isfile(found):
        return found
    names = zoo_names(folder)
    # A name without its folder is a common mistake.
    close = [n for n in names if osp.basename(n) == osp.basename(name)]
    close = close or difflib.get_close_matches(name, names)
    hint = ''.join(f'\n  {package}::{match}' for match in close)
    raise Refusal(f'{package} has no config `{path}`' +
                  (f'. Close matches:{hint}' if close else f': see {folder}'))


def allow_scoped_bases() -> None:
    """Let configs inherit by ``_base_ = 'mmseg::...'``, ``'mmpretrain::...'``,
    ``'mmdet::...'`` and ``'mmib::...'``.

    MMEngine knows its own libraries alone, by the names of distributions such
    as mmsegmentation, which OneDL's stack doesn't have. Call the function
    before the config is read: ``custom_imports`` are too late. The function
    can go when MMEngine finds configs by the name of a module.
    """
    Config._get_cfg_path = staticmethod(_find_base)


find_base_of_mmengine = Config._get_cfg_path


def _find_base(path: str, filename: str) -> Tuple[str, Optional[str]]:
    """Return the path of a base config, and the scope of its parts."""
    package, scoped, _ = path.partition('::')
    if scoped:
        found = resolve_config(path)
        if found != path:
            # mmib has no models of its own: no scope.
            return found, None if package == 'mmib' else package
    return find_base_of_mmengine(path, filename)


def bases_of(path: str) -> Iterator[Tuple[str, str]]:
    """Yield the bases of a config, and theirs: each name, and its path.

    MMEngine has no public function that lists the bases of a file.
    """
    for name in Config._get_base_files(path):
        base, _ = _find_base(name, path)
        yield name, base
        if osp.isfile(base):
            yield from bases_of(base)
