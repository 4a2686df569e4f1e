# Copyright (c) mmib contributors. All rights reserved.
"""Convert a config of the baseline to InfoBatch, with a shorter schedule.

It writes a short config that inherits CONFIG, and prints what changes. The
file trains with MMSegmentation's own tools/train.py, from any folder.
"""
import argparse
import os
import os.path as osp
import re
import sys
import tempfile
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Tuple

from mmengine.config import Config
from mmengine.utils import mkdir_or_exist
from yapf.yapflib.yapf_api import FormatCode

from mmib import convert
from mmib.checks import check_stack, refusal
from mmib.compat import allow_scoped_bases, without_scoped_bases
from mmib.convert import default_ratio
from mmib.tasks.segmentation.zoo import resolve_config, zoo_name

ABSENT = '-'
"""str: What :func:`changes` says of a field that a config doesn't have."""
_SCHEDULE_IN_NAME = re.compile(r'(?<=[-_])(\d+)k(?=[-_]|$)')
# The style of MMEngine's `Config.pretty_text`.
STYLE = dict(
    based_on_style='pep8',
    blank_line_before_nested_class_or_def=True,
    split_before_expression_after_opening_paren=True)


@contextmanager
def one_line_refusals() -> Iterator[None]:
    """End the process with a sentence where mmib refuses something."""
    try:
        yield
    except Exception as error:
        text = refusal(error, __file__)
        if text is None:
            raise
        sys.exit(f'Error: {text}')


def conversion(policy: Optional[str], ratio: Optional[float],
               delta: Optional[float]) -> dict:
    """Arguments of ``mmib.convert`` from those of a command.

    Args:
        policy (str, optional): Type of the policy. If None, it is Budget.
        ratio (float, optional): Share of the iterations. If None, it is that
            of the policy.
        delta (float, optional): Fraction that prunes. If None, it is that of
            ``mmib.convert``.

    Returns:
        dict: The arguments.
    """
    arguments = dict(
        ratio=default_ratio(policy) if ratio is None else ratio,
        # It is given the length of the baseline.
        policy=None if policy in (None, 'Budget') else dict(type=policy))
    return arguments if delta is None else dict(arguments, delta=delta)


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
    path = osp.abspath(path)
    # MMEngine takes ".." as a change of the text of a path.
    relative = osp.relpath(path, folder)
    if relative != osp.relpath(osp.realpath(path), osp.realpath(folder)):
        # Where one is behind a link, it would be right from one side alone.
        relative = path
    return repr(relative.replace(osp.sep, '/'))


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
    head = (f'# InfoBatch: {share:.3g} % of the iterations of '
            f'{osp.basename(path)}')
    texts = [
        f'{head}.\n_base_ = {base_expression(path, folder)}\n'
        f'{Config(child(before, after)).pretty_text}',
        # On OneDL's stack, where a base has "mmseg::", MMSegmentation's own
        # script would ask for OpenMMLab's.
        f'{head}, in\n# full, as its bases are not found everywhere.\n'
        f'{after.pretty_text}'
    ]
    for text in texts:
        text = FormatCode(text, style_config=STYLE)[0]
        differences = differences_when_loaded(text, after, folder)
        if not differences:
            with open(out, 'w', encoding='utf-8') as file:
                file.write(text)
            return
    raise RuntimeError(
        f'{path} cannot be converted to a file, because this does not '
        f'load as it was written:\n{table(differences)}\nConvert it when '
        f'it is trained, with `python tools/train.py {path} --infobatch`.')


def differences_when_loaded(text: str, cfg: Config,
                            folder: str) -> List[Tuple]:
    """Load a config as MMSegmentation's own script would.

    Args:
        text (str): The config.
        cfg (Config): What it should be.
        folder (str): Folder from which the paths of its bases are right.

    Returns:
        list[tuple]: What differs, or the error.
    """
    # Closed before it is read, as Windows wants it.
    descriptor, path = tempfile.mkstemp(suffix='.py', dir=folder)
    try:
        with open(descriptor, 'w', encoding='utf-8') as file:
            file.write(text)
        with without_scoped_bases():
            return changes(cfg, Config.fromfile(path))
    except Exception as error:
        return [(type(error).__name__, error)]
    finally:
        os.remove(path)


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
        ``upernet_r50_4xb4-48k-infobatch_ade20k-512x512``, or without
        "-infobatch" where it is only shorter. Where the original name has no
        iterations, they are appended.
    """
    name = osp.splitext(osp.basename(path))[0]
    old, new = before.train_cfg.max_iters, after.train_cfg.max_iters

    suffix = '-infobatch' * ('InfoBatchHook' in str(after.get('custom_hooks')))

    def schedule(iters: int) -> str:
        iters = f'{iters // 1000}k' if iters % 1000 == 0 else str(iters)
        return iters + suffix

    # The number in the name is scaled, also where the schedule has another
    # one (gradient accumulation, or the name of another batch size): so names
    # that differ stay different.
    converted, found = _SCHEDULE_IN_NAME.subn(
        lambda match: schedule(round(int(match[1]) * 1000 * new / old)),
        name,
        count=1)
    return converted if found else f'{name}-{schedule(new)}'


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
        help='share of the iterations to run (default: 0.6; 0.8 for '
        'MeanThreshold, as in the paper, and AboveMean)')
    parser.add_argument(
        '--delta',
        type=float,
        help='fraction of these that prune (default: 0.85)')
    parser.add_argument(
        '--policy',
        metavar='TYPE',
        default='Budget',
        help='type of the pruning policy (default: %(default)s, which covers '
        'all passes of the original schedule)')
    return parser.parse_args()


def main():
    args = parse_args()
    check_stack()
    allow_scoped_bases()
    path = resolve_config(args.config)
    before = load(path)
    after = convert(before, **conversion(args.policy, args.ratio, args.delta))
    out = args.out
    if not out.endswith('.py'):
        out = osp.join(out, converted_name(path, before, after) + '.py')
    if osp.exists(out):
        sys.exit(f'Error: {out} exists: remove it, or give another OUT.')
    mkdir_or_exist(osp.dirname(osp.abspath(out)))
    write_child(path, before, after, out)
    print(table([('field', 'before', 'after'), *changes(before, after)]))
    print(f'\nWritten to {out}')


if __name__ == '__main__':
    with one_line_refusals():
        main()
