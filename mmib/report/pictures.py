# Copyright (c) mmib contributors. All rights reserved.
"""Pictures of the images at both ends of a ranking."""
import base64
import os.path as osp
from dataclasses import dataclass, field
from typing import List, Optional, Set, Tuple

import cv2
import numpy as np
import pandas as pd
from mmengine.config import Config
from mmengine.device import get_device

from .checkpoint import Checkpoint, ranked
from .images import CannotShow, TrainingImages
from .predictions import Predictor, losses_of_images
from .read import ReportError

# Longest side of a picture.
SIDE = 240
OPACITY = 0.5
# A label that is no class.
IGNORED = 255
# A network whose loss is more than this share of the loss of guessing is too
# young: it ranks scenes that it hasn't learned before wrong labels.
_YOUNG = 0.5
# Of a card: columns of what is known of images, the first ranks.
_FIGURES = dict(
    loss_pixels='loss', average='average score', score='last score')
# What reads images, if any can be read, and their numbers in the whole data
# set, of which the training may have had a list.
Opened = Tuple[Optional[TrainingImages], List[int]]


@dataclass
class Card:
    """An image in the gallery: its path below the folder of all, names and
    values of what is known of it, its rank from 1, titles and data URIs of its
    pictures, its label and prediction, and why pictures are missing."""

    number: int
    path: Optional[str]
    figures: List[Tuple[str, float]]
    rank: int
    visits: Optional[int]
    pruned: Optional[int]
    pictures: List[Tuple[str, str]] = field(default_factory=list)
    classes: List[Tuple[str, str]] = field(default_factory=list)
    note: str = ''


@dataclass
class Gallery:
    """The images at both ends of a ranking, the outermost first. None is in
    both.

    Args:
        folder (str): The folder that all of them have in common.
        classes (list[tuple[str, str]]): Name and colour of each class that
            pixels may have.
        young (str): That the network is too young for the ranking, or nothing.
        notes (list[str]): Sentences on what is missing and why.
    """

    highest: List[Card] = field(default_factory=list)
    lowest: List[Card] = field(default_factory=list)
    folder: str = ''
    classes: List[Tuple[str, str]] = field(default_factory=list)
    young: str = ''
    notes: List[str] = field(default_factory=list)


def take_pictures(config: Config,
                  checkpoint: Checkpoint,
                  count: int,
                  predictions: bool = True,
                  by_losses: bool = False,
                  judged: Optional[Set[str]] = None) -> Gallery:
    """Show ``count`` images at each end of the ranking, as far as possible:
    what is missing is told in notes. The images of the checkpoint get their
    paths and, with ``by_losses``, the pixel losses of their predictions, which
    rank them then. Their index becomes their number in the whole data set.
    Images whose path or number is ``judged`` aren't shown.

    Raises:
        ReportError: If the images can't be ranked or found.
    """
    gallery, images = Gallery(), checkpoint.images
    assert images is not None
    reader, numbers = _open_reader(config, images, gallery.notes)
    predictor = None
    if reader is not None and predictions and (count or by_losses):
        predictor = _open_predictor(config, checkpoint, gallery.notes)
    if by_losses:
        gallery.young = _add_losses(images, reader, predictor, gallery.notes)
    order = ranked(images)
    ranks = {number: rank for rank, number in enumerate(order, 1)}
    if judged:
        order = _not_judged(order, numbers, images, judged, gallery.notes)
    highest = order[:count]
    lowest = order[len(highest):][-count:][::-1] if count else []
    gallery.highest = [_card(images, n, ranks[n]) for n in highest]
    gallery.lowest = [_card(images, n, ranks[n]) for n in lowest]
    cards = gallery.highest + gallery.lowest
    gallery.folder = _shorten_paths(cards)
    if reader is not None:
        for card in cards:
            _add_pictures(card, reader, predictor)
        if any(len(card.pictures) > 1 for card in cards):
            colours = reader.palette.tolist()
            gallery.classes = [(name, 'rgb({}, {}, {})'.format(*colour))
                               for name, colour in zip(reader.classes, colours)
                               ]
    for card in cards:
        card.number = numbers[card.number]
    images.index = pd.Index(numbers)
    return gallery


def _open_reader(config: Config, images: pd.DataFrame,
                 notes: List[str]) -> Opened:
    try:
        reader = TrainingImages(config, len(images))
        paths = reader.paths()
    except CannotShow as error:
        notes.append('Images have numbers instead of paths and pictures, '
                     f'because of the data set: {error}.')
        if 'ListedImages' in str(config.get('train_dataloader')):
            notes.append('These numbers count the images of its list alone, '
                         'and are none for --without.')
        return None, [*range(len(images))]
    images['path'] = pd.Series(paths, dtype=object)
    if not any(paths):
        notes.append('Images have numbers instead of paths: the data set has '
                     'no files.')
        if not reader.has_pixels:
            return None, reader.numbers()
    return reader, reader.numbers()


def _not_judged(order: List[int], numbers: List[int], images: pd.DataFrame,
                judged: Set[str], notes: List[str]) -> List[int]:
    if 'path' not in images:
        raise ReportError(f'--review finds no images. {" ".join(notes)}')
    left = [
        n for n in order
        if judged.isdisjoint((images['path'][n], str(numbers[n])))
    ]
    notes.append(f'{len(order) - len(left)} images that were judged before '
                 'aren\'t shown again.')
    return left


def _open_predictor(config: Config, checkpoint: Checkpoint,
                    notes: List[str]) -> Optional[Predictor]:
    try:
        return Predictor(config, checkpoint.weights, get_device())
    except CannotShow as error:
        notes.append(f'There are no predictions: {error}.')
        return None


def _add_losses(images: pd.DataFrame, reader: Optional[TrainingImages],
                predictor: Optional[Predictor], notes: List[str]) -> str:
    """Predict all images. Returns that the network is too young for the
    ranking, or nothing."""
    reason, mean, guess = ''.join(notes[-1:]), 0., 0.
    losses = np.full(len(images), np.nan)
    if reader is not None and predictor is not None:
        losses, reason, (mean,
                         guess) = losses_of_images(reader, predictor,
                                                   len(images))
    num_unknown = np.isnan(losses).sum()
    if num_unknown == len(losses):
        raise ReportError('The images can\'t be ranked by pixels, as there '
                          f'are no predictions. {reason}')
    if reason:
        notes.append(f'{num_unknown} of {len(losses)} images have no loss: '
                     f'{reason}.')
    images['loss_pixels'] = losses
    if not mean > _YOUNG * guess:
        return ''
    return (f'The network is too young for this ranking: the mean of its '
            f'pixel losses, {mean:.2f}, is more than half of {guess:.2f}, the '
            'loss of guessing each pixel by how frequent the classes are. '
            'Scenes that the network hasn\'t learned yet may come before '
            'wrong labels. Train longer, then rank again.')


def _card(images: pd.DataFrame, number: int, rank: int) -> Card:
    known = {name: column[number] for name, column in images.items()}
    figures = [(title, known[name]) for name, title in _FIGURES.items()
               if name in known]
    return Card(number, known.get('path'), figures, rank, known.get('visits'),
                known.get('pruned'))


def _add_pictures(card: Card, reader: TrainingImages,
                  predict: Optional[Predictor]) -> None:
    try:
        results = reader.read(card.number)
        image, labels = results['img'], results.get('gt_seg_map')
        card.pictures.append(('image', to_uri(image)))
        if labels is not None:
            card.pictures.append(
                ('labels', to_uri(overlay(image, labels, reader.palette))))
        if results.get('gt_label') is not None:
            card.classes.append(('class', reader.names(results['gt_label'])))
        if predict is None:
            return
        sample = predict(reader.info(card.number))
        if 'pred_sem_seg' in sample:
            labels = sample.pred_sem_seg.data[0].cpu().numpy()
            card.pictures.append(
                ('prediction', to_uri(overlay(image, labels, reader.palette))))
        elif 'pred_label' in sample:
            card.classes.append(
                ('predicted', reader.names(sample.pred_label.cpu())))
    except CannotShow as error:
        card.note = f'No {"prediction" if card.pictures else "picture"}: ' \
                    f'{error}.'


def _shorten_paths(cards: List[Card]) -> str:
    """Take the folder that all have in common from the paths."""
    paths = [card.path for card in cards if card.path]
    try:
        folder = osp.commonpath([osp.dirname(path) for path in paths])
    except ValueError:  # None, or relative and absolute ones.
        return ''
    for card in cards:
        if card.path and folder:
            card.path = osp.relpath(card.path, folder)
    return folder


def overlay(image: np.ndarray, labels: np.ndarray,
            palette: np.ndarray) -> np.ndarray:
    """Colour the pixels of an image (BGR) by label, with a palette in RGB;
    those that are ignored stay."""
    if labels.shape != image.shape[:2]:
        raise CannotShow(f'labels of {labels.shape} pixels don\'t fit an '
                         f'image of {image.shape[:2]}')
    colours = palette[labels.astype(np.uint8), ::-1]
    mixed = (1 - OPACITY) * image + OPACITY * colours
    return np.where((labels == IGNORED)[..., None], image,
                    mixed).astype(np.uint8)


def to_uri(image: np.ndarray) -> str:
    """A small JPEG of an image (BGR) as a data URI."""
    scale = SIDE / max(image.shape[:2])
    if scale < 1:
        size = [max(round(scale * side), 1) for side in image.shape[1::-1]]
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    _, data = cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, 85])
    return 'data:image/jpeg;base64,' + base64.b64encode(
        data.tobytes()).decode()
