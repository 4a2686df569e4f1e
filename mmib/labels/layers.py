# Copyright (c) mmib contributors. All rights reserved.
"""Layers that are drawn over an image of a gallery."""
import base64
import math
from typing import Any, List, Sequence, Tuple

import cv2
import numpy as np
import pandas as pd

from .masks import IGNORED

# Opacity of a class over an image, of 255.
_OPACITY = 128
# Longest side of the pictures of 400 cards, and of any picture. The more cards
# a page has, the smaller are its pictures, so that it stays below 30 MB.
_SIDE, _LARGEST, _CARDS = 480, 1024, 400
# The loss that is drawn brightest, and the number of steps of brightness: few
# steps make a small file.
_HOTTEST, _STEPS = 5., 8


def class_layer(labels: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """Colour pixels by label, with a palette in RGB: BGRA of shape (H, W, 4),
    transparent where a label is ignored."""
    labels = labels.astype(np.uint8)
    opacity = np.where(labels == IGNORED, 0, _OPACITY).astype(np.uint8)
    return np.dstack([palette[labels, ::-1], opacity])


def heat_layer(losses: np.ndarray) -> np.ndarray:
    """Colour pixels by loss (H, W), NaN where there is none: BGRA of shape
    (H, W, 4), the higher, the brighter and the less transparent."""
    heat = np.nan_to_num(losses / _HOTTEST, nan=0.).clip(0, 1)
    heat = np.round(heat * _STEPS) / _STEPS
    colours = cv2.applyColorMap((96 + 159 * heat).astype(np.uint8),
                                cv2.COLORMAP_INFERNO)
    return np.dstack([colours, (230 * heat).astype(np.uint8)])


def box_layer(shape: Tuple[int, ...],
              boxes: Sequence[Sequence[float]],
              labels: Sequence[int],
              palette: np.ndarray,
              marked: int = 0) -> np.ndarray:
    """Draw boxes (left, top, right, bottom) of an image of ``shape``, coloured
    by label, and so many of the last ones thick: BGRA of shape (H, W, 4)."""
    layer = np.zeros((*shape[:2], 4), np.uint8)
    for i, (box, label) in enumerate(zip(boxes, labels)):
        width = max(round(max(shape) / 200), 2)
        if i >= len(boxes) - marked:
            width *= 3
        if not np.isfinite(box).all():
            continue
        left, top, right, bottom = (int(round(side)) for side in box)
        colour = (*palette[label % 256, ::-1].tolist(), 255)
        cv2.rectangle(layer, (left, top), (right, bottom), colour, width)
    return layer


def confusions(labels: np.ndarray,
               predicted: np.ndarray,
               least: float = 0.01) -> List[Tuple[int, int, float]]:
    """Return which labels are predicted as which other class: label,
    prediction and share of the labelled pixels, the largest first, from
    ``least`` on."""
    known = labels != IGNORED
    pairs = pd.DataFrame({0: labels[known], 1: predicted[known]})
    shares = pairs.value_counts(normalize=True)
    return [(int(label), int(other), share)
            for (label, other), share in shares.items()
            if label != other and share >= least]


def side_of(num_cards: int) -> int:
    """Return the longest side of the pictures of a page with so many cards."""
    side = _SIDE * math.sqrt(_CARDS / max(num_cards, 1))
    return min(int(side), _LARGEST)


def to_uri(image: np.ndarray, side: int) -> str:
    """Return a WebP file of an image (BGR), or a lossless one of a layer
    (BGRA), as a data URI."""
    is_layer = image.shape[2] == 4
    scale = side / max(image.shape[:2])
    if scale < 1:
        size = [max(round(scale * length), 1) for length in image.shape[1::-1]]
        how = cv2.INTER_NEAREST if is_layer else cv2.INTER_AREA
        image = cv2.resize(image, size, interpolation=how)
    # A quality above 100 is lossless.
    quality: Any = [cv2.IMWRITE_WEBP_QUALITY, 101 if is_layer else 75]
    _, data = cv2.imencode('.webp', image, quality)
    return 'data:image/webp;base64,' + base64.b64encode(
        data.tobytes()).decode()
