# Copyright (c) mmib contributors. All rights reserved.
"""Rankings of images: the highest are looked at first."""
import math
from typing import Callable, NamedTuple, Optional

import numpy as np

# Share of the pixels that ranks an image.
TOP_PIXELS = 0.05


def top_pixels(losses: np.ndarray) -> float:
    """The mean of the highest 5 % of the losses of an image's pixels, of any
    shape, NaN where nothing is labelled."""
    losses = losses[~np.isnan(losses)]
    count = math.ceil(TOP_PIXELS * losses.size)
    highest = np.partition(losses, losses.size - count)[losses.size - count:]
    return float(highest.mean()) if count else math.nan


class Ranking(NamedTuple):
    """A ranking of images by one number each.

    Args:
        column (str): Where a table of images has the number.
        title (str): What the number is.
        sentence (str): What a high one means.
        of_pixels (Callable, optional): Makes it of the losses of the pixels of
            an image. Defaults to None: the training has made it.
    """

    column: str
    title: str
    sentence: str
    of_pixels: Optional[Callable[[np.ndarray], float]] = None


RANKINGS = dict(
    score=Ranking(
        'average', 'average score',
        'An image with a high score had a high loss when it was '
        'trained on. The average score ranks, in which later visits count '
        'more.'),
    pixels=Ranking(
        'loss_pixels', 'loss',
        'The mean of the highest 5 % of the pixel losses of '
        'the network ranks. Where it is high, some labels are unlike the '
        'predictions.', top_pixels))
