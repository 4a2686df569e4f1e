# Copyright (c) mmib contributors. All rights reserved.
"""Cards: an image with its labels and the predictions of a network."""
from dataclasses import dataclass, field
from typing import Any, Iterator, List, Optional, Tuple

import numpy as np

from ..errors import Refusal
from .boxes import KINDS, Boxes, Suspect
from .images import CannotShow, DatasetImages
from .layers import box_layer, class_layer, confusions, heat_layer, to_uri
from .masks import IGNORED
from .predictions import Predictor, compare, labelled_boxes
from .rankings import largest_region

# The name of a layer, and the layer.
_Layer = Tuple[str, np.ndarray]
# How many confused pairs of classes a card lists.
_PAIRS = 2
# Boxes of lower scores aren't drawn, as in MMDetection's visualizer.
_PROBABLE = 0.3
# How many of the boxes that rank an image its card lists.
_LISTED = 5
# RGB colours of labels and predictions where both are drawn.
BOX_COLOURS = ((0, 114, 178), (230, 159, 0))


@dataclass
class Card:
    """An image in the gallery.

    Args:
        number (int): Number of the image in the whole dataset.
        path (str, optional): Path of the image below the folder of all cards.
        name (str): Name of the image in a review.
        figures (list[tuple[str, float]]): Titles and values of the figures of
            the image. The first one ranks it.
        rank (int): Rank of the image, from 1.
        size (tuple[int, int]): Width and height of the pictures.
        pictures (list[tuple[str, str]]): Names and data URIs of the image and
            of the layers to draw over it.
        classes (list[tuple[str, str]]): Labels and predictions in words.
        pair (str): The labelled and the predicted class, if they differ.
        predicted (str): The predicted class, if it isn't the label.
        note (str): Why pictures are missing.
    """

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


def add_pictures(card: Card, reader: DatasetImages,
                 predict: Optional[Predictor], rank_by: str, limit: float,
                 side: int) -> None:
    """Add the pictures of an image, or a note that says why one is missing.

    Args:
        card (Card): The card of the image.
        reader (DatasetImages): The images of the dataset.
        predict (Predictor, optional): The network. If None, nothing is
            predicted.
        rank_by (str): Name of the ranking.
        limit (float): See :class:`~mmib.labels.boxes.Boxes`.
        side (int): Longest side of the pictures.
    """
    try:
        for name, layer in _layers(card, reader, predict, rank_by, limit):
            card.pictures.append((name, to_uri(layer, side)))
    except (CannotShow, Refusal) as error:
        what = 'prediction' if card.pictures else 'picture'
        card.note = f'No {what}: {str(error).rstrip(".")}.'


def _layers(card: Card, reader: DatasetImages, predict: Optional[Predictor],
            rank_by: str, limit: float) -> Iterator[_Layer]:
    """Draw the image, its labels and its prediction. Classes that can't be
    drawn are added to the card in words."""
    results = reader.read(card.number)
    image, labels = results['img'], results.get('gt_seg_map')
    card.size = image.shape[1], image.shape[0]
    yield 'image', image
    boxes = labelled_boxes(results)  # In datasets of MMDetection.
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
        yield from _pixels(card, reader, sample, results)
    elif 'pred_label' in sample:
        _add_class(card, reader, sample, label)
    elif 'bboxes' in sample.get('pred_instances', {}):
        found = sample.pred_instances
        found = found[found.scores >= _PROBABLE]
        yield _boxes(card, reader, 'prediction', found.bboxes.tolist(),
                     found.labels.tolist())
        if rank_by in KINDS:
            compared = compare(sample, results)['boxes']._replace(limit=limit)
            yield _suspects(card, reader, compared, KINDS[rank_by](compared))


def _boxes(card: Card, reader: DatasetImages, name: str, boxes: List[list],
           labels: List[int]) -> _Layer:
    names = reader.names(sorted(set(labels)))
    card.classes.append((f'{name}:', names or 'none'))
    return name, box_layer(card.size[::-1], boxes, labels, reader.palette)


def _suspects(card: Card, reader: DatasetImages, boxes: Boxes,
              suspects: List[Suspect]) -> _Layer:
    """Draw labels and predictions in two colours, with thick lines where they
    rank the image."""
    suspects = sorted(suspects, key=lambda each: -each.weight)
    for each in suspects[:_LISTED]:
        said = [
            f'{is_what} {reader.names(label)}'
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
            results: dict) -> Iterator[_Layer]:
    """Draw the prediction, the loss, and where prediction and labels
    differ."""
    labels = results.get('gt_seg_map')
    predicted = sample.pred_sem_seg.data[0].cpu().numpy()
    layer = class_layer(predicted, reader.palette)
    yield 'prediction', layer
    if labels is None:
        return
    compared = compare(sample, results)
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
