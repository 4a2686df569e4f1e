# Copyright (c) mmib contributors. All rights reserved.
"""The results of a comparison: a file with a JSON line for each cell."""
import json
import os
import os.path as osp
from typing import Dict, List, Sequence, Tuple

from .arms import Cell

# These differ from one run to the next.
TIMES = ('train_seconds', 'train_cpu_seconds', 'val_seconds', 'step_ms',
         'seconds')


def read_results(path: str) -> List[dict]:
    """Read the cells that are finished. A ValueError names a broken line, as
    by a full disk."""
    cells = []
    with open(path, encoding='utf-8') as file:
        for number, line in enumerate(file, 1):
            try:
                cells.append(json.loads(line))
            except ValueError as error:
                raise ValueError(
                    f'Line {number} of {path} is no JSON, {error}: '
                    'remove it.') from error
    return cells


def append_result(path: str, cell: dict) -> None:
    """Add a line, in one write: other runs may add to the same file."""
    os.makedirs(osp.dirname(osp.abspath(path)), exist_ok=True)
    with open(path, 'ab', buffering=0) as file:
        file.write(json.dumps(cell).encode() + b'\n')


def finished_lines(cells: Sequence[Cell],
                   here: dict) -> Dict[tuple, Dict[tuple, dict]]:
    """The lines of the results of some cells: by file, then by the key of the
    cell.

    Args:
        cells (Sequence[Cell]): The cells, of any files.
        here (dict): What figures depend on besides the config.

    Raises:
        ValueError: If results can't be compared with new cells, as they had
            another config, or differ in what figures depend on besides.
    """
    wanted, lines = {}, {}
    for cell in cells:
        of_file = wanted.setdefault(cell.path, {})
        of_file.setdefault(cell.arm, set()).add(cell.key[-1])
    for path, configs in wanted.items():
        found = read_results(path) if osp.exists(path) else []
        for line in found:
            arm = line['arm']
            different = {
                key: (line[key], value)
                for key, value in here.items()
                if key in line and line[key] != value
            }
            if arm in configs and line['config'] not in configs[arm]:
                different['config'] = line['config'], sorted(configs[arm])
            for key, (old, new) in different.items():
                raise ValueError(
                    f'{path} has cells of {arm} with the `{key}` {old}, which '
                    f'here is {new}, and what differs is not compared: give '
                    'another --out, or the same.')
        lines[path] = {(x['arm'], x['seed'], x['config']): x for x in found}
    return lines


def compare_lines(old: dict, new: dict) -> Tuple[bool, str]:
    """Whether two runs of a cell have the same figures, and a sentence that
    says so. Times may differ, and so may versions, devices and threads."""

    def text(value: object) -> str:
        # NaN is equal to itself, and the order of sums doesn't matter.
        return str(
            json.loads(
                json.dumps(value), parse_float=lambda x: f'{float(x):.6g}'))

    # Versions before noted more, and more of a plan.
    changed = sorted(
        key for key in (old.keys() & new.keys()) - {*TIMES, 'plans'}
        if text(old[key]) != text(new[key]))
    others = [x for x in changed if x in ('versions', 'device', 'threads')]
    figures = [key for key in changed if key not in others]
    said = f'{figures} differ' if figures else 'all figures are equal'
    if others:
        said += f' ({others} are others, with which rounding may change)'
    return not figures, said
