# Copyright (c) mmib contributors. All rights reserved.
"""All images of a training set as files."""
import json
from typing import List, Optional

import numpy as np
import pandas as pd

from .checkpoint import Images
from .read import ReportError


def image_table(images: Images) -> pd.DataFrame:
    """What is known of each image.

    Args:
        images (Images): It.

    Returns:
        pd.DataFrame: Columns ``image`` (its number), ``path``, ``score``,
        ``average``, ``visits``, ``pruned`` and ``last_visit``, and ``loss_``
        with the name of a ranking for each that there is; what isn't known is
        empty.
    """
    size = len(images)
    table = pd.DataFrame({
        'image': np.arange(size),
        'path': images.paths or [None] * size,
        'score': images.scores,
        'average': np.nan if images.averages is None else images.averages,
    })
    for name in ('visits', 'pruned', 'last_visit'):
        column = getattr(images, name)
        table[name] = pd.array([pd.NA] * size if column is None else column,
                               'Int64')
    for name, column in images.losses.items():
        table[f'loss_{name}'] = column
    return table


def write_table(table: pd.DataFrame, stem: str) -> List[str]:
    """Write a table as CSV and as JSON, a list of records.

    Args:
        table (pd.DataFrame): It.
        stem (str): Path without the end.

    Returns:
        list[str]: Paths of the files.
    """
    paths = [f'{stem}.csv', f'{stem}.json']
    # A path may be no text in UTF-8.
    table.to_csv(
        paths[0], index=False, encoding='utf-8', errors='backslashreplace')
    records = table.astype(object).where(table.notna(), None)
    with open(paths[1], 'w', encoding='utf-8') as file:
        json.dump(records.to_dict('records'), file, indent=0)
    return paths


def write_subset(images: Images, path: str, keep: float, rank_by: str,
                 lowest: bool) -> str:
    """List one end of a ranking, for ``mmib train --subset``.

    Args:
        images (Images): What is known of the images.
        path (str): File to write: a path on each line, as the table has it,
            or a number where paths don't tell the images apart.
        keep (float): Share of all images to list, in (0, 1].
        rank_by (str): The ranking, see :meth:`Images.ranked`.
        lowest (bool): Whether the lowest are listed, and not the highest.

    Returns:
        str: ``path``.

    Raises:
        ReportError: If fewer images are ranked, or the file can't be written.
    """
    ranked = images.ranked(rank_by)
    num_listed = max(round(keep * len(images)), 1)
    if num_listed > len(ranked):
        raise ReportError(
            f'--keep {keep:g} is {num_listed} images, but the {rank_by} of '
            f'{len(ranked)} of {len(images)} is known alone: train for a '
            'whole pass, or lower it.')
    listed = (ranked[::-1] if lowest else ranked)[:num_listed]
    names = [str(number) for number in listed]
    paths = images.paths or []
    if len(set(paths)) == len(images) and all(map(_is_line, paths)):
        names = [paths[number] for number in listed]
    try:
        # As it is read: a path may be no text in UTF-8.
        with open(
                path, 'w', encoding='utf-8', errors='surrogateescape') as file:
            file.write(''.join(f'{name}\n' for name in names))
    except OSError as error:
        raise ReportError(f'{path} can\'t be written: {error.strerror}. Give '
                          'another file with --subset.') from error
    return path


def _is_line(path: Optional[str]) -> bool:
    """Whether a line of a list is read as this path."""
    return (path is not None and path.splitlines() == [path.strip()]
            and not path.isdecimal())
