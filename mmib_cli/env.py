# Copyright (c) mmib contributors. All rights reserved.
"""Print versions and devices, for a bug report, also where nothing is
installed or works."""
import argparse
import io
import os.path as osp
import platform
import runpy
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Dict, Iterator, List, Tuple

# The distributions that have a module.
LIBRARIES = {
    'mmengine': ('onedl-mmengine', 'mmengine'),
    'mmcv': ('onedl-mmcv', 'mmcv', 'mmcv-lite'),
    'mmseg': ('onedl-mmsegmentation', 'mmsegmentation'),
    'mmpretrain': ('onedl-mmpretrain', 'mmpretrain'),
    'mmdet': ('onedl-mmdetection', 'mmdet')
}
MISSING = 'not installed'


def versions(*distributions: str) -> Dict[str, str]:
    """The versions of the distributions that are installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            pass
    return found


def stack(distributions: List[str]) -> str:
    """The owner of these distributions: OneDL or OpenMMLab."""
    owners = {
        'OneDL' if name.startswith('onedl-') else 'OpenMMLab'
        for name in distributions
    }
    if len(owners) > 1:
        return ('OneDL and OpenMMLab are mixed: they overwrite the files of '
                'each other')
    return owners.pop() if owners else 'none'


def attempt(name: str) -> str:
    """Import a module, and say what came of it in one line."""
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            import_module(name)
            if name == 'mmdet':
                # mmdet imports without mmcv's compiled operations, its models
                # don't.
                import_module('mmdet.models')
            if name == 'mmib':
                import_module('mmib.runner.checks').check_stack()
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return MISSING
        return ' '.join(f'{type(error).__name__}: {error}'.split())
    return 'works'


def devices() -> Iterator[Tuple[str, str]]:
    """What torch can train on."""
    try:
        import torch
        yield 'CUDA of torch', torch.version.cuda or 'none'
        names = [
            torch.cuda.get_device_name(i)
            for i in range(torch.cuda.device_count())
        ]
        yield 'devices', ', '.join(names) or 'no GPU'
    except Exception as error:
        yield 'devices', f'{type(error).__name__}: {error}'


def own() -> str:
    """Version and place of mmib, without an import of mmib."""
    place = osp.join(osp.dirname(osp.dirname(osp.abspath(__file__))), 'mmib')
    number = runpy.run_path(osp.join(place, 'version.py'))['__version__']
    return f'{number}, {place}'


def facts() -> Iterator[Tuple[str, str]]:
    """Name and value of each line."""
    yield 'mmib', own()
    yield 'Python', f'{platform.python_version()}, {sys.executable}'
    yield 'system', platform.platform()
    for name in ('numpy', 'torch'):
        yield name, versions(name).get(name, MISSING)
    yield from devices()
    installed: List[str] = []
    for module, distributions in LIBRARIES.items():
        found = versions(*distributions)
        installed += found
        yield module, ', '.join(f'{number} ({name})'
                                for name, number in found.items()) or MISSING
    yield 'stack', stack(installed)
    for name in ('mmseg', 'mmpretrain', 'mmdet', 'mmib'):
        yield f'import {name}', attempt(name)


def main(args: List[str]) -> None:
    argparse.ArgumentParser(
        prog='mmib env', description=__doc__).parse_args(args)
    warnings.simplefilter('ignore')
    for name, value in facts():
        print(f'{name:19}{value}', flush=True)
