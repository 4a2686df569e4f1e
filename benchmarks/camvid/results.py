# Copyright (c) mmib contributors. All rights reserved.
"""The results of a comparison: a file with a JSON line for each cell."""
import json
import os
import os.path as osp
from typing import List, Union


def read_results(path: str) -> List[dict]:
    """Read the cells that are finished.

    Args:
        path (str): File of JSON lines.

    Returns:
        list[dict]: The cells. A last line that a kill cut off is no cell.

    Raises:
        ValueError: If another line is broken.
    """
    with open(path, encoding='utf-8') as file:
        *lines, last = file.read().split('\n')
    if _is_json(last):
        lines.append(last)
    cells = []
    for number, line in enumerate(lines, 1):
        try:
            cells.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f'Line {number} of {path} is no JSON, {error}: '
                             'remove it.') from error
    return cells


def _is_json(text: Union[str, bytes]) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def begin_results(path: str) -> None:
    """Make the file, or cut off a last line that a kill cut off already.

    Args:
        path (str): File of JSON lines.
    """
    os.makedirs(osp.dirname(osp.abspath(path)), exist_ok=True)
    with open(path, 'ab+') as file:
        file.seek(0)
        text = file.read()
        end = text.rfind(b'\n') + 1
        if _is_json(text[end:]):
            file.write(b'\n')
        else:
            file.truncate(end)


def append_result(path: str, cell: dict) -> None:
    """Add a line, in one write: other runs may add to the same file.

    Args:
        path (str): File of JSON lines.
        cell (dict): Plain values.
    """
    with open(path, 'ab', buffering=0) as file:
        file.write(json.dumps(cell).encode() + b'\n')
