# Copyright (c) mmib contributors. All rights reserved.
"""Pictures of the images with the highest and the lowest scores."""
import base64
from dataclasses import dataclass, field
from typing import Callable, List, Optional, Tuple

import cv2
import numpy as np

from .checkpoint import Images
from .config import ConfigError
from .images import IGNORED, TrainingImages

# Longest side of a picture.
SIDE = 240
OPACITY = 0.5


@dataclass
class Card:
    """An image in the gallery.

    Args:
        number (int): Its number.
        path (str, optional): Its file, below the folder that all have in
            common.
        figures (list[tuple[str, float]]): Name and value of what is known of
            it, the one that ranks first.
        rank (int): 1 is the highest.
        visits (int, optional): How often it was trained on.
        pruned (int, optional): How often it was pruned.
        pictures (list[tuple[str, str]]): Title and data URI of each picture.
        classes (list[tuple[str, str]]): What the label and the prediction of a
            whole image say.
        note (str): Why pictures are missing.
    """

    number: int
    path: Optional[str]
    figures: List[Tuple[str, float]]
    rank: int
    visits: Optional[int]
    pruned: Optional[int]
    pictures: List[Tuple[str, str]] = field(default_factory=list)
    classes: List[Tuple[str, str]] = field(default_factory=list)
    note: str = ''


def cards(images: Images,
          count: int,
          reader: Optional[TrainingImages],
          predict: Optional[Callable],
          rank_by: str = 'score') -> Tuple[List[Card], List[Card]]:
    """The images at both ends.

    Args:
        images (Images): What is known of all.
        count (int): How many of each end.
        reader (TrainingImages, optional): Reads them. None without data.
        predict (Callable, optional): From an image to the label of each pixel,
            or to classes.
        rank_by (str): What :meth:`Images.ranked` takes. Defaults to
            ``'score'``.

    Returns:
        tuple[list[Card], list[Card]]: The highest, the highest first, and the
        lowest, the lowest first. No image is in both.
    """
    order = images.ranked(rank_by)
    highest = order[:count]
    lowest = order[len(highest):][-count:][::-1] if count else order[:0]
    ranks = {number: rank for rank, number in enumerate(order.tolist(), 1)}

    columns = {'last score': images.scores}
    if images.averages is not None:
        columns = {'average score': images.averages, **columns}
    if rank_by in images.losses:
        columns = {'loss': images.losses[rank_by], **columns}

    def card(number: int) -> Card:
        card = Card(
            number=number,
            path=images.paths[number] if images.paths else None,
            figures=[(name, float(column[number]))
                     for name, column in columns.items()],
            rank=ranks[number],
            visits=_at(images.visits, number),
            pruned=_at(images.pruned, number))
        if reader is not None:
            _add_pictures(card, reader, predict)
        return card

    return [card(n)
            for n in highest.tolist()], [card(n) for n in lowest.tolist()]


def _at(column: Optional[np.ndarray], number: int) -> Optional[int]:
    return None if column is None else int(column[number])


def _add_pictures(card: Card, reader: TrainingImages,
                  predict: Optional[Callable]) -> None:
    try:
        results = reader.read(card.number)
        image = results['img']
        card.pictures.append(('image', to_uri(image)))
        labels = results.get('gt_seg_map')
        if labels is not None:
            card.pictures.append(
                ('labels', to_uri(overlay(image, labels, reader.palette))))
        if results.get('gt_label') is not None:
            card.classes.append(('class', reader.names(results['gt_label'])))
        if predict is not None and not reader.has_masks:
            found = predict(results.get('held', image))
            card.classes.append(('predicted', reader.names(found)))
        elif predict is not None:
            labels = predict(image)
            card.pictures.append(
                ('prediction', to_uri(overlay(image, labels, reader.palette))))
    except ConfigError as error:
        card.note = f'No {"prediction" if card.pictures else "picture"}: ' \
                    f'{error}.'


def overlay(image: np.ndarray, labels: np.ndarray,
            palette: np.ndarray) -> np.ndarray:
    """Colour the pixels of an image by label; those that are ignored stay.

    Args:
        image (np.ndarray): BGR, uint8 of shape (H, W, 3).
        labels (np.ndarray): Integers of shape (H, W).
        palette (np.ndarray): RGB of each label, uint8 of shape (256, 3).

    Returns:
        np.ndarray: BGR, uint8 of shape (H, W, 3).
    """
    if labels.shape != image.shape[:2]:
        raise ConfigError(f'labels of {labels.shape} pixels don\'t fit an '
                          f'image of {image.shape[:2]}')
    colours = palette[labels.astype(np.uint8), ::-1]
    mixed = (1 - OPACITY) * image + OPACITY * colours
    return np.where((labels == IGNORED)[..., None], image,
                    mixed).astype(np.uint8)


def to_uri(image: np.ndarray) -> str:
    """A small JPEG as a data URI.

    Args:
        image (np.ndarray): BGR, uint8 of shape (H, W, 3).
    """
    scale = SIDE / max(image.shape[:2])
    if scale < 1:
        size = [max(round(scale * side), 1) for side in image.shape[1::-1]]
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    _, data = cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, 85])
    return 'data:image/jpeg;base64,' + base64.b64encode(
        data.tobytes()).decode()
