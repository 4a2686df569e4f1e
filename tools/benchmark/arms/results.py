# Copyright (c) mmib contributors. All rights reserved.
"""The results of a comparison: its file, and the figures of cells and arms."""
import fcntl
import json
import os
import os.path as osp
from contextlib import contextmanager
from typing import IO, Dict, Iterator, List, NamedTuple, Tuple, Union

import numpy as np
from mmengine.utils import mkdir_or_exist
from scipy import stats

NONE = '-'
"""str: What a table says where there is no figure."""

# The cells of each arm by their seeds.
Arms = Dict[str, Dict[int, dict]]
# What is told of each seed.
Figures = Dict[int, float]


def read_results(path: str) -> List[dict]:
    """Read the cells that are finished.

    Args:
        path (str): File of JSON lines.

    Returns:
        list[dict]: The cells. A last line that a kill cut off is left out.

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


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def lock(file: Union[int, IO], path: str) -> None:
    """Let no other run lock this until this one has closed it, and every
    process that was given it has ended.

    Args:
        file (int | IO): An open file or folder.
        path (str): Its name.

    Raises:
        RuntimeError: If another run has locked it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RuntimeError(
            f'{path} is in use by another run, or by cells that were left '
            'when one was killed: wait for their end, stop them, or give '
            'another --out and --work-dir.') from error


@contextmanager
def locked_folder(path: str) -> Iterator[int]:
    """Make a folder and :func:`lock` it.

    Args:
        path (str): The folder. It may exist.

    Yields:
        int: Its descriptor.

    Raises:
        RuntimeError: If another run has locked it.
    """
    mkdir_or_exist(path)
    folder = os.open(path, os.O_RDONLY)
    try:
        lock(folder, path)
        yield folder
    finally:
        os.close(folder)


class ResultsFile:
    """A file of JSON lines that a run reads and adds to.

    It is locked by :func:`lock`.

    Args:
        path (str): The file. It need not exist.

    Raises:
        RuntimeError: If another run has locked it.
    """

    def __init__(self, path: str) -> None:
        mkdir_or_exist(osp.dirname(osp.abspath(path)))
        self._file = open(path, 'a+', encoding='utf-8')
        lock(self._file, path)
        self._file.seek(0)
        text = self._file.read()
        whole = text[:text.rfind('\n') + 1]
        if _is_json(text[len(whole):]):
            self._write('\n')
        else:
            self._file.truncate(len(whole.encode()))
        self.cells = read_results(path)
        """list[dict]: The cells that are finished."""

    def append(self, cell: dict) -> None:
        """Add a line for a cell."""
        self._write(json.dumps(cell) + '\n')

    def close(self) -> None:
        """Let others open it."""
        self._file.close()

    def fileno(self) -> int:
        """What a process inherits that uses the file as long as it runs."""
        return self._file.fileno()

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


def group(cells: List[dict], baseline: str) -> Arms:
    """Sort the cells by arm and seed, the baseline first.

    Args:
        cells (list[dict]): Finished cells.
        baseline (str): Arm that the others are compared with.

    Returns:
        dict[str, dict[int, dict]]: Cells of each arm by seed.

    Raises:
        ValueError: If the cells don't make a comparison.
    """
    arms: Arms = {baseline: {}}
    for cell in cells:
        seeds = arms.setdefault(cell['arm'], {})
        if cell['seed'] in seeds:
            raise ValueError(
                f'The results have two lines for seed {cell["seed"]} of '
                f'{cell["arm"]}: remove one of them.')
        seeds[cell['seed']] = cell
    if not arms[baseline]:
        raise ValueError(
            f'The results have no cell of {baseline}, the baseline: train '
            'it, or give another --baseline.')
    _check_alike('the results', cells,
                 ('batch_size', 'num_images', 'device', 'threads', 'versions'))
    for arm, seeds in arms.items():
        _check_alike(arm, list(seeds.values()), ('config', 'iters'))
    return arms


def _check_alike(name: str, cells: List[dict], keys: Tuple[str, ...]) -> None:
    for key in keys:
        values = sorted({str(cell[key]) for cell in cells})
        if len(values) > 1:
            raise ValueError(
                f'The cells of {name} differ in `{key}`, {", ".join(values)}: '
                'compare those that are alike.')


def cell_miou(cell: dict, last: float) -> float:
    """Mean mIoU of the evaluations near the end of a cell.

    Args:
        cell (dict): The cell.
        last (float): Part of its own iterations that counts.
    """
    # Not (1 - 0.7) * 10, which is above 3.
    start = cell['iters'] - last * cell['iters'] - 1e-6
    return float(
        np.mean([e['mIoU'] for e in cell['evals'] if e['iter'] >= start]))


def spread(values: List[float]) -> float:
    """Standard deviation over seeds, nan of less than two."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else np.nan


class Difference(NamedTuple):
    """How far an arm lies above another one.

    Args:
        mean (float): Mean over the seeds of both, nan without any.
        low (float): Lower end of the 95 % t-interval, nan for one seed.
        high (float): Upper end.
        n (int): Seeds of both.
    """

    mean: float
    low: float
    high: float
    n: int

    @property
    def verdict(self) -> str:
        """str: What the interval says."""
        if self.n < 2:
            return NONE
        if self.low > 0:
            return 'above'
        return 'below' if self.high < 0 else 'undecided'

    def __str__(self) -> str:
        if self.n < 2:
            return f'{self.mean:+.2f}' if self.n else NONE
        return f'{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]'


def differences(a: Figures, b: Figures) -> Figures:
    """By how much ``a`` is above ``b``, for each seed that both have."""
    return {seed: a[seed] - b[seed] for seed in a if seed in b}


def paired_difference(a: Figures, b: Figures) -> Difference:
    """Compare two arms seed by seed.

    Args:
        a (dict[int, float]): Figure of each seed.
        b (dict[int, float]): The same of the arm to compare with.

    Returns:
        Difference: Mean and interval of ``a - b``.
    """
    values = list(differences(a, b).values())
    n = len(values)
    mean = float(np.mean(values)) if n else np.nan
    half = (
        float(stats.t.ppf(0.975, n - 1)) * spread(values) /
        np.sqrt(n) if n > 1 else np.nan)
    return Difference(mean, mean - half, mean + half, n)


def mious(arms: Arms, last: float) -> Dict[str, Figures]:
    """The mIoU of each cell of each arm."""
    return {
        arm: {
            seed: cell_miou(cell, last)
            for seed, cell in seeds.items()
        }
        for arm, seeds in arms.items()
    }
