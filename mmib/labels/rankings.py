# Copyright (c) mmib contributors. All rights reserved.
"""Rankings of images: the highest are looked at first. Functions of arrays."""
import math
from typing import Any, Callable, NamedTuple, Optional

import cv2
import numpy as np

from .boxes import total

# Share of the pixels that ranks an image.
TOP_PIXELS = 0.05
# Smallest difference between the probabilities of the predicted and the
# labelled class of a pixel for which the network is confident.
_CONFIDENT = 0.3


def top_pixels(losses: np.ndarray) -> float:
    """Return the mean of the highest 5 % of the losses of an image's pixels,
    of any shape, NaN where nothing is labelled."""
    losses = losses[~np.isnan(losses)]
    count = math.ceil(TOP_PIXELS * losses.size)
    highest = np.partition(losses, losses.size - count)[losses.size - count:]
    return float(highest.mean()) if count else math.nan


def largest_region(gaps: np.ndarray) -> np.ndarray:
    """Find the connected pixels that differ most from their labels, which a
    person would repair first (Rottmann and Reese, 2022).

    Args:
        gaps (np.ndarray): Probability of the predicted class less that of the
            labelled one, of each pixel, float of shape (H, W). NaN where
            nothing is labelled.

    Returns:
        np.ndarray: Whether each pixel belongs to the region, bool of shape
        (H, W).
    """
    differs = (gaps > _CONFIDENT).astype(np.uint8)
    # Borders of objects differ everywhere, in lines that connect them.
    differs = cv2.morphologyEx(differs, cv2.MORPH_OPEN, np.ones((3, 3)))
    _, regions = cv2.connectedComponents(differs, connectivity=4)
    weights = np.bincount(regions.ravel(), np.nan_to_num(gaps).ravel())
    weights[0] = 0  # Outside of all regions.
    return regions == (weights.argmax() or -1)


def region_share(gaps: np.ndarray) -> float:
    """Return the sum of the gaps in the :func:`largest_region`, over the
    labelled pixels, NaN where nothing is labelled."""
    labelled = np.count_nonzero(~np.isnan(gaps))
    if labelled == 0:
        return math.nan
    return float(gaps[largest_region(gaps)].sum()) / labelled


def margin(leads: np.ndarray) -> float:
    """Return how far the most probable other class is above the labelled one.

    Args:
        leads (np.ndarray): Log-probability of each class less that of the
            labelled one, float of shape (C,). NaN for the labelled one.
    """
    return float(np.nanmax(leads))


class Ranking(NamedTuple):
    """A ranking of images by one number each. Its name in :data:`RANKINGS` is
    the column of the number in a table of images. ``gallery.html`` says what a
    high number means.

    Args:
        title (str): What the number is.
        array (str): What of a prediction the number is made of, see
            :func:`~mmib.labels.predictions.compare`. Defaults to '': the
            run has made the number.
        of (Callable, optional): Makes the number of this array, or of the
            boxes of this kind. Defaults to None.
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
# The default ranking is the first of these that there is.
DEFAULTS = ('margin', 'pixels', 'missing')
