# Copyright (c) mmib contributors. All rights reserved.
"""The results of a comparison: a file with a JSON line for each cell."""
import json
import os
import os.path as osp
from typing import Dict, Iterable, List, Sequence, Tuple

from .arms import Cell


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


def missing(path: str, arms: Iterable[str],
            seeds: Iterable[int]) -> List[Tuple[str, int]]:
    """Arms with their seeds that have no line yet, one seed of all first."""
    rows = read_results(path) if osp.exists(path) else []
    done = {(row['arm'], row['seed']) for row in rows}
    return [(arm, seed) for seed in seeds for arm in arms
            if (arm, seed) not in done]


def append_result(path: str, cell: dict) -> None:
    """Add a line, in one write: other runs may add to the same file."""
    os.makedirs(osp.dirname(osp.abspath(path)), exist_ok=True)
    with open(path, 'ab', buffering=0) as file:
        file.write(json.dumps(cell).encode() + b'\n')


def finished_lines(cells: Sequence[Cell],
                   here: dict) -> Dict[tuple, Dict[tuple, dict]]:
    """The lines of the results of some cells: by file, then by the key of the
    cell. ``here`` is what figures depend on besides the config. A ValueError
    names results that can't be compared with new cells."""
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
