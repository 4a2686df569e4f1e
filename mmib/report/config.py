# Copyright (c) mmib contributors. All rights reserved.
"""A config as data, without running it.

MMEngine runs a config as Python, and builds whatever its ``type`` fields name,
any function of any module too. A work folder may come from somebody else, so a
report does neither.
"""
import ast
import math
import os.path as osp
import re
from importlib import import_module
from typing import Any, Iterator, List, Set

from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import Registry

_NUMBERS = {'inf': math.inf, 'nan': math.nan}
# What a config that isn't trusted may name: folders, files of these kinds, and
# steps of a pipeline. Others may hold code, as YAML and pickles do.
_FOLDERS = ('data_root', 'img_path', 'seg_map_path')
_PLAIN_FILES = ('', '.txt', '.lst', '.list', '.json', '.csv', '.png', '.jpg',
                '.jpeg', '.bmp', '.tif', '.tiff', '.webp', '.gif')
_STEPS = ('LoadImageFromFile', 'LoadImageFromNDArray', 'LoadAnnotations',
          'Resize', 'ResizeToMultiple', 'ResizeShortestEdge', 'RandomFlip',
          'Normalize', 'Pad', 'CLAHE', 'RGB2Gray', 'Rerange', 'AdjustGamma',
          'PackSegInputs', 'ResizeEdge', 'CenterCrop', 'PackInputs')
# Where MMPretrain has what reads no more than lists of files and images.
# Others may unpickle, or fetch what they name.
_OF_MMPRETRAIN = re.compile(
    r'mmpretrain\.(datasets\.(base_dataset|custom|dataset_wrappers|imagenet|'
    r'multi_label|transforms\..*)|models\.(classifiers\.image|heads\..*|'
    r'backbones\.(?!timm).*|losses\..*|necks\..*|'
    r'utils\.(batch_augments|data_preprocessor).*))')
_TRUST = 'If you trust this folder, give `--trust`'


class ConfigError(ValueError):
    """What stands in the way of using a config."""


def read_config(path: str) -> dict:
    """Read what MMEngine has dumped.

    Args:
        path (str): A file of assignments of plain values: literals, calls of
            ``dict``, lists and tuples.

    Returns:
        dict: The value of each name.

    Raises:
        ConfigError: If the file has anything else.
        OSError: If it can't be opened.
    """
    with open(path, encoding='utf-8', errors='replace') as file:
        text = file.read()
    try:
        body = ast.parse(text).body
        config = {}
        for node in body:
            if not isinstance(node, ast.Assign) or len(
                    node.targets) != 1 or not isinstance(
                        node.targets[0], ast.Name):
                raise ConfigError(f'line {node.lineno} of {path} is no plain '
                                  'assignment, and a report runs no config')
            config[node.targets[0].id] = _value(node.value, path)
    except (SyntaxError, ValueError, TypeError, RecursionError,
            MemoryError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f'{path} can\'t be read as Python') from error
    return config


def _value(node: ast.expr, path: str) -> Any:
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        values = [_value(element, path) for element in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {
            _value(key, path): _value(value, path)
            for key, value in zip(node.keys, node.values)
        }
    if isinstance(node, ast.Call) and getattr(
            node.func, 'id', '') == 'dict' and len(node.args) <= 1:
        value: dict = {}
        for argument in node.args:
            value.update(_value(argument, path))
        for keyword in node.keywords:
            if keyword.arg is None:
                raise ConfigError(f'line {node.lineno} of {path} has `**`')
            value[keyword.arg] = _value(keyword.value, path)
        return value
    if isinstance(node, ast.Name) and node.id in _NUMBERS:
        return _NUMBERS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(
            node.op, ast.USub) and isinstance(node.operand, ast.Name):
        return -_value(node.operand, path)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ConfigError(f'line {node.lineno} of {path} is no plain value, '
                          'and a report runs no config') from error


def scope_of(config: dict) -> str:
    """Name of the library that a config is for."""
    return config.get('default_scope') or 'mmseg'


def buildable(config: dict, part: Any, trust: bool) -> Any:
    """A part of a config that may be built.

    Args:
        config (dict): The whole one, as :func:`read_config` has read it.
        part (dict or list): What to build of it.
        trust (bool): Whether its types may be anything that MMEngine finds.

    Returns:
        ConfigDict or list: A copy without pretrained weights, which a
        checkpoint replaces.

    Raises:
        ConfigError: If it isn't trusted and has a type that the installed
            libraries don't have, or names what may hold code.
    """
    if part is None:
        raise ConfigError('the config has none')
    copy = Config(dict(part=part)).part
    for child in _dicts_in(copy):
        for name in ('pretrained', 'init_cfg'):
            if child.get(name) is not None:
                child[name] = None
    if not trust:
        _check(copy, scope_of(config))
        if isinstance(copy, list):
            _check_steps(copy)
    return copy


def _check(part: Any, scope: str) -> None:
    known = _known_names(scope)
    for child in _dicts_in(part):
        kind = child.get('type')
        if kind is not None and kind not in known or child.get(
                '_scope_', scope) != scope:
            raise ConfigError(
                f'`{kind}` of the config isn\'t part of the installed '
                f'libraries, or may read more than images. {_TRUST}: then the '
                '`custom_imports` of its config are imported')
        for name, value in child.items():
            values = value if isinstance(value, (list, tuple)) else [value]
            for text in values:
                if isinstance(text, str) and name not in ('type', 'classes'):
                    _check_text(name, text)
            # Classes may also be the name of a file.
            if name == 'classes' and isinstance(value, str):
                _check_text(name, value)
        for name in ('backend_args', 'file_client_args'):
            if child.get(name) not in (None, dict(backend='local')):
                raise ConfigError(f'`{name}` of the config reads from '
                                  f'elsewhere. {_TRUST}')


def _check_text(name: str, text: str) -> None:
    if '://' in text or text.startswith(('s3:', 'pavi:')):
        raise ConfigError(f'`{name}` of the config reads from elsewhere. '
                          f'{_TRUST}')
    end = osp.splitext(text)[1].lower()
    # MMEngine looks at the end of a name, and at the content of some files
    # without one.
    if name not in _FOLDERS and (end not in _PLAIN_FILES or
                                 (not end and osp.isfile(text))):
        raise ConfigError(f'`{name}` of the config names a file that may hold '
                          f'code. {_TRUST}')


def _check_steps(steps: list) -> None:
    for step in steps:
        kind = step.get('type') if isinstance(step, dict) else step
        if kind not in _STEPS:
            raise ConfigError(f'the step `{kind}` of the pipeline may read '
                              f'anything. {_TRUST}')


def _known_names(scope: str) -> Set[str]:
    """Names that are in the registries of a library and of MMEngine."""
    if scope not in MODULE2PACKAGE:
        raise ConfigError(
            f'`{scope}` of the config is no library of OpenMMLab. {_TRUST}')
    try:
        # It registers mmcv's parts too.
        import_module(f'{scope}.utils').register_all_modules(False)
        libraries = {
            library: import_module(f'{library}.registry')
            for library in ('mmengine', scope)
        }
    except ImportError as error:
        raise ConfigError(f'{scope} isn\'t installed') from error
    names: Set[str] = set()
    for library, module in libraries.items():
        for registry in vars(module).values():
            if isinstance(registry, Registry):
                for name, part in registry.module_dict.items():
                    if library != 'mmpretrain' or _OF_MMPRETRAIN.fullmatch(
                            getattr(part, '__module__', '')):
                        names.update((name, f'{library}.{name}'))
    return names


def _dicts_in(config: Any) -> Iterator[dict]:
    """All dicts in a config."""
    if isinstance(config, dict):
        yield config
        config = list(config.values())
    if isinstance(config, (list, tuple)):
        for value in config:
            yield from _dicts_in(value)


def imports_of(config: dict) -> List[str]:
    """The modules that a config imports beside mmib."""
    imports = config.get('custom_imports') or {}
    names = imports.get('imports', []) if isinstance(imports, dict) else []
    names = [names] if isinstance(names, str) else names
    return [name for name in names if name != 'mmib']
