# Copyright (c) mmib contributors. All rights reserved.
"""Convert a config of stock training to InfoBatch, with a shorter schedule.

It writes a short config that inherits CONFIG, and prints what changes. The
file trains with MMSegmentation's own tools/train.py, from any folder.
"""
import argparse
import os.path as osp
import sys
import tempfile
from typing import List, Tuple

from mmengine.config import Config
from mmengine.utils import mkdir_or_exist
from yapf.yapflib.yapf_api import FormatCode

from mmib import convert
from mmib.schedule import changes, child, converted_name
from mmib.zoo import allow_scoped_bases, resolve_config, zoo_name

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
