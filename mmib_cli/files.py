# Copyright (c) mmib contributors. All rights reserved.
"""Converted configs: how they are written, named and compared."""
import os.path as osp
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Iterator, List, Optional, Tuple

from mmengine.config import Config
from mmengine.registry import HOOKS

from mmib.errors import Refusal
from mmib.openmmlab.config.parts import check_parts, infobatch_hooks, length_of

from .early import no_config
from .zoo import (PACKAGES, allow_scoped_bases, bases_of,
                  find_base_of_mmengine, installed_configs, resolve_config)

# What `changes` says of a field that a config doesn't have.
ABSENT = '-'
_LENGTH_IN_NAME = dict(
    iteration=re.compile(r'(?<=[-_])(\d+)k(?=[-_]|$)'),
    epoch=re.compile(r'(?<=[-_])(\d+)e(?=[-_]|$)'))
_BATCH_SIZE_IN_NAME = re.compile(r'_\d+xb\d+[^_]*')


def find_config(path: str) -> str:
    """Return the path of a config, given its path or name
    (:func:`resolve_config`). Refuse a config if a file of it is missing."""
    allow_scoped_bases()
    package, scoped, _ = path.partition('::')
    if scoped and package not in PACKAGES:
        raise Refusal(
            f'`{package}::` is not a library: give one of '
            f'{", ".join(f"{name}::" for name in PACKAGES)}, or a path.')
    path = resolve_config(path)
    text = no_config(path)
    if text:
        raise Refusal(text)
    for name, base in bases_of(path):
        # MMEngine fills in names such as {{ fileDirname }} later.
        if '{{' not in name and not osp.isfile(base):
            raise Refusal(f'{path} inherits {name!r}, and there is no file '
                          f'{osp.abspath(base)}: correct `_base_`.')
    return path


def check_checkpoint(path: Optional[str], named: str) -> None:
    """Refuse a missing file of weights.

    Args:
        path (str, optional): The file, or an address, which isn't checked.
        named (str): Where the user named it.
    """
    if path and ':' not in path and not osp.isfile(path):
        raise Refusal(f'There is no checkpoint {path}: correct {named}.')


def read(path: str) -> Config:
    """Read a config, and refuse parts that MMEngine can't take."""
    check_parts(Config.fromfile(path, import_custom_modules=False))
    return Config.fromfile(path)


def base_expression(path: str, folder: str) -> str:
    """Return the ``_base_`` for a config in a folder. It works on other
    machines too."""
    real = Path(path).resolve()
    for package in filter(find_spec, PACKAGES):
        configs = Path(installed_configs(package)).resolve()
        if configs in real.parents:
            name = real.relative_to(configs).as_posix()
            return (f"(\n    __import__('{package}').__path__[0] +\n"
                    f"    '/.mim/configs/{name}')")
    path = osp.abspath(path)
    # MMEngine reads ".." as text. Behind a link a relative path would be right
    # from one side alone.
    relative = osp.relpath(path, folder)
    if relative != osp.relpath(real, osp.realpath(folder)):
        relative = path
    return repr(relative.replace(osp.sep, '/'))


def needs_mmib(path: str) -> bool:
    """Return whether a config inherits another config, maybe indirectly, by a
    name such as ``mmseg::...`` that MMEngine alone doesn't find."""
    return any('::' in name and not _found_by_mmengine(name)
               for name, _ in bases_of(path))


def _found_by_mmengine(name: str) -> bool:
    try:
        return osp.isfile(find_base_of_mmengine(name, '')[0])
    # The type of the error depends on what is missing.
    except Exception:
        return False


def write_child(path: str, before: Config, after: Config, out: str) -> None:
    """Write a changed config as a child of the original config at ``path``, or
    in full if a child wouldn't load.

    The library's own script finds a base ``mmib::`` nowhere, and ``mmseg::``
    on OpenMMLab's stack alone. So on OneDL's stack a config with such a base
    is written in full. No text config inherits a lazy one.
    """
    (unit, old), (_, new) = length_of(before), length_of(after)
    share = f'{100 * new / old:.3g} % of the {unit}s'
    if unit == 'epoch' and infobatch_hooks(after):
        share = f'the {old} epochs, each shorter,'
    kind = 'InfoBatch' if infobatch_hooks(after) else 'Without pruning'
    head = f'# {kind}: {share} of {osp.basename(path)}'
    # MMEngine has no public name for the test of lazy configs.
    if Config._is_lazy_import(path) or needs_mmib(path):
        head += ', in\n# full, as it can\'t be inherited everywhere.\n'
        text = after.pretty_text
    else:
        base = base_expression(path, osp.dirname(osp.abspath(out)))
        head += f'.\n_base_ = {base}\n'
        difference = child(before.to_dict(), after.to_dict())
        text = Config(difference).pretty_text
    with open(out, 'w', encoding='utf-8') as file:
        file.write(head + loadable(text))


def loadable(text: str) -> str:
    """Return the ``pretty_text`` of a config in a form that can be loaded.
    MMEngine writes infinite numbers as ``inf``, which it can't read."""
    if re.search(r'\b(inf|nan)\b', text) is None:
        return text
    return f'from math import inf, nan\n{text}\ndel inf, nan\n'


def changes(before: Config, after: Config) -> List[Tuple[str, Any, Any]]:
    """Return the dotted name of each field that differs between two configs,
    and its value in both, or :data:`ABSENT`."""
    old, new = dict(_fields(before.to_dict())), dict(_fields(after.to_dict()))
    rows = [(name, old.get(name, ABSENT), new.get(name, ABSENT))
            for name in dict.fromkeys([*old, *new])]
    return [row for row in rows if row[1] != row[2]]


def child(before: dict, after: dict) -> dict:
    """Return the smallest nested dict with which a child changes a config.
    Lists are whole, because MMEngine replaces lists, and dicts that lose a key
    have ``_delete_=True``."""
    difference = {}
    for key, value in after.items():
        old = before.get(key)
        if key in before and old == value and type(old) is type(value):
            continue
        if key in before and isinstance(value, dict):
            if isinstance(old, dict) and old.keys() <= value.keys():
                value = child(old, value)
            else:
                value = dict(value, _delete_=True)
        difference[key] = value
    return difference


def converted_name(path: str, before: Config, after: Config) -> str:
    """Return the name of a converted config in the style of the libraries,
    such as ``upernet_r50_4xb4-48k-infobatch_ade20k-512x512``. A config that is
    only shorter lacks "-infobatch", and one that only scores has "-score".

    If the name of the original config has no length, a length that changes is
    appended; by epochs, after the batch size in the name.
    """
    name = osp.splitext(osp.basename(path))[0]
    (unit, old), (_, new) = length_of(before), length_of(after)
    hooks = infobatch_hooks(after)
    suffix = ''
    if hooks:
        prunes = HOOKS.build(hooks[0]).policy.prunes
        suffix = '-infobatch' if prunes else '-score'
    if new == old and not suffix:
        return name

    def length(number: int) -> str:
        if unit == 'epoch':
            return f'{number}e'
        return f'{number // 1000}k' if number % 1000 == 0 else str(number)

    def scaled(match: re.Match) -> str:
        # The number in the name is scaled, also where the schedule has another
        # number, as with gradient accumulation: names that differ stay
        # different.
        factor = 1000 if unit == 'iteration' else 1
        return length(round(int(match[1]) * factor * new / old)) + suffix

    converted, found = _LENGTH_IN_NAME[unit].subn(scaled, name, count=1)
    if found:
        return converted
    if unit == 'iteration' or new != old:
        suffix = f'-{length(new)}{suffix}'
    batch_size = _BATCH_SIZE_IN_NAME.search(name)
    end = batch_size.end() if batch_size and unit == 'epoch' else len(name)
    return name[:end] + suffix + name[end:]


def table(rows: List[Tuple]) -> str:
    """Return rows as text in aligned columns."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows)]
    line = '  '.join(f'{{!s:{width}}}' for width in widths)
    return '\n'.join(line.format(*row).rstrip() for row in rows)


def _fields(node: Any, name: str = '') -> Iterator[Tuple[str, Any]]:
    """Return dotted names and values of everything except filled dicts and
    lists."""
    if isinstance(node, dict) and node:
        items = node.items()
    elif isinstance(node, (list, tuple)) and any(
            isinstance(item, (dict, list, tuple)) for item in node):
        items = enumerate(node)
    else:
        yield name, node
        return
    for key, value in items:
        yield from _fields(value, f'{name}.{key}' if name else str(key))


def number(value: float) -> str:
    """Return a number as text, with commas if it is large."""
    return f'{value:,.0f}' if value >= 10000 else f'{value:.0f}'
