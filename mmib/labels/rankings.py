# Copyright (c) mmib contributors. All rights reserved.
"""Rankings of images: the highest are looked at first."""
import math
from typing import Callable, NamedTuple, Optional

import cv2
import numpy as np

# Share of the pixels that ranks an image.
TOP_PIXELS = 0.05
# How much more probable than the label another class is in a suspect region.
CLEAR_MARGIN = 0.3


def top_pixels(losses: np.ndarray) -> float:
    """The mean of the highest 5 % of the losses of an image's pixels, of any
    shape, NaN where nothing is labelled."""
    losses = losses[~np.isnan(losses)]
    count = math.ceil(TOP_PIXELS * losses.size)
    highest = np.partition(losses, losses.size - count)[losses.size - count:]
    return float(highest.mean()) if count else math.nan


def suspect_region(probabilities: np.ndarray,
                   labels: np.ndarray) -> np.ndarray:
    """The part of an image whose labels a network contradicts most: the
    connected area with the largest sum of margins, by which another class is
    more probable than the label, over pixels where the margin is clear.

    Args:
        probabilities (np.ndarray): Of each class in each pixel, of shape
            (C, H, W).
        labels (np.ndarray): Labels of the pixels, of shape (H, W). What is no
            class is ignored.

    Returns:
        np.ndarray: Whether each pixel is in the area, bool of shape (H, W).
    """
    known = (labels >= 0) & (labels < len(probabilities))
    places = np.where(known, labels, 0).astype(np.int64)[None]
    own = np.take_along_axis(probabilities, places, 0)[0]
    margins = np.where(known, probabilities.max(0) - own, 0)
    # Networks and people draw edges a pixel or two apart.
    differs = cv2.morphologyEx((margins > CLEAR_MARGIN).astype(np.uint8),
                               cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
    _, areas = cv2.connectedComponents(differs)
    sums = np.bincount(areas.ravel(), margins.ravel())
    sums[0] = 0  # All other pixels.
    return differs.astype(bool) & (areas == sums.argmax())


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
