# Copyright (c) mmib contributors. All rights reserved.
"""From a work folder to the files of its report."""
import os
import os.path as osp
from typing import Any, List, Optional, Tuple

import numpy as np
from mmengine.device import get_device

from . import figures, page
from .checkpoint import Checkpoint, Images, read_newest
from .config import ConfigError
from .gallery import Card, cards
from .images import TrainingImages, losses_of_images, open_predictor
from .read import ReportError, Run, read_run
from .table import image_table, write_table

# What a high place in each ranking means.
_RANKINGS = dict(
    score='An image with a high score had a high loss when it was trained on. '
    'The order is that of the average score, in which its later visits count '
    'more; where there is none, that of the last score.',
    pixels='The order is that of the loss: the mean of the highest 5 % of the '
    'pixel losses of the network. Where it is high, some of the labels are '
    'unlike the predictions.')

# A network whose loss is more than this share of the loss of guessing is too
# young: it ranks scenes that it hasn't learned before wrong labels.
_YOUNG = 0.5


def write_report(work_dir: str,
                 compare: Optional[str] = None,
                 out: Optional[str] = None,
                 num_images: int = 12,
                 predictions: bool = True,
                 trust: bool = False,
                 rank_by: str = 'score') -> List[str]:
    """Write the report of a training.

    Args:
        work_dir (str): Its folder.
        compare (str, optional): Folder of another training.
        out (str, optional): File to write. Defaults to ``report.html`` in the
            folder.
        num_images (int): Images of each end of the scores. Defaults to 12.
        predictions (bool): Whether to predict them. Defaults to True.
        trust (bool): Whether the config may import and build anything, which
            may run any code. Defaults to False.
        rank_by (str): What ranks the images: ``'score'``, or ``'pixels'``,
            for which all are predicted. Defaults to ``'score'``.

    Returns:
        list[str]: Paths of the page, and of the tables of all images where
        the scores are known.

    Raises:
        ReportError: If a folder has nothing of a training, a file can't be
            written, or the images can't be ranked.
    """
    run = read_run(work_dir)
    other = read_run(compare) if compare is not None else None
    out = osp.join(work_dir, 'report.html') if out is None else out
    stem = osp.splitext(out)[0]
    try:
        os.makedirs(osp.dirname(osp.abspath(out)), exist_ok=True)
        open(out, 'a').close()
    except OSError as error:
        raise ReportError(
            f'{out} can\'t be written: {error.strerror}. Give another file '
            'with --out.') from error
    notes = list(run.notes)
    if other is not None:
        notes += [f'{other.name}: {note}' for note in other.notes]
    if not run.has_infobatch:
        notes.append('This is a training without InfoBatch, so there are '
                     'metrics and losses alone.')
    checkpoint, more = read_newest(work_dir, run.start)
    if run.has_infobatch:
        notes += more
    images = checkpoint.images if checkpoint is not None else None
    reader, young = None, ''
    if images is not None:
        notes += checkpoint.notes
        by_losses = rank_by != 'score'
        reader, predictor = _open(
            run, checkpoint, predictions and (num_images > 0 or by_losses),
            trust, notes)
        if by_losses:
            young = _predict_all(images, reader, predictor, rank_by, notes)
        highest, lowest = cards(images, num_images, reader, predictor, rank_by)
        folder = _shorten_paths(highest + lowest)
        tables = write_table(image_table(images), f'{stem}_images')
    elif rank_by != 'score':
        raise ReportError(f'--rank-by {rank_by} needs a checkpoint with a '
                          f'state of InfoBatch. {" ".join(more)}')
    else:
        highest, lowest, tables, folder = [], [], [], ''
        if run.has_infobatch and checkpoint is not None:
            notes.append(f'{checkpoint.name} has no state of InfoBatch, so '
                         'the scores of the images aren\'t known.')
    progress, more_progress = page.split_progress(figures.progress(run, other))
    final_scores = []
    if images is not None and not np.isnan(images.scores).all():
        final_scores.append(
            figures.final_scores(images.scores[~np.isnan(images.scores)]))
    text = page.render(
        run=run,
        other=other,
        summary=page.summary(run, other),
        notes=notes,
        progress=progress,
        more_progress=more_progress,
        worth=figures.worth(run),
        pruning=figures.pruning(run),
        histograms=figures.histograms(run),
        final_scores=final_scores,
        highest=highest,
        lowest=lowest,
        folder=folder,
        ranking=_RANKINGS[rank_by],
        young=young,
        classes=_legend(reader),
        checkpoint=checkpoint.name if checkpoint else '',
        num_images=len(images) if images is not None else 0,
        tables=[osp.basename(path) for path in tables])
    # A path may be no text in UTF-8.
    with open(out, 'w', encoding='utf-8', errors='backslashreplace') as file:
        file.write(text)
    return [out, *tables]


def _open(run: Run, checkpoint: Checkpoint, predictions: bool, trust: bool,
          notes: List[str]) -> Tuple[Optional[TrainingImages], Any]:
    """What reads the images, and what predicts them, as far as possible."""
    images = checkpoint.images
    try:
        reader = TrainingImages(run.config, len(images), trust)
        images.paths = reader.paths()
    except ConfigError as error:
        notes.append('Images have numbers instead of paths and pictures, '
                     f'because of the data set: {error}.')
        return None, None
    if not any(images.paths):
        notes.append('Images have numbers instead of paths: the data set has '
                     'no files.')
        if not reader.has_pixels:
            return None, None
    if not predictions:
        return reader, None
    try:
        return reader, open_predictor(run.config, checkpoint.weights, trust,
                                      get_device())
    except ConfigError as error:
        notes.append(f'There are no predictions: {error}.')
        return reader, None


def _predict_all(images: Images, reader: Optional[TrainingImages],
                 predictor: Any, rank_by: str, notes: List[str]) -> str:
    """Let the network tell the losses of all images.

    Returns:
        str: That it is too young for the ranking, or nothing.
    """
    reason = notes[-1] if notes else ''
    mean = guess = 0.
    if predictor is not None:
        images.losses, reason, (mean, guess) = losses_of_images(
            reader, predictor, len(images))
    ranked = images.ranked(rank_by)
    if not images.losses or not len(ranked):
        raise ReportError(f'The images can\'t be ranked by {rank_by}, as '
                          f'there are no predictions. {reason}')
    if reason:
        notes.append(f'{len(images) - len(ranked)} of {len(images)} images '
                     f'have no loss: {reason}.')
    if not mean > _YOUNG * guess:
        return ''
    return (f'The network is too young for this ranking: the mean of its '
            f'pixel losses, {mean:.2f}, is more than half of {guess:.2f}, the '
            'loss of guessing each pixel by how frequent the classes are. '
            'Scenes that the network hasn\'t learned yet may come before '
            'wrong labels. Train longer, then rank again.')


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


def _legend(reader: Optional[TrainingImages]) -> List[Tuple[str, str]]:
    """Name and colour of each class."""
    if reader is None or not reader.has_masks:
        return []
    return [(name, 'rgb({}, {}, {})'.format(*colour))
            for name, colour in zip(reader.classes, reader.palette.tolist())]
