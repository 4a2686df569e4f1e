# Copyright (c) mmib contributors. All rights reserved.
"""Convert a config of the baseline to InfoBatch, with a shorter schedule.

It writes a short config that inherits CONFIG, and prints what changes. The
file trains with MMSegmentation's own tools/train.py, from any folder.
"""
import argparse
import os.path as osp
import re
import sys
import tempfile
from typing import Any, Iterator, List, Tuple

from mmengine.config import Config
from mmengine.utils import mkdir_or_exist
from yapf.yapflib.yapf_api import FormatCode

from mmib import convert
from mmib.compat import allow_scoped_bases
from mmib.tasks.segmentation.zoo import resolve_config, zoo_name

ABSENT = '-'
"""str: What :func:`changes` says of a field that a config doesn't have."""
_SCHEDULE_IN_NAME = re.compile(r'(?<=[-_])(\d+)k(?=[-_]|$)')
# The style of MMEngine's `Config.pretty_text`.
STYLE = dict(
    based_on_style='pep8',
    blank_line_before_nested_class_or_def=True,
    split_before_expression_after_opening_paren=True)


def load(path: str) -> Config:
    """Load a config that a text config can inherit.

    Args:
        path (str): Path of the config.

    Returns:
        Config: The config.

    Raises:
        ValueError: If it is a lazy config.
    """
    # MMEngine has no public name for this, and fails later and obscurely.
    if Config._is_lazy_import(path):
        raise ValueError(
            f'{path} is a lazy config (`read_base`), which no text config can '
            'inherit: convert it when it is trained, with `python '
            f'tools/train.py {path} --infobatch`.')
    return Config.fromfile(path)


def base_expression(path: str, folder: str) -> str:
    """Name the base of a config in a way that works on other machines too.

    Args:
        path (str): Path of the base.
        folder (str): Folder of the config that inherits it.

    Returns:
        str: Python expression for ``_base_``.
    """
    name = zoo_name(path)
    if name is not None:
        return f"__import__('mmseg').__path__[0] + '/.mim/configs/{name}'"
    path = osp.relpath(osp.realpath(path), osp.realpath(folder))
    return repr(path.replace(osp.sep, '/'))


def write_child(path: str, before: Config, after: Config, out: str) -> None:
    """Write a converted config as a child of the original one.

    Args:
        path (str): Path of the original config.
        before (Config): The original config.
        after (Config): The converted config.
        out (str): Path of the file to write.

    Raises:
        RuntimeError: If it wouldn't load as ``after``. Nothing is written.
    """
    share = 100 * after.train_cfg.max_iters / before.train_cfg.max_iters
    folder = osp.dirname(osp.abspath(out))
    text = (f'# InfoBatch: {share:.3g} % of the iterations of '
            f'{osp.basename(path)}.\n'
            f'_base_ = {base_expression(path, folder)}\n'
            f'{Config(child(before, after)).pretty_text}')
    text = FormatCode(text, style_config=STYLE)[0]
    # Tried beside OUT, from where the path of its base is the same.
    with tempfile.NamedTemporaryFile(
            'w', suffix='.py', dir=folder, encoding='utf-8') as file:
        file.write(text)
        file.flush()
        try:
            differences = changes(after, Config.fromfile(file.name))
        except Exception as error:
            differences = [(type(error).__name__, error)]
    if differences:
        raise RuntimeError(
            f'{path} cannot be converted to a file, because this does not '
            f'load as it was written:\n{table(differences)}\nConvert it when '
            f'it is trained, with `python tools/train.py {path} --infobatch`.')
    with open(out, 'w', encoding='utf-8') as file:
        file.write(text)


def changes(before: Config, after: Config) -> List[Tuple[str, Any, Any]]:
    """List what differs between two configs.

    Args:
        before (Config): A config.
        after (Config): Another one.

    Returns:
        list[tuple[str, Any, Any]]: Dotted name of each field that differs,
        and its value in both, :data:`ABSENT` where there is none.
    """
    old, new = dict(_fields(before.to_dict())), dict(_fields(after.to_dict()))
    rows = [(name, old.get(name, ABSENT), new.get(name, ABSENT))
            for name in dict.fromkeys([*old, *new])]
    return [row for row in rows if row[1] != row[2]]


def child(before: Config, after: Config) -> dict:
    """Reduce a config to what it has to say if it inherits another one.

    Args:
        before (Config): The base config.
        after (Config): The config that inherits it. It has all its top-level
            keys.

    Returns:
        dict: The smallest nested dict that turns one into the other. Lists
        are whole, as MMEngine replaces them, and dicts that lose a key have
        ``_delete_=True``.
    """
    return _difference(before.to_dict(), after.to_dict())


def converted_name(path: str, before: Config, after: Config) -> str:
    """Name a converted config in the way of MMSegmentation.

    Args:
        path (str): Path of the original config.
        before (Config): The original config.
        after (Config): The converted config.

    Returns:
        str: A name without extension, such as
        ``upernet_r50_4xb4-48k-infobatch_ade20k-512x512``. Where the original
        name has no iterations, they are appended.
    """
    name = osp.splitext(osp.basename(path))[0]
    old, new = before.train_cfg.max_iters, after.train_cfg.max_iters

    def infobatch(iters: int) -> str:
        return (f'{iters // 1000}k' if iters %
                1000 == 0 else str(iters)) + '-infobatch'

    # The number in the name is scaled, also where the schedule has another
    # one (gradient accumulation, or the name of another batch size): so names
    # that differ stay different.
    converted, found = _SCHEDULE_IN_NAME.subn(
        lambda match: infobatch(round(int(match[1]) * 1000 * new / old)),
        name,
        count=1)
    return converted if found else f'{name}-{infobatch(new)}'


def table(rows: List[Tuple]) -> str:
    """Lay out rows in columns.

    Args:
        rows (list[tuple]): Rows of equal length.

    Returns:
        str: The lines of the table.
    """
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return '\n'.join('  '.join(
        cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
                     for row in rows)


def _fields(node: Any, name: str = '') -> Iterator[Tuple[str, Any]]:
    """Dotted names and values of all that isn't a filled dict or list."""
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


def _difference(before: dict, after: dict) -> dict:
    difference = {}
    for key, value in after.items():
        if key not in before:
            difference[key] = value
        elif before[key] == value and type(before[key]) is type(value):
            continue
        elif not isinstance(value, dict):
            difference[key] = value
        elif isinstance(before[key],
                        dict) and before[key].keys() <= value.keys():
            difference[key] = _difference(before[key], value)
        else:
            difference[key] = dict(value, _delete_=True)
    return difference


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'config', help='path of the config, or mmseg::upernet/NAME')
    parser.add_argument(
        'out', help='.py file to write, or a folder, which names the file')
    parser.add_argument(
        '--ratio',
        type=float,
        default=0.6,
        help='share of the iterations to run (default: %(default)s)')
    parser.add_argument(
        '--delta',
        type=float,
        default=0.85,
        help='fraction of these that prune (default: %(default)s)')
    parser.add_argument(
        '--policy',
        metavar='TYPE',
        default='Budget',
        help='type of the pruning policy (default: %(default)s, which covers '
        'all passes of the original schedule)')
    return parser.parse_args()


def main():
    args = parse_args()
    allow_scoped_bases()
    policy = None if args.policy == 'Budget' else dict(type=args.policy)
    try:
        path = resolve_config(args.config)
        before = load(path)
        after = convert(before, args.ratio, args.delta, policy)
        out = args.out
        if not out.endswith('.py'):
            out = osp.join(out, converted_name(path, before, after) + '.py')
        if osp.exists(out):
            raise ValueError(f'{out} exists: remove it, or give another OUT.')
        mkdir_or_exist(osp.dirname(osp.abspath(out)))
        write_child(path, before, after, out)
    except KeyError as error:
        # Its text would be quoted.
        sys.exit(f'Error: {error.args[0]}')
    except (FileNotFoundError, RuntimeError, SyntaxError, ValueError) as error:
        sys.exit(f'Error: {error}')
    print(table([('field', 'before', 'after'), *changes(before, after)]))
    print(f'\nWritten to {out}')


if __name__ == '__main__':
    main()
