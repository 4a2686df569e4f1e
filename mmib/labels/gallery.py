# Copyright (c) mmib contributors. All rights reserved.
"""Pictures of the images at both ends of a ranking."""
import os.path as osp
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple, Union

import numpy as np
import pandas as pd
from mmengine.config import Config
from mmengine.device import get_device

from ..errors import Refusal
from ..report.checkpoint import Checkpoint
from .boxes import KINDS, Boxes, Suspect
from .images import CannotShow, DatasetImages
from .layers import (box_layer, class_layer, confusions, heat_layer, side_of,
                     to_uri)
from .lists import names_of
from .masks import IGNORED
from .predictions import Predictor, compare, compare_all, labelled_boxes
from .rankings import DEFAULTS, RANKINGS, largest_region

# Name of a layer, and the layer.
_Layer = Tuple[str, np.ndarray]
# How many confused pairs of classes a card has.
_PAIRS = 2
# Boxes of lower scores aren't drawn, as in MMDetection's visualizer.
_PROBABLE = 0.3
# How many of the boxes that rank an image its card has in words.
_LISTED = 5
# RGB colours of labels and predictions where both are drawn.
BOX_COLOURS = ((0, 114, 178), (230, 159, 0))
# Columns of the table of boxes.
_BOX_COLUMNS = ('image', 'path', 'left', 'top', 'right', 'bottom', 'label',
                'predicted', 'confidence', 'iou', 'kind')
# Columns of the table of images that a card has, and their titles.
_FIGURES = dict(
    score='average score',
    last_score='last score',
    visits='visits',
    pruned='times pruned')


@dataclass
class Card:
    """An image in the gallery.

    Args:
        number (int): Its number in the whole dataset.
        path (str, optional): Its path below the folder of all cards.
        name (str): Its name in a review.
        figures (list[tuple[str, float]]): Names and values of what is known of
            it, first of what ranks it.
        rank (int): Its rank, from 1.
        size (tuple[int, int]): Width and height of its pictures.
        pictures (list[tuple[str, str]]): Names and data URIs, first of the
            image and then of layers over it.
        classes (list[tuple[str, str]]): Labels and predictions in words.
        pair (str): The labelled and the predicted class where they differ.
        predicted (str): The predicted class where it isn't the label.
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


@dataclass
class Gallery:
    """The images at both ends of a ranking, the outermost first. None is in
    both.

    Args:
        images (pd.DataFrame): What is known of all images, by number in the
            whole dataset.
        network (str): Name of the checkpoint.
        split (str): Whose images these are: ``'train'``, the default,
            ``'val'`` or ``'test'``.
        rank_by (str): Name of the ranking. Defaults to ``'score'``.
        highest (list[Card]): Those to look at.
        lowest (list[Card]): Those to compare them with.
        num_ranked (int): How many images have a rank.
        unlabelled (list[str]): Paths or numbers of images without any labelled
            pixel, which have none.
        folder (str): The folder that all cards have in common.
        classes (list[tuple[str, list[int]]]): Name and RGB colour of each
            class that pixels may have.
        labels (list[str]): Names of the classes of which each image has one.
        notes (list[str]): Sentences on what is missing and why.
        checksum (int, optional): Of the images and their order, where they
            aren't those of a run.
        boxes (pd.DataFrame, optional): Boxes that may be wrong, of detectors
            that rank their images.
    """

    images: pd.DataFrame
    network: str
    split: str = 'train'
    rank_by: str = 'score'
    highest: List[Card] = field(default_factory=list)
    lowest: List[Card] = field(default_factory=list)
    num_ranked: int = 0
    unlabelled: List[str] = field(default_factory=list)
    folder: str = ''
    classes: List[Tuple[str, List[int]]] = field(default_factory=list)
    labels: List[str] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    checksum: Optional[int] = None
    boxes: Optional[pd.DataFrame] = None

    @property
    def takes_verdicts(self) -> bool:
        """bool: Whether a run can leave out by name what is judged."""
        return bool(self.highest) and 'path' in self.images


def take_pictures(config: Config,
                  checkpoint: Checkpoint,
                  count: int,
                  predictions: bool = True,
                  judged: Optional[Set[str]] = None) -> Gallery:
    """Show the images with the highest and the lowest scores of a run, as
    far as possible. Notes say what is missing.

    Args:
        config (Config): Of the dataset and the network. It is code, and is
            run.
        checkpoint (Checkpoint): What the run has noted of each image, and
            the network.
        count (int): How many images to show of each end.
        predictions (bool): Whether to predict these images. Defaults to True.
        judged (set[str], optional): Names of images that aren't shown.
            Defaults to None.

    Raises:
        Refusal: If images were judged, and the images can't be found.
    """
    assert checkpoint.images is not None
    gallery = Gallery(checkpoint.images.copy(), checkpoint.name)
    reader, predictor = _open_reader(config, gallery, checkpoint), None
    if reader is not None:
        _add_unlabelled(gallery, _without_labels(gallery.images, reader))
        if predictions and count:
            try:
                predictor = Predictor(config, checkpoint.weights, get_device())
            except CannotShow as error:
                gallery.notes.append(f'There are no predictions: {error}.')
    return _show(gallery, count, reader, predictor, judged)


def rank_images(config: Config,
                checkpoint: Checkpoint,
                split: str,
                rank_by: Optional[str],
                count: int,
                judged: Optional[Set[str]] = None) -> Gallery:
    """Rank the images of any dataset of a config by what a network predicts,
    and show both ends. Training images have the scores of the run too, if
    the checkpoint has scores of these images.

    Args:
        config (Config): Of the dataset and the network. It is code, and is
            run.
        checkpoint (Checkpoint): The network.
        split (str): ``'train'``, ``'val'`` or ``'test'``.
        rank_by (str, optional): Name of the ranking. If None, the first of
            :data:`~mmib.labels.rankings.DEFAULTS` that there is.
        count (int): How many images to show of each end.
        judged (set[str], optional): Names of images that aren't shown.
            Defaults to None.

    Raises:
        Refusal: If the images can't be ranked.
    """
    problem = f'The images of `{split}_dataloader.dataset` can\'t be ranked'
    try:
        reader = DatasetImages(config, split)
        problem = 'The checkpoint can\'t be used with this config'
        predictor = Predictor(config, checkpoint.weights, get_device())
    except CannotShow as error:
        raise Refusal(f'{problem}: {error}.') from error
    images = pd.DataFrame(index=range(len(reader.numbers)))
    gallery = Gallery(images, checkpoint.name, split, checksum=reader.checksum)
    if checkpoint.images is not None and split == 'train':
        try:
            reader.check(checkpoint)
            gallery.images = checkpoint.images.copy()
        except CannotShow as error:
            gallery.notes.append('There are no scores of the run, because '
                                 f'{error}.')
    _add_paths(gallery.images, reader)
    loader = config.get('val_dataloader') or {}
    _measure(gallery, reader, compare_all(reader, predictor, loader))
    found = [name for name in RANKINGS if name in gallery.images]
    if rank_by is not None and rank_by not in found:
        raise Refusal(f'There is no ranking by {rank_by} here: give '
                      f'--rank-by {" or ".join(found)}.')
    gallery.rank_by = rank_by or next(name
                                      for name in DEFAULTS if name in found)
    return _show(gallery, count, reader, predictor, judged)


def _open_reader(config: Config, gallery: Gallery,
                 checkpoint: Checkpoint) -> Optional[DatasetImages]:
    """Open the images of a run, if they are there."""
    try:
        reader = DatasetImages(config)
        reader.check(checkpoint)
    except CannotShow as error:
        gallery.notes.append(
            'Images have their numbers in the run, no paths or pictures, '
            f'and take no verdicts, because of the dataset: {error}.')
        return None
    _add_paths(gallery.images, reader)
    if gallery.images['path'].any():
        return reader
    gallery.notes.append('Images have numbers instead of paths: the dataset '
                         'has no files.')
    return reader if reader.has_pixels else None


def _add_paths(images: pd.DataFrame, reader: DatasetImages) -> None:
    images['path'] = pd.Series(reader.paths(), dtype=object)
    images.index = pd.Index(reader.numbers)


def _without_labels(images: pd.DataFrame, reader: DatasetImages) -> List[int]:
    """The numbers of the images without a labelled pixel, whose loss in a run
    is 0."""
    found = []
    for number in images.index[images['score'] == 0]:
        try:
            labels = reader.read(number).get('gt_seg_map')
        except CannotShow:
            continue
        if labels is None:
            break
        if (labels == IGNORED).all():
            found.append(number)
    return found


def _add_unlabelled(gallery: Gallery, numbers: List[int]) -> None:
    """Name images without a label, and take their score away."""
    images = gallery.images
    if 'score' in images:
        images.loc[numbers, 'score'] = np.nan
    gallery.unlabelled = [images['path'][n] or str(n) for n in numbers]


def _measure(gallery: Gallery, reader: DatasetImages,
             compared: Iterator[Union[Dict[str, Any], str]]) -> None:
    """Make the columns of rankings by what the network predicts. Ctrl-C keeps
    what is there."""
    rows: List[Dict[str, float]] = []
    unlabelled, suspects, reason = [], [], ''
    labelled: Counter = Counter()
    predicted: Set[int] = set()
    try:
        for number, seen in zip(reader.numbers, compared):
            if isinstance(seen, str):
                reason, seen = seen, {}
            rows.append({
                name: ranking.of(seen[ranking.array])
                for name, ranking in RANKINGS.items()
                if ranking.of and ranking.array in seen
            })
            if np.isnan(seen.get('losses', 0)).all():
                unlabelled.append(number)
            suspects += [(number, each) for kind in KINDS
                         for each in seen.get(kind, ())]
            labelled.update(seen.get('labelled', ()))
            predicted.update(seen.get('predicted', ()))
    except KeyboardInterrupt:
        pass
    measured = pd.DataFrame(rows, reader.numbers[:len(rows)])
    if measured.empty:
        raise Refusal('The images can\'t be ranked: '
                      f'{reason or "nothing was predicted before a stop"}.')
    gallery.images = gallery.images.join(measured)
    _add_unlabelled(gallery, unlabelled)
    if 'missing' in measured:
        gallery.boxes = _table_of(suspects, gallery.images, reader)
    if len(rows) < len(gallery.images):
        gallery.notes.append(
            f'Stopped after {len(rows)} of {len(gallery.images)} images: '
            'others have no rank.')
    unknown = measured.isna().all(axis=1).sum() - len(unlabelled)
    if unknown and reason:
        gallery.notes.append(f'{unknown} of {len(rows)} images aren\'t '
                             f'ranked: {reason}.')
    unpredicted = ', '.join(
        f'{reader.names(label)} ({count} image{"s" * (count > 1)})'
        for label, count in labelled.most_common() if label not in predicted)
    if unpredicted:
        sure = ' with confidence' * ('missing' in measured)
        gallery.notes.append(
            f'The network predicts these labelled classes in no image{sure}: '
            f'{unpredicted}. A ranking can\'t distinguish their right labels '
            'from wrong ones: train longer, or on more of these images, and '
            'rank again.')


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


def _show(gallery: Gallery, count: int, reader: Optional[DatasetImages],
          predictor: Optional[Predictor],
          judged: Optional[Set[str]]) -> Gallery:
    """Fill a gallery whose table of images has the column of the ranking, and
    sort the table by rank."""
    rank_by = gallery.rank_by
    images = gallery.images = gallery.images.sort_values(
        rank_by, ascending=False, kind='stable')
    gallery.num_ranked = int(images[rank_by].notna().sum())
    order = images.index[:gallery.num_ranked].tolist()
    ranks = pd.Series(range(1, len(order) + 1), order, dtype='Int64')
    images['rank'] = ranks
    paths = images.get('path', [None])
    names = dict(zip(images.index, names_of([*paths], images.index)))
    if judged:
        if 'path' not in images:
            raise Refusal('--review finds no images. ' +
                          ' '.join(gallery.notes))
        # The numbers of a round before, where images shared a path there.
        left = [
            number for number in order
            if judged.isdisjoint((names[number], str(number)))
        ]
        gallery.notes.append(
            f'{len(order) - len(left)} of {len(judged)} judged images are '
            'in the ranking, and aren\'t shown again.')
        order = left
    highest = order[:count]
    lowest = order[len(highest):][-count:][::-1] if count else []
    cards = [
        Card(number, images['path'][number] if 'path' in images else None,
             names[number], _figures_of(images, rank_by, number),
             int(ranks[number])) for number in highest + lowest
    ]
    gallery.highest, gallery.lowest = cards[:count], cards[count:]
    gallery.folder = _shorten_paths(cards)
    if reader is not None:
        for card in cards:
            _add_pictures(card, reader, predictor, rank_by,
                          side_of(len(cards)))
        if cards and reader.has_one_class:
            # --relabel can't distinguish classes with the same name.
            gallery.labels = [
                name for name in reader.classes
                if reader.classes.count(name) == 1
            ]
        if any(len(card.pictures) > 1 for card in cards):
            gallery.classes = [*zip(reader.classes, reader.palette.tolist())]
    return gallery


def _figures_of(images: pd.DataFrame, rank_by: str,
                number: int) -> List[Tuple[str, float]]:
    titles = {rank_by: RANKINGS[rank_by].title, **_FIGURES}
    if 'score' in images and images['score'].equals(images['last_score']):
        # The scores of some policies are moving averages.
        del titles['last_score']
    # A card doesn't have what is 0 for all images.
    return [(title, images[name][number]) for name, title in titles.items()
            if name == rank_by or name in images and images[name].any()]


def _add_pictures(card: Card, reader: DatasetImages,
                  predict: Optional[Predictor], rank_by: str,
                  side: int) -> None:
    try:
        for name, layer in _layers(card, reader, predict, rank_by):
            card.pictures.append((name, to_uri(layer, side)))
    except (CannotShow, Refusal) as error:
        what = 'prediction' if card.pictures else 'picture'
        card.note = f'No {what}: {str(error).rstrip(".")}.'


def _layers(card: Card, reader: DatasetImages, predict: Optional[Predictor],
            rank_by: str) -> Iterator[_Layer]:
    """Draw the image, its labels and its prediction. Add to the card in words
    what can't be drawn."""
    results = reader.read(card.number)
    image, labels = results['img'], results.get('gt_seg_map')
    card.size = image.shape[1], image.shape[0]
    yield 'image', image
    boxes = labelled_boxes(results)  # Of datasets of MMDetection.
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
            compared = compare(sample, results)
            yield _suspects(card, reader, compared['boxes'], compared[rank_by])


def _boxes(card: Card, reader: DatasetImages, name: str, boxes: List[list],
           labels: List[int]) -> _Layer:
    names = reader.names(sorted(set(labels)))
    card.classes.append((f'{name}:', names or 'none'))
    return name, box_layer(card.size[::-1], boxes, labels, reader.palette)


def _suspects(card: Card, reader: DatasetImages, boxes: Boxes,
              suspects: List[Suspect]) -> _Layer:
    """Draw labels and predictions in two colours, thick those that rank."""
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
