# Copyright (c) mmib contributors. All rights reserved.
"""Rankings, which put suspicious images first: functions of arrays."""
import math
from typing import Any, Callable, NamedTuple, Optional

import cv2
import numpy as np

from .boxes import total

# Share of the pixels that ranks an image.
TOP_PIXELS = 0.05
# A network is confident in a pixel if the probabilities of the predicted and
# the labelled class differ by more.
_CONFIDENT = 0.3


def top_pixels(losses: np.ndarray) -> float:
    """Return the mean of the highest 5 % of the pixel losses of an image, of
    any shape. NaN if no pixel is labelled."""
    losses = losses[~np.isnan(losses)]
    count = math.ceil(TOP_PIXELS * losses.size)
    highest = np.partition(losses, losses.size - count)[losses.size - count:]
    return float(highest.mean()) if count else math.nan


def largest_region(gaps: np.ndarray) -> np.ndarray:
    """Find the connected pixels that differ most from their labels, which a
    person would repair first (Rottmann and Reese, 2022).

    Args:
        gaps (np.ndarray): Probability of the predicted class less the
            probability of the labelled class in each pixel, float of shape
            (H, W). NaN where a pixel isn't labelled.

    Returns:
        np.ndarray: Whether each pixel belongs to the region, bool of shape
        (H, W).
    """
    differs = (gaps > _CONFIDENT).astype(np.uint8)
    # The borders of objects differ everywhere, and would connect regions.
    differs = cv2.morphologyEx(differs, cv2.MORPH_OPEN, np.ones((3, 3)))
    _, regions = cv2.connectedComponents(differs, connectivity=4)
    weights = np.bincount(regions.ravel(), np.nan_to_num(gaps).ravel())
    weights[0] = 0  # Outside of all regions.
    return regions == (weights.argmax() or -1)


def region_share(gaps: np.ndarray) -> float:
    """Return the sum of the gaps in the :func:`largest_region`, divided by the
    number of labelled pixels. NaN if no pixel is labelled."""
    labelled = np.count_nonzero(~np.isnan(gaps))
    if labelled == 0:
        return math.nan
    return float(gaps[largest_region(gaps)].sum()) / labelled


def margin(leads: np.ndarray) -> float:
    """Return the lead of the most probable other class over the labelled
    class.

    Args:
        leads (np.ndarray): Log-probability of each class less the
            log-probability of the labelled class, float of shape (C,). NaN for
            the labelled class.
    """
    return float(np.nanmax(leads))


class Ranking(NamedTuple):
    """A ranking of images by one number for each image. Its name in
    :data:`RANKINGS` is the column of the number in a table of images.
    ``gallery.html`` says what a high number means.

    Args:
        title (str): Title of the number.
        array (str): Key of what the number is computed from, in the result of
            :func:`~mmib.labels.predictions.compare`, or a kind of boxes in
            :data:`~mmib.labels.boxes.KINDS`. '' if the number comes from a
            run. Defaults to ''.
        of (Callable, optional): Computes the number. Defaults to None.
    """

    title: str
    array: str = ''
    of: Optional[Callable[[Any], float]] = None


RANKINGS = dict(
    score=Ranking('average score'),
    regions=Ranking('largest region', 'gaps', region_share),
    pixels=Ranking('loss', 'losses', top_pixels),
    margin=Ranking('margin', 'leads', margin),
    missing=Ranking('missing boxes', 'missing', total),
    unsupported=Ranking('unsupported boxes', 'unsupported', total),
    other_class=Ranking('boxes of another class', 'other_class', total))
# The default ranking is the first of these that fits the task.
DEFAULTS = ('margin', 'pixels', 'missing')
