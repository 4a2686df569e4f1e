# Copyright (c) mmib contributors. All rights reserved.
"""Pictures of the images at both ends of a ranking."""
import os.path as osp
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import numpy as np
import pandas as pd
from mmengine.config import Config
from mmengine.device import get_device
from torch import Tensor

from ..errors import Refusal
from .boxes import KINDS, Boxes, Suspect
from .images import CannotShow, DatasetImages
from .layers import (box_layer, class_layer, confusions, heat_layer, side_of,
                     to_uri)
from .masks import IGNORED
from .predictions import Predictor, compare, measure
from .rankings import DEFAULTS, RANKINGS, largest_region

# Name of a layer, and the layer.
_Layer = Tuple[str, np.ndarray]
# How many confused pairs of classes a card has.
_PAIRS = 2
# Boxes of lower scores aren't drawn, as MMDetection's visualizer does it.
_PROBABLE = 0.3
# Of the boxes that rank an image, how many its card has in words.
_LISTED = 5
# RGB colours of labels and predictions where both are drawn.
BOX_COLOURS = ((0, 114, 178), (230, 159, 0))
# Columns of the table of boxes.
_BOX_COLUMNS = ('image', 'path', 'left', 'top', 'right', 'bottom', 'label',
                'predicted', 'confidence', 'iou', 'kind')
# Columns of what is known of images, and their titles on a card.
_FIGURES = dict(
    score='average score',
    last_score='last score',
    visits='visits',
    pruned='times pruned')


@dataclass
class Card:
    """An image in the gallery: its number in the whole dataset, its path
    below the folder of all, and its name in a review; names and values of what
    is known of it, first of what ranks it; its rank from 1; width and height
    of its pictures, and their names and data URIs, first of the image and then
    of layers over it; its labels and predictions in words; the class that is
    labelled and the one that is predicted; the predicted class where it is
    another one than the label; and why pictures are missing."""

    number: int
    path: Optional[str]
    name: str
    figures: List[Tuple[str, float]]
    rank: int
    size: Tuple[int, int] = (0, 0)
    pictures: List[Tuple[str, str]] = field(default_factory=list)
    classes: List[Tuple[str, str]] = field(default_factory=list)
    pair: str = ''
    predicted: str = ''
    note: str = ''


@dataclass
class Gallery:
    """The images at both ends of a ranking, the outermost first. None is in
    both.

    Args:
        images (pd.DataFrame): What is known of all images, by number in the
            whole dataset.
        highest (list[Card]): Those to look at.
        lowest (list[Card]): Those to compare them with.
        num_ranked (int): How many images have a rank.
        unlabelled (list[str]): Paths or numbers of images without any labelled
            pixel, which have none.
        takes_verdicts (bool): Whether a training can leave out by name what
            is judged here.
        folder (str): The folder that all cards have in common.
        classes (list[tuple[str, list[int]]]): Name and RGB colour of each
            class that pixels may have.
        labels (list[str]): Names of the classes of which each image has one.
        doubt (str): Why the scores may tell little, or nothing.
        notes (list[str]): Sentences on what is missing and why.
        checksum (int, optional): Of the images and their order, where they
            aren't those of a training.
        boxes (pd.DataFrame, optional): Boxes that may be wrong, of detectors
            that rank their images.
    """

    images: pd.DataFrame
    highest: List[Card] = field(default_factory=list)
    lowest: List[Card] = field(default_factory=list)
    num_ranked: int = 0
    unlabelled: List[str] = field(default_factory=list)
    takes_verdicts: bool = False
    folder: str = ''
    classes: List[Tuple[str, List[int]]] = field(default_factory=list)
    labels: List[str] = field(default_factory=list)
    doubt: str = ''
    notes: List[str] = field(default_factory=list)
    checksum: Optional[int] = None
    boxes: Optional[pd.DataFrame] = None


def take_pictures(config: Config,
                  images: pd.DataFrame,
                  weights: Dict[str, Tensor],
                  count: int,
                  checksum: Optional[int] = None,
                  predictions: bool = True,
                  judged: Optional[Set[str]] = None) -> Gallery:
    """Show the images with the highest and the lowest scores of a training, as
    far as possible: what is missing is told in notes.

    Args:
        config (Config): Of the dataset and the network. It is code, and is
            run.
        images (pd.DataFrame): What the training has noted of each image, by
            its number in the dataset of the config.
        weights (dict[str, Tensor]): Of the network.
        count (int): How many images to show of each end.
        checksum (int, optional): Of the images. Others aren't shown. Defaults
            to None.
        predictions (bool): Whether to predict these images. Defaults to True.
        judged (set[str], optional): Paths or numbers of images that aren't
            shown. Defaults to None.

    Raises:
        Refusal: If images were judged, and the images can't be found.
    """
    gallery, predictor = Gallery(images.copy()), None
    reader = _open_reader(config, gallery.images, checksum, gallery.notes)
    if reader is not None and predictions and count:
        try:
            predictor = Predictor(config, weights, get_device())
        except CannotShow as error:
            gallery.notes.append(f'There are no predictions: {error}.')
    return _show(gallery, 'score', count, reader, predictor, judged)


def rank_images(config: Config,
                weights: Dict[str, Tensor],
                split: str,
                rank_by: Optional[str],
                count: int,
                scores: Optional[pd.DataFrame] = None,
                checksum: Optional[int] = None,
                judged: Optional[Set[str]] = None) -> Tuple[Gallery, str]:
    """Rank the images of any dataset of a config by what a network says of
    them, and show both ends.

    Args:
        config (Config): Of the dataset and the network. It is code, and is
            run.
        weights (dict[str, Tensor]): Of the network.
        split (str): ``'train'``, ``'val'`` or ``'test'``.
        rank_by (str, optional): Name of the ranking. If None, the first of
            :data:`~mmib.labels.rankings.DEFAULTS` that there is.
        count (int): How many images to show of each end.
        scores (pd.DataFrame, optional): What a training has noted of each
            image. Left out where the images are others.
        checksum (int, optional): Of the images of ``scores``.
        judged (set[str], optional): Paths or numbers of images that aren't
            shown. Defaults to None.

    Returns:
        tuple[Gallery, str]: The images, and the name of the ranking.

    Raises:
        Refusal: If the images can't be ranked.
    """
    try:
        reader = DatasetImages(config, split)
    except CannotShow as error:
        raise Refusal(f'The images of `{split}_dataloader.dataset` can\'t be '
                      f'ranked: {error}.') from error
    other = scores is not None and reader.why_not(len(scores), checksum)
    try:
        predictor = Predictor(config, weights, get_device())
    except CannotShow as error:
        raise Refusal(f'The checkpoint can\'t be used with this config: '
                      f'{error}.') from error
    if scores is None or other:
        scores = pd.DataFrame(index=range(len(reader.numbers)))
    gallery = Gallery(scores, checksum=reader.checksum)
    if other:
        gallery.notes.append(f'There are no scores of the training, as {other}'
                             '.')
    _add_paths(gallery.images, reader)
    _measure(gallery, reader, predictor, config.get('val_dataloader') or {})
    found = [name for name in RANKINGS if name in gallery.images]
    if rank_by is not None and rank_by not in found:
        raise Refusal(f'There is no ranking by {rank_by} here: give '
                      f'--rank-by {" or ".join(found)}.')
    rank_by = rank_by or next(name for name in DEFAULTS if name in found)
    return _show(gallery, rank_by, count, reader, predictor, judged), rank_by


def _show(gallery: Gallery, rank_by: str, count: int,
          reader: Optional[DatasetImages], predictor: Optional[Predictor],
          judged: Optional[Set[str]]) -> Gallery:
    """Fill a gallery whose table of images has the column of the ranking, and
    sort the table by rank."""
    images = gallery.images
    if reader is not None and not RANKINGS[rank_by].of:
        unlabelled = _unlabelled(images, rank_by, reader)
        images.loc[unlabelled, rank_by] = np.nan
        _name_unlabelled(gallery, unlabelled)
    images.sort_values(rank_by, ascending=False, kind='stable', inplace=True)
    gallery.num_ranked = int(images[rank_by].notna().sum())
    order = images.index[:gallery.num_ranked].tolist()
    ranks = {number: rank for rank, number in enumerate(order, 1)}
    images['rank'] = pd.Series(ranks, dtype='Int64')
    if judged:
        order = _not_judged(order, images, judged, gallery.notes)
    highest = order[:count]
    lowest = order[len(highest):][-count:][::-1] if count else []
    # A list has either paths or numbers, and an image once.
    by_path = 'path' in images and images['path'].nunique() == len(images)
    cards = [_card(images, rank_by, n, by_path) for n in highest + lowest]
    gallery.highest, gallery.lowest = cards[:count], cards[count:]
    gallery.takes_verdicts = bool(cards) and 'path' in images
    gallery.folder = _shorten_paths(cards)
    if reader is not None:
        for card in cards:
            _add_pictures(card, reader, predictor, rank_by,
                          side_of(len(cards)))
        if cards and reader.has_one_class:
            # --relabel couldn't tell classes of one name.
            gallery.labels = [
                name for name in reader.classes
                if reader.classes.count(name) == 1
            ]
        if any(len(card.pictures) > 1 for card in cards):
            gallery.classes = [*zip(reader.classes, reader.palette.tolist())]
    return gallery


def _open_reader(config: Config, images: pd.DataFrame, checksum: Optional[int],
                 notes: List[str]) -> Optional[DatasetImages]:
    try:
        reader = DatasetImages(config)
        other = reader.why_not(len(images), checksum)
        if other:
            raise CannotShow(other)
    except CannotShow as error:
        notes.append(
            'Images have their numbers in the training, no paths or pictures, '
            f'and take no verdicts, because of the dataset: {error}.')
        return None
    _add_paths(images, reader)
    if images['path'].any():
        return reader
    notes.append('Images have numbers instead of paths: the dataset has no '
                 'files.')
    return reader if reader.has_pixels else None


def _add_paths(images: pd.DataFrame, reader: DatasetImages) -> None:
    images['path'] = pd.Series(reader.paths(), dtype=object)
    images.index = pd.Index(reader.numbers)


def _unlabelled(images: pd.DataFrame, rank_by: str,
                reader: DatasetImages) -> List[int]:
    """Numbers of the images of which no pixel has a label, and the loss in a
    training is 0."""
    found = []
    for number in images.index[images[rank_by] == 0]:
        try:
            labels = reader.read(number).get('gt_seg_map')
        except CannotShow:
            continue
        if labels is None:
            break
        if (labels == IGNORED).all():
            found.append(number)
    return found


def _name_unlabelled(gallery: Gallery, numbers: List[int]) -> None:
    gallery.unlabelled = [
        gallery.images['path'][number] or str(number) for number in numbers
    ]


def _not_judged(order: List[int], images: pd.DataFrame, judged: Set[str],
                notes: List[str]) -> List[int]:
    if 'path' not in images:
        raise Refusal(f'--review finds no images. {" ".join(notes)}')
    left = [n for n in order if judged.isdisjoint((images['path'][n], str(n)))]
    notes.append(
        f'{len(order) - len(left)} of {len(judged)} judged images are '
        'in the ranking, and aren\'t shown again.')
    return left


def _measure(gallery: Gallery, reader: DatasetImages, predictor: Predictor,
             loader: dict) -> None:
    """Make the columns of rankings by what the network says of all images.

    Args:
        loader (dict): The data loader of a test, whose batch size and workers
            are taken.
    """
    measured = measure(reader, predictor,
                       loader.get('batch_size') or 1,
                       loader.get('num_workers') or 0)
    num_images = len(gallery.images)
    if not measured.columns:
        raise Refusal(
            'The images can\'t be ranked: '
            f'{measured.reason or "nothing was predicted before a stop"}.')
    for name, column in measured.columns.items():
        gallery.images[name] = column
    if 'missing' in measured.columns:
        gallery.boxes = _table_of(measured.suspects, gallery.images, reader)
    _name_unlabelled(gallery, measured.unlabelled)
    unknown = (
        np.isnan(column[:measured.num_seen]).sum() - len(measured.unlabelled))
    if measured.num_seen < num_images:
        gallery.notes.append(f'Stopped after {measured.num_seen} of '
                             f'{num_images} images: others have no rank.')
    if unknown and measured.reason:
        gallery.notes.append(
            f'{unknown} of {measured.num_seen} images aren\'t '
            f'ranked: {measured.reason}.')
    if measured.unpredicted:
        classes = ', '.join(
            f'{reader.names(label)} ({count} image{"s" * (count > 1)})'
            for label, count in measured.unpredicted.items())
        sure = ' with confidence' * ('missing' in measured.columns)
        gallery.notes.append(
            f'The network predicts these labelled classes in no image{sure}: '
            f'{classes}. A ranking can\'t tell their right labels from wrong '
            'ones: train longer, or on more of these images, and rank again.')


def _table_of(suspects: List[Tuple[int, Suspect]], images: pd.DataFrame,
              reader: DatasetImages) -> pd.DataFrame:
    """The boxes that may be wrong, by number of the image."""
    rows = [(number, images['path'][number], *each.box,
             _name(reader, each.label), _name(reader, each.predicted),
             each.confidence, each.iou, each.kind)
            for number, each in suspects]
    return pd.DataFrame(rows, columns=_BOX_COLUMNS)


def _name(reader: DatasetImages, label: Optional[int]) -> Optional[str]:
    return None if label is None else reader.names(label)


def _card(images: pd.DataFrame, rank_by: str, number: int,
          by_path: bool) -> Card:
    titles = {rank_by: RANKINGS[rank_by].title, **_FIGURES}
    if 'score' in images and images['score'].equals(images['last_score']):
        # As where all scores are moving averages.
        del titles['last_score']
    # Where nothing was pruned, that isn't told of each image.
    figures = [(title, images[name][number]) for name, title in titles.items()
               if name == rank_by or name in images and images[name].any()]
    path = images['path'][number] if 'path' in images else None
    name = path if path and by_path else str(number)
    return Card(number, path, name, figures, int(images['rank'][number]))


def _add_pictures(card: Card, reader: DatasetImages,
                  predict: Optional[Predictor], rank_by: str,
                  side: int) -> None:
    try:
        for name, layer in _layers(card, reader, predict, rank_by):
            card.pictures.append((name, to_uri(layer, side)))
    except CannotShow as error:
        card.note = f'No {"prediction" if card.pictures else "picture"}: ' \
                    f'{error}.'


def _layers(card: Card, reader: DatasetImages, predict: Optional[Predictor],
            rank_by: str) -> Iterator[_Layer]:
    """The image, and what is labelled and predicted. What can't be drawn is
    added to the card in words."""
    results = reader.read(card.number)
    image, labels = results['img'], results.get('gt_seg_map')
    card.size = image.shape[1], image.shape[0]
    yield 'image', image
    # Of datasets of MMDetection.
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
        if rank_by in KINDS:
            compared = compare(sample, results)
            yield _suspects(card, reader, compared['boxes'], compared[rank_by])


def _boxes(card: Card, reader: DatasetImages, name: str, boxes: List[list],
           labels: List[int]) -> _Layer:
    names = reader.names(sorted(set(labels)))
    card.classes.append((f'{name}:', names or 'none'))
    return name, box_layer(card.size[::-1], boxes, labels, reader.palette)


def _suspects(card: Card, reader: DatasetImages, boxes: Boxes,
              suspects: List[Suspect]) -> _Layer:
    """Labels and predictions in two colours, and thick those that rank."""
    suspects = sorted(suspects, key=lambda each: -each.weight)
    for each in suspects[:_LISTED]:
        said = [
            f'{is_what} {_name(reader, label)}'
            for is_what, label in (('labelled', each.label), ('predicted',
                                                              each.predicted))
            if label is not None
        ]
        if each.predicted is not None:
            said.append(f'confidence {each.confidence:.2f}')
        said.append(f'IoU {each.iou:.2f}')
        card.classes.append(
            (f'{each.kind.replace("_", " ")}:', ', '.join(said)))
    if len(suspects) > _LISTED:
        card.classes.append(('and', f'{len(suspects) - _LISTED} more'))
    shown = boxes.predicted[boxes.confidences >= _PROBABLE]
    drawn = [*shown, *boxes.labelled, *(each.box for each in suspects)]
    colours = [1] * len(shown) + [0] * len(boxes.labelled) + [
        int(each.label is None) for each in suspects
    ]
    return 'boxes', box_layer(card.size[::-1], drawn, colours,
                              np.array(BOX_COLOURS), len(suspects))


def _pixels(card: Card, reader: DatasetImages, sample: Any,
            labels: Optional[np.ndarray]) -> Iterator[_Layer]:
    """What is predicted of pixels, their loss, and where the prediction
    differs from the labels."""
    predicted = sample.pred_sem_seg.data[0].cpu().numpy()
    layer = class_layer(predicted, reader.palette)
    yield 'prediction', layer
    if labels is None:
        return
    compared = compare(sample, dict(gt_seg_map=labels))
    yield 'loss', heat_layer(compared['losses'])
    for label, other, share in confusions(labels, predicted)[:_PAIRS]:
        known, seen = reader.names(label), reader.names(other)
        card.pair = card.pair or f'{known}, {seen}'
        card.classes.append((f'labelled {known}, predicted {seen}:',
                             f'{100 * share:.0f} % of the pixels'))
    differs = (labels != predicted) & (labels != IGNORED)
    yield 'differences', layer * differs[..., None]
    region = largest_region(compared['gaps'])
    if region.any():
        yield 'region', layer * region[..., None]


def _add_class(card: Card, reader: DatasetImages, sample: Any,
               label: Any) -> None:
    predicted = reader.names(sample.pred_label.cpu())
    if label is not None and reader.names(label) != predicted:
        card.pair = f'{reader.names(label)}, {predicted}'
        card.predicted = predicted
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
