# Copyright (c) mmib contributors. All rights reserved.
"""All images of a training set as a file."""
import numpy as np
import pandas as pd

from .checkpoint import Images


def write_table(images: Images, path: str) -> None:
    """Write what is known of each image as CSV.

    The columns are ``image`` (its number), ``path``, ``score``, ``average``,
    ``visits``, ``pruned``, ``last_visit``, and ``loss_pixels`` if the network
    was asked. What isn't known is empty.

    Args:
        images (Images): The images.
        path (str): The file.
    """
    size = len(images)
    unknown = pd.array([pd.NA] * size, 'Int64')
    table = pd.DataFrame({
        'image': np.arange(size),
        'path': images.paths or [None] * size,
        'score': images.scores,
        'average': np.nan if images.averages is None else images.averages,
    })
    for name in ('visits', 'pruned', 'last_visit'):
        column = getattr(images, name)
        table[name] = unknown if column is None else column
    if images.losses is not None:
        table['loss_pixels'] = images.losses
    # A path may be no text in UTF-8.
    table.to_csv(
        path, index=False, encoding='utf-8', errors='backslashreplace')
