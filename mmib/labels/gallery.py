# Copyright (c) mmib contributors. All rights reserved.
"""Rank the images of a dataset, and show both ends of the ranking."""
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
from .boxes import KINDS, Boxes, Suspect, limit_of, total
from .cards import Card, add_pictures
from .images import CannotShow, DatasetImages
from .layers import side_of
from .masks import IGNORED
from .predictions import Predictor, compare_all
from .rankings import DEFAULTS, RANKINGS

# Columns of the table of boxes.
_BOX_COLUMNS = ('image', 'path', 'left', 'top', 'right', 'bottom', 'label',
                'predicted', 'confidence', 'iou', 'kind')
# Columns of the table of images that a card shows, and their titles there.
_FIGURES = dict(
    score='average score',
    last_score='last score',
    visits='visits',
    pruned='times pruned')


@dataclass
class Gallery:
    """The images at both ends of a ranking, the outermost first. No image is
    at both ends.

    Args:
        images (pd.DataFrame): A row for each image, by its number in the whole
            dataset.
        network (str): Name of the checkpoint.
        split (str): The data loader that the images come from: ``'train'``,
            ``'val'`` or ``'test'``. Defaults to ``'train'``.
        checksum (int): Checksum of the images and their order.
        rank_by (str): Name of the ranking. Defaults to ``'score'``.
        highest (list[Card]): The images to look at.
        lowest (list[Card]): The images to compare with.
        num_ranked (int): Number of images that have a rank.
        unlabelled (list[str]): Paths or numbers of the images without any
            labelled pixel, which have no rank.
        folder (str): The folder that all cards have in common.
        classes (list[tuple[str, list[int]]]): Name and RGB colour of each
            class that is drawn.
        labels (list[str]): Names of the classes, if each image has one class.
        notes (list[str]): Sentences on what is missing, and why.
        boxes (pd.DataFrame, optional): The boxes that may be wrong. None
            unless the images are ranked by what a detector predicts.
        limit (float): See :class:`~mmib.labels.boxes.Boxes`. Defaults to 0.
    """

    images: pd.DataFrame
    network: str
    split: str = 'train'
    checksum: int = 0
    rank_by: str = 'score'
    highest: List[Card] = field(default_factory=list)
    lowest: List[Card] = field(default_factory=list)
    num_ranked: int = 0
    unlabelled: List[str] = field(default_factory=list)
    folder: str = ''
    classes: List[Tuple[str, List[int]]] = field(default_factory=list)
    labels: List[str] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    boxes: Optional[pd.DataFrame] = None
    limit: float = 0.


def rank_images(config: Config,
                checkpoint: Checkpoint,
                split: str,
                rank_by: Optional[str],
                count: int,
                judged: Optional[Set[str]] = None) -> Gallery:
    """Rank the images of a dataset by the scores of a run, or by the
    predictions of a network, and draw the images at both ends of the ranking.

    Args:
        config (Config): Config of the dataset and the network. Modules that
            the config imports are imported.
        checkpoint (Checkpoint): The network, and the scores of its run.
        split (str): ``'train'``, ``'val'`` or ``'test'``.
        rank_by (str, optional): Name of the ranking. If None, the first of
            :data:`~mmib.labels.rankings.DEFAULTS` that fits the task.
        count (int): How many images to show at each end.
        judged (set[str], optional): Names of images that aren't shown.
            Defaults to None.

    Raises:
        Refusal: If the images can't be ranked.
    """
    try:
        reader = DatasetImages(config, split)
    except CannotShow as error:
        raise Refusal(f'The images of `{split}_dataloader.dataset` can\'t be '
                      f'ranked: {error}.') from error
    images = pd.DataFrame(
        dict(path=reader.paths()), reader.numbers, dtype=object)
    gallery = Gallery(images, checkpoint.name, split, reader.checksum)
    if rank_by == 'score':
        predictor = _rank_by_score(gallery, reader, config, checkpoint)
    else:
        predictor = _rank_by_prediction(gallery, reader, config, checkpoint,
                                        rank_by)
    _add_cards(gallery, count, reader, predictor, judged)
    return gallery


def _rank_by_score(gallery: Gallery, reader: DatasetImages, config: Config,
                   checkpoint: Checkpoint) -> Optional[Predictor]:
    """Add the scores of a run to the table, which needs no predictions. Return
    the network for the images that are shown, if it can be built."""
    if gallery.split != 'train':
        raise Refusal('A run scores its training images alone: leave out '
                      '--data, or give another --rank-by.')
    try:
        gallery.images = gallery.images.join(_scores_of(reader, checkpoint))
    except CannotShow as error:
        raise Refusal(
            f'There are no scores to rank by, because {error}. `mmib train '
            'CONFIG --score` trains and scores the images of CONFIG, and '
            '--infobatch prunes them too.') from error
    _add_unlabelled(gallery, _without_labels(gallery.images, reader))
    try:
        return _network(gallery, reader, config, checkpoint)
    except CannotShow as error:
        gallery.notes.append(f'There are no predictions: {error}.')
        return None


def _rank_by_prediction(gallery: Gallery, reader: DatasetImages,
                        config: Config, checkpoint: Checkpoint,
                        rank_by: Optional[str]) -> Predictor:
    """Add the rankings by predictions to the table, and the scores of the run
    if the checkpoint has any. Return the network."""
    if gallery.split == 'train' and checkpoint.images is not None:
        try:
            scores = _scores_of(reader, checkpoint)
            gallery.images = gallery.images.join(scores)
        except CannotShow as error:
            gallery.notes.append('There are no scores of the run, because '
                                 f'{error}.')
    try:
        predictor = _network(gallery, reader, config, checkpoint)
    except CannotShow as error:
        raise Refusal(
            f'The checkpoint can\'t be used with this config: {error}.' +
            ' --rank-by score ranks the images by the scores of the run.' *
            ('score' in gallery.images)) from error
    loader = config.get('val_dataloader') or {}
    _measure(gallery, reader, compare_all(reader, predictor, loader), rank_by)
    gallery.rank_by = rank_by or next(
        name for name in DEFAULTS if name in gallery.images)
    if gallery.rank_by in KINDS:
        gallery.notes.append(_how_many(gallery))
    return predictor


def _how_many(gallery: Gallery) -> str:
    """Say how many images have a box that ranks them."""
    values = gallery.images[gallery.rank_by].dropna()
    if gallery.rank_by != 'missing':
        return (f'{(values > 0).sum()} of {len(values)} images have such a '
                'box. The others share the last rank.')
    return (f'{(values > gallery.limit).sum()} of {len(values)} images have '
            'predictions without a label with a confidence above '
            f'{gallery.limit:.2g}, and rank by their sum. After these come '
            f'{((values > 0) & (values <= gallery.limit)).sum()} by their '
            'surest prediction without a label. The others have none, and '
            'share the last rank.')


def _network(gallery: Gallery, reader: DatasetImages, config: Config,
             checkpoint: Checkpoint) -> Predictor:
    """Return the network, whose classes the images then have."""
    predictor = Predictor(config, checkpoint.weights, get_device())
    if reader.number_as(checkpoint.classes):
        gallery.notes.append(
            'The classes of the dataset differ from those that the network '
            'was trained on, in number or order: labels and predictions are '
            'compared by the names of their classes.')
    return predictor


def _scores_of(reader: DatasetImages, checkpoint: Checkpoint) -> pd.DataFrame:
    """Return the scores and counts of the run, by the number of the image."""
    if checkpoint.images is None:
        raise CannotShow(f'{checkpoint.name} has none')
    reader.check(checkpoint)
    return checkpoint.images.set_axis(reader.numbers)


def _without_labels(images: pd.DataFrame, reader: DatasetImages) -> List[int]:
    """Return the numbers of the images without a labelled pixel, whose loss in
    a run is 0."""
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
    """Name images without a label, and remove their scores."""
    images = gallery.images
    if 'score' in images:
        images.loc[numbers, 'score'] = np.nan
    gallery.unlabelled = [images['path'][n] or str(n) for n in numbers]


@dataclass
class _Compared:
    """What comparing predictions with labels has found."""

    # The rankings of each image so far.
    rows: List[Dict[str, float]] = field(default_factory=list)
    # The boxes of the images with these places in `rows`.
    boxes: List[Tuple[int, Boxes]] = field(default_factory=list)
    # Numbers of images without any label.
    unlabelled: List[int] = field(default_factory=list)
    # In how many images each class is labelled, and what is predicted in any.
    labelled: Counter = field(default_factory=Counter)
    predicted: Set[int] = field(default_factory=set)
    # Why the last image that has no ranking has none.
    reason: str = ''

    def add(self, number: int, seen: Union[Dict[str, Any], str]) -> None:
        """Add what was seen in an image, or why nothing was seen."""
        if isinstance(seen, str):
            self.reason, seen = seen, {}
        self.rows.append({
            name: ranking.of(seen[ranking.array])
            for name, ranking in RANKINGS.items()
            if ranking.of and ranking.array in seen
        })
        if 'boxes' in seen:
            self.boxes.append((len(self.rows) - 1, seen['boxes']))
        if np.isnan(seen.get('losses', 0)).all():
            self.unlabelled.append(number)
        self.labelled.update(seen.get('labelled', ()))
        self.predicted.update(seen.get('predicted', ()))


def _measure(gallery: Gallery, reader: DatasetImages,
             compared: Iterator[Union[Dict[str, Any],
                                      str]], rank_by: Optional[str]) -> None:
    """Add a column for each ranking by predictions. After Ctrl-C, the images
    that were predicted so far are ranked."""
    found = _Compared()
    try:
        for number, seen in zip(reader.numbers, compared):
            if not isinstance(seen, str) and rank_by is not None:
                _check_ranking(rank_by, seen, gallery)
            found.add(number, seen)
    except KeyboardInterrupt:
        pass
    suspects = []
    gallery.limit = limit_of(each for _, each in found.boxes)
    for place, each in found.boxes:
        each = each._replace(limit=gallery.limit)
        for kind, find in KINDS.items():
            of_kind = find(each)
            found.rows[place][kind] = total(of_kind)
            suspects += [(reader.numbers[place], one) for one in of_kind]
    measured = pd.DataFrame(found.rows, reader.numbers[:len(found.rows)])
    if measured.empty:
        raise Refusal(
            'The images can\'t be ranked: '
            f'{found.reason or "nothing was predicted before a stop"}.')
    gallery.images = gallery.images.join(measured)
    _add_unlabelled(gallery, found.unlabelled)
    if 'missing' in measured:
        gallery.boxes = _table_of(suspects, gallery.images, reader)
    gallery.notes += _gaps(found, measured, len(gallery.images), reader)


def _check_ranking(name: str, seen: Dict[str, Any], gallery: Gallery) -> None:
    """Refuse a ranking that can't be computed of a prediction."""

    def is_known(name: str) -> bool:
        array = RANKINGS[name].array
        return array in seen or array in KINDS and 'boxes' in seen

    if not is_known(name):
        others = [
            each for each in RANKINGS
            if each in gallery.images or is_known(each)
        ]
        raise Refusal(f'There is no ranking by {name} here: give --rank-by '
                      f'{" or ".join(others)}.')


def _gaps(found: _Compared, measured: pd.DataFrame, num_images: int,
          reader: DatasetImages) -> Iterator[str]:
    """Yield sentences on the images and classes that a ranking leaves out."""
    done = len(found.rows)
    if done < num_images:
        yield (f'Stopped after {done} of {num_images} images: others have no '
               'rank.')
    unknown = measured.isna().all(axis=1).sum() - len(found.unlabelled)
    if unknown and found.reason:
        yield f'{unknown} of {done} images aren\'t ranked: {found.reason}.'
    unpredicted = ', '.join(
        f'{reader.names(label)} ({count} image{"s" * (count > 1)})'
        for label, count in found.labelled.most_common()
        if label not in found.predicted)
    if unpredicted:
        sure = ' with confidence' * ('missing' in measured)
        yield (f'The network predicts these labelled classes in no image{sure}'
               f': {unpredicted}. A ranking can\'t distinguish their right '
               'labels from wrong ones: train longer, or on more of these '
               'images, and rank again.')


def _table_of(suspects: List[Tuple[int, Suspect]], images: pd.DataFrame,
              reader: DatasetImages) -> pd.DataFrame:
    """Return a table of the boxes that may be wrong."""

    def name(label: Optional[int]) -> Optional[str]:
        return None if label is None else reader.names(label)

    rows = [(number, images['path'][number], *each.box, name(each.label),
             name(each.predicted), each.confidence, each.iou, each.kind)
            for number, each in suspects]
    return pd.DataFrame(rows, columns=_BOX_COLUMNS)


def _add_cards(gallery: Gallery, count: int, reader: DatasetImages,
               predictor: Optional[Predictor],
               judged: Optional[Set[str]]) -> None:
    """Sort the table of images by the ranking, and add the cards of both ends.
    """
    rank_by = gallery.rank_by
    images = gallery.images = gallery.images.sort_values(
        rank_by, ascending=False, kind='stable')
    gallery.num_ranked = int(images[rank_by].notna().sum())
    order = images.index[:gallery.num_ranked].tolist()
    # Images of one value are in no order.
    ranks = images['rank'] = images[rank_by].rank(
        method='min', ascending=False).astype('Int64')
    names = dict(zip(reader.numbers, reader.image_names()))
    order = _to_show(gallery, order, names, judged)
    highest = order[:count]
    if rank_by in KINDS:
        highest = [n for n in highest if images[rank_by][n] > 0]
    lowest = order[len(highest):][-count:][::-1] if count else []
    cards = [
        Card(number, images['path'][number], names[number],
             _figures_of(images, rank_by, number), int(ranks[number]))
        for number in highest + lowest
    ]
    gallery.highest = cards[:len(highest)]
    gallery.lowest = cards[len(highest):]
    gallery.folder = _shorten_paths(cards)
    for card in cards:
        add_pictures(card, reader, predictor, rank_by, gallery.limit,
                     side_of(len(cards)))
    if cards and reader.has_one_class:
        # --relabel can't distinguish classes with the same name.
        own = reader.own_classes
        gallery.labels = [name for name in own if own.count(name) == 1]
        for card in cards:
            if card.predicted not in gallery.labels:
                card.predicted = ''  # No right class, in this dataset.
    if any(len(card.pictures) > 1 for card in cards):
        gallery.classes = [*zip(reader.classes, reader.palette.tolist())]


def _to_show(gallery: Gallery, order: List[int], names: Dict[int, str],
             judged: Optional[Set[str]]) -> List[int]:
    """Return the numbers of the images by rank, without copies and images that
    were judged, and note how many these are."""
    # A verdict counts for all copies of an image.
    shown = dict(zip([names[n] for n in order[::-1]], order[::-1]))
    if len(shown) < len(order):
        gallery.notes.append(
            f'{len(order) - len(shown)} of {len(order)} images are copies, '
            'with the same path and labels: the page shows one of them, and a '
            'verdict counts for all.')
        order = [number for number in order if shown[names[number]] == number]
    if judged:
        # An earlier round has numbers where images shared a path.
        left = [
            number for number in order
            if judged.isdisjoint((names[number], str(number)))
        ]
        gallery.notes.append(
            f'{len(order) - len(left)} of {len(judged)} judged images are '
            'in the ranking, and aren\'t shown again.')
        order = left
    return order


def _figures_of(images: pd.DataFrame, rank_by: str,
                number: int) -> List[Tuple[str, float]]:
    titles = {rank_by: RANKINGS[rank_by].title, **_FIGURES}
    if 'score' in images and images['score'].equals(images['last_score']):
        # The scores of some policies are moving averages.
        del titles['last_score']
    # A card leaves out a figure that is 0 for all images.
    return [(title, images[name][number]) for name, title in titles.items()
            if name == rank_by or name in images and images[name].any()]


def _shorten_paths(cards: List[Card]) -> str:
    """Remove the folder that all cards have in common, and return it."""
    paths = [card.path for card in cards if card.path]
    try:
        folder = osp.commonpath([osp.dirname(path) for path in paths])
    except ValueError:  # No paths, or relative and absolute paths.
        return ''
    for card in cards:
        if card.path and folder:
            card.path = osp.relpath(card.path, folder)
    return folder
