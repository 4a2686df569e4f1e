# Copyright (c) mmib contributors. All rights reserved.
"""Pictures of the images at both ends of a ranking."""
import os.path as osp
from dataclasses import dataclass, field
from typing import Any, Iterator, List, Optional, Set, Tuple

import numpy as np
import pandas as pd
from mmengine.config import Config
from mmengine.device import get_device

from ..errors import Refusal
from .checkpoint import Checkpoint, ranked
from .images import CannotShow, TrainingImages
from .layers import (IGNORED, box_layer, class_layer, confusions, heat_layer,
                     side_of, to_uri)
from .predictions import Predictor, losses_of_images, pixel_losses

# Name of a layer, and the layer.
_Layer = Tuple[str, np.ndarray]
# How many confused pairs of classes a card has.
_PAIRS = 2
# Boxes of lower scores aren't drawn, as MMDetection's visualizer does it.
_PROBABLE = 0.3
# A network whose loss is more than this share of the loss of guessing is too
# young: it ranks scenes that it hasn't learned before wrong labels.
_YOUNG = 0.5
# Of a card: columns of what is known of images, the first ranks.
_FIGURES = dict(
    loss_pixels='loss', average='average score', score='last score')


@dataclass
class Card:
    """An image in the gallery: its number in the whole data set, its path
    below the folder of all, and its name in a review; names and values of what
    is known of it, first of what ranks it; its rank from 1; width and height
    of its pictures, and their names and data URIs, first of the image and then
    of layers over it; its labels and predictions in words; the class that is
    labelled and the one that is predicted; and why pictures are missing."""

    number: int
    path: Optional[str]
    name: str
    figures: List[Tuple[str, float]]
    rank: int
    visits: int
    pruned: int
    size: Tuple[int, int] = (0, 0)
    pictures: List[Tuple[str, str]] = field(default_factory=list)
    classes: List[Tuple[str, str]] = field(default_factory=list)
    pair: str = ''
    note: str = ''


@dataclass
class Gallery:
    """The images at both ends of a ranking, the outermost first. None is in
    both.

    Args:
        folder (str): The folder that all of them have in common.
        classes (list[tuple[str, list[int]]]): Name and RGB colour of each
            class that pixels may have.
        young (str): That the network is too young for the ranking, or nothing.
        notes (list[str]): Sentences on what is missing and why.
    """

    highest: List[Card] = field(default_factory=list)
    lowest: List[Card] = field(default_factory=list)
    folder: str = ''
    classes: List[Tuple[str, List[int]]] = field(default_factory=list)
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
    paths, as index their numbers in the whole data set and, with
    ``by_losses``, the pixel losses of their predictions, which rank them then.
    Images whose path or number is ``judged`` aren't shown.

    Raises:
        Refusal: If the images can't be ranked or found.
    """
    gallery, images = Gallery(), checkpoint.images
    assert images is not None
    reader = _open_reader(config, checkpoint, gallery.notes)
    predictor = None
    if reader is not None and predictions and (count or by_losses):
        predictor = _open_predictor(config, checkpoint, gallery.notes)
    if by_losses:
        gallery.young = _add_losses(images, reader, predictor, gallery.notes)
    order = ranked(images)
    ranks = {number: rank for rank, number in enumerate(order, 1)}
    if judged:
        order = _not_judged(order, images, judged, gallery.notes)
    highest = order[:count]
    lowest = order[len(highest):][-count:][::-1] if count else []
    # A list has either paths or numbers, and an image once.
    by_path = 'path' in images and images['path'].nunique() == len(images)
    cards = [_card(images, n, ranks[n], by_path) for n in highest + lowest]
    gallery.highest, gallery.lowest = cards[:count], cards[count:]
    gallery.folder = _shorten_paths(cards)
    if reader is not None:
        for card in cards:
            _add_pictures(card, reader, predictor, side_of(len(cards)))
        if any(len(card.pictures) > 1 for card in cards):
            gallery.classes = [*zip(reader.classes, reader.palette.tolist())]
    return gallery


def _open_reader(config: Config, checkpoint: Checkpoint,
                 notes: List[str]) -> Optional[TrainingImages]:
    images = checkpoint.images
    assert images is not None
    try:
        reader = TrainingImages(config, len(images),
                                checkpoint.images_checksum)
    except CannotShow as error:
        notes.append(
            'Images have their numbers in the training, no paths or pictures, '
            f'and take no verdicts, because of the data set: {error}.')
        return None
    paths = reader.paths()
    images['path'] = pd.Series(paths, dtype=object)
    images.index = pd.Index(reader.numbers)
    if any(paths):
        return reader
    notes.append('Images have numbers instead of paths: the data set has no '
                 'files.')
    return reader if reader.has_pixels else None


def _not_judged(order: List[int], images: pd.DataFrame, judged: Set[str],
                notes: List[str]) -> List[int]:
    if 'path' not in images:
        raise Refusal(f'--review finds no images. {" ".join(notes)}')
    left = [n for n in order if judged.isdisjoint((images['path'][n], str(n)))]
    notes.append(
        f'{len(order) - len(left)} of {len(judged)} judged images are '
        'in the ranking, and aren\'t shown again.')
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
        losses, reason, (mean, guess) = losses_of_images(reader, predictor)
    num_unknown = np.isnan(losses).sum()
    if num_unknown == len(losses):
        raise Refusal('The images can\'t be ranked by pixels, as there '
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


def _card(images: pd.DataFrame, number: int, rank: int, by_path: bool) -> Card:
    known = {name: column[number] for name, column in images.items()}
    figures = [(title, known[name]) for name, title in _FIGURES.items()
               if name in known]
    path = known.get('path')
    name = path if path and by_path else str(number)
    return Card(number, path, name, figures, rank, known['visits'],
                known['pruned'])


def _add_pictures(card: Card, reader: TrainingImages,
                  predict: Optional[Predictor], side: int) -> None:
    try:
        for name, layer in _layers(card, reader, predict):
            card.pictures.append((name, to_uri(layer, side)))
    except CannotShow as error:
        card.note = f'No {"prediction" if card.pictures else "picture"}: ' \
                    f'{error}.'


def _layers(card: Card, reader: TrainingImages,
            predict: Optional[Predictor]) -> Iterator[_Layer]:
    """The image, and what is labelled and predicted. What can't be drawn is
    added to the card in words."""
    results = reader.read(card.number)
    image, labels = results['img'], results.get('gt_seg_map')
    card.size = image.shape[1], image.shape[0]
    yield 'image', image
    # Of data sets of MMDetection.
    boxes = [
        each for each in results.get('instances') or []
        if np.size(each.get('bbox')) == 4
    ]
    if labels is not None:
        yield 'labels', class_layer(labels, reader.palette)
    elif boxes:
        yield _boxes(card, reader, 'labels', [each['bbox'] for each in boxes],
                     [each.get('bbox_label', 0) for each in boxes])
    label = results.get('gt_label')
    if label is not None:
        card.classes.append(('class', reader.names(label)))
    if predict is None:
        return
    sample = predict(reader.info(card.number))
    if 'pred_sem_seg' in sample:
        yield from _pixels(card, reader, sample, labels)
    elif 'pred_label' in sample:
        _add_class(card, reader, sample, label)
    elif 'bboxes' in sample.get('pred_instances', {}):
        found = sample.pred_instances
        found = found[found.scores >= _PROBABLE]
        yield _boxes(card, reader, 'prediction', found.bboxes.tolist(),
                     found.labels.tolist())


def _boxes(card: Card, reader: TrainingImages, name: str, boxes: List[list],
           labels: List[int]) -> _Layer:
    names = reader.names(sorted(set(labels)))
    card.classes.append((f'{name}:', names or 'none'))
    return name, box_layer(card.size[::-1], boxes, labels, reader.palette)


def _pixels(card: Card, reader: TrainingImages, sample: Any,
            labels: Optional[np.ndarray]) -> Iterator[_Layer]:
    """What is predicted of pixels, their loss, and where the prediction
    differs from the labels."""
    predicted = sample.pred_sem_seg.data[0].cpu().numpy()
    layer = class_layer(predicted, reader.palette)
    yield 'prediction', layer
    if labels is None:
        return
    losses = pixel_losses(sample, labels).cpu().numpy()
    yield 'loss', heat_layer(losses)
    for label, other, share in confusions(labels, predicted)[:_PAIRS]:
        known, seen = reader.names(label), reader.names(other)
        card.pair = card.pair or f'{known}, {seen}'
        card.classes.append((f'labelled {known}, predicted {seen}:',
                             f'{100 * share:.0f} % of the pixels'))
    differs = (labels != predicted) & (labels != IGNORED)
    yield 'differences', layer * differs[..., None]


def _add_class(card: Card, reader: TrainingImages, sample: Any,
               label: Any) -> None:
    predicted = reader.names(sample.pred_label.cpu())
    if label is not None and reader.names(label) != predicted:
        card.pair = f'{reader.names(label)}, {predicted}'
    if 'pred_score' in sample and sample.pred_label.numel() == 1:
        probability = sample.pred_score[sample.pred_label].item()
        predicted += f', {100 * probability:.0f} %'
    card.classes.append(('predicted', predicted))


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
