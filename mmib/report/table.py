# Copyright (c) mmib contributors. All rights reserved.
"""All images of a training set as files."""
import json
from typing import List

import numpy as np
import pandas as pd

from .checkpoint import Images


def image_table(images: Images) -> pd.DataFrame:
    """What is known of each image.

    Args:
        images (Images): The images.

    Returns:
        pd.DataFrame: Columns ``image`` (its number), ``path``, ``score``,
        ``average``, ``visits``, ``pruned``, ``last_visit``, and
        ``loss_pixels`` if the network was asked; what isn't known is empty.
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
    if images.losses is not None:
        table['loss_pixels'] = images.losses
    return table


def write_table(images: Images, stem: str) -> List[str]:
    """Write :func:`image_table` as CSV and as JSON, a list of records.

    Args:
        images (Images): The images.
        stem (str): Path without the end.

    Returns:
        list[str]: Paths of the files.
    """
    table = image_table(images)
    paths = [f'{stem}.csv', f'{stem}.json']
    # A path may be no text in UTF-8.
    table.to_csv(
        paths[0], index=False, encoding='utf-8', errors='backslashreplace')
    records = table.astype(object).where(table.notna(), None)
    with open(paths[1], 'w', encoding='utf-8') as file:
        json.dump(records.to_dict('records'), file, indent=0)
    return paths
