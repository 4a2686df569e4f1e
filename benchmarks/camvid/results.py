# Copyright (c) mmib contributors. All rights reserved.
"""The results of a comparison: a file with a JSON line for each cell."""
import json
from typing import List


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
    with open(path, 'ab', buffering=0) as file:
        file.write(json.dumps(cell).encode() + b'\n')
