# Copyright (c) mmib contributors. All rights reserved.
"""Rankings, which put suspicious images first: functions of arrays.

:func:`rank_masks`, :func:`rank_labels` and :func:`rank_boxes` are for
predictions of a loop of your own.
"""
import math
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import Refusal
from .boxes import KINDS, Boxes, limit_of, total

# The number of a pixel of no class, in most datasets and in all labels that
# `DatasetImages` reads.
IGNORED = 255
# Share of the pixels that ranks an image.
TOP_PIXELS = 0.05
# A network is confident in a pixel if the probabilities of the predicted and
# the labelled class differ by more.
_CONFIDENT = 0.3


def top_pixels(losses: np.ndarray) -> float:
    """Return the mean of the highest 5 % of the pixel losses of an image, of
    any shape. NaN if no pixel is labelled."""
    losses = losses[~np.isnan(losses)]
    count = math.ceil(TOP_PIXELS * losses.size)
    highest = np.partition(losses, losses.size - count)[losses.size - count:]
    return float(highest.mean()) if count else math.nan


def largest_region(gaps: np.ndarray) -> np.ndarray:
    """Find the connected pixels that differ most from their labels, which a
    person would repair first (Rottmann and Reese, 2022).

    Args:
        gaps (np.ndarray): Probability of the predicted class less the
            probability of the labelled class in each pixel, float of shape
            (H, W). NaN where a pixel isn't labelled.

    Returns:
        np.ndarray: Whether each pixel belongs to the region, bool of shape
        (H, W).
    """
    import cv2  # All other rankings need no OpenCV.
    differs = (gaps > _CONFIDENT).astype(np.uint8)
    # The borders of objects differ everywhere, and would connect regions.
    differs = cv2.morphologyEx(differs, cv2.MORPH_OPEN, np.ones((3, 3)))
    _, regions = cv2.connectedComponents(differs, connectivity=4)
    weights = np.bincount(regions.ravel(), np.nan_to_num(gaps).ravel())
    weights[0] = 0  # Outside of all regions.
    return regions == (weights.argmax() or -1)


def region_share(gaps: np.ndarray) -> float:
    """Return the sum of the gaps in the :func:`largest_region`, divided by the
    number of labelled pixels. NaN if no pixel is labelled."""
    labelled = np.count_nonzero(~np.isnan(gaps))
    if labelled == 0:
        return math.nan
    return float(gaps[largest_region(gaps)].sum()) / labelled


def margin(leads: np.ndarray) -> float:
    """Return the lead of the most probable other class over the labelled
    class.

    Args:
        leads (np.ndarray): Log-probability of each class less the
            log-probability of the labelled class, float of shape (C,). NaN for
            the labelled class.
    """
    return float(np.nanmax(leads))


class Ranking(NamedTuple):
    """A ranking of images by one number for each image. Its name in
    :data:`RANKINGS` is the column of the number in a table of images.
    ``gallery.html`` says what a high number means.

    Args:
        title (str): Title of the number.
        array (str): Key of what the number is computed from, in the result of
            :func:`~mmib.labels.predictions.compare`, or a kind of boxes in
            :data:`~mmib.labels.boxes.KINDS`. '' if the number comes from a
            run. Defaults to ''.
        of (Callable, optional): Computes the number. Defaults to None.
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
# The default ranking is the first of these that fits the task.
DEFAULTS = ('margin', 'pixels', 'missing')


def rank_masks(logits: Any,
               labels: Any,
               by: str = 'pixels',
               ignored: int = IGNORED) -> np.ndarray:
    """Rank masks by how much a network contradicts them.

    Args:
        logits (Tensor or np.ndarray): What the network predicts, of shape
            (N, C, H, W).
        labels (Tensor or np.ndarray): The class of each pixel, integer of
            shape (N, H, W).
        by (str): ``'pixels'``, the mean of the highest 5 % of the losses of an
            image, or ``'regions'``, the :func:`region_share`, which needs
            OpenCV. Defaults to ``'pixels'``.
        ignored (int): The label of pixels that have no class. Defaults to 255.

    Returns:
        np.ndarray: A number for each mask, of shape (N,): the higher, the more
        suspicious. NaN for a mask without any class.

    Raises:
        Refusal: If the shapes don't fit together, or if a label is no class.

    Examples:
        >>> suspicious = np.concatenate([
        >>>     rank_masks(model(images), masks) for images, masks in loader
        >>> ])
        >>> np.argsort(-suspicious)[:20]  # Look at these masks.
    """
    logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)
    if logits.dim() != 4 or labels.shape != logits[:, 0].shape:
        raise Refusal(
            '`logits` must have the shape (N, C, H, W), and `labels` (N, H, '
            f'W), but have {tuple(logits.shape)} and {tuple(labels.shape)}.')
    ranking = _ranking(by, ('pixels', 'regions'))
    return np.array([
        ranking.of(compare_pixels(*each, ignored)[ranking.array])
        for each in zip(logits, labels)
    ])


def rank_labels(logits: Any, labels: Any) -> np.ndarray:
    """Rank the labels of images that have one class each, by the lead of the
    most probable other class.

    Args:
        logits (Tensor or np.ndarray): What the network predicts, of shape
            (N, C), with 2 or more classes.
        labels (Tensor or np.ndarray): The class of each image, integer of
            shape (N,).

    Returns:
        np.ndarray: The :func:`margin` of each label, of shape (N,): the
        higher, the more suspicious. Above 0, the network predicts another
        class.

    Raises:
        Refusal: If the shapes don't fit together, or if a label is no class.
    """
    logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)
    fits = labels.shape == logits.shape[:1]
    if logits.dim() != 2 or not fits or logits.shape[1] < 2:
        raise Refusal(
            '`logits` must have the shape (N, C), with two classes or more, '
            f'and `labels` (N,), but have {tuple(logits.shape)} and '
            f'{tuple(labels.shape)}.')
    _check_classes(labels, logits.shape[1])
    own = labels.long().to(logits.device)[:, None]
    log = logits.double().log_softmax(1)
    leads = (log - log.gather(1, own)).scatter(1, own, math.nan)
    return np.array([margin(each) for each in leads.detach().cpu().numpy()])


def rank_boxes(images: Sequence[Boxes], by: str = 'missing') -> np.ndarray:
    """Rank images by how much a detector contradicts their boxes.

    Args:
        images (Sequence[Boxes]): The boxes of each image.
        by (str): ``'missing'``, ``'unsupported'`` or ``'other_class'``.
            Defaults to ``'missing'``.

    Returns:
        np.ndarray: The total confidence of what contradicts the boxes of each
        image, of shape (N,): the higher, the more suspicious.
    """
    _ranking(by, tuple(KINDS))
    limit = limit_of(images)
    return np.array(
        [total(KINDS[by](each._replace(limit=limit))) for each in images])


def _ranking(name: str, names: Sequence[str]) -> Any:
    if name not in names:
        raise Refusal(f'`by` must be one of {", ".join(names)}, but got '
                      f'{name!r}.')
    return RANKINGS[name]


def _check_classes(labels: Tensor, num_classes: int) -> None:
    unknown = labels[(labels < 0) | (labels >= num_classes)]
    if len(unknown):
        raise Refusal(
            f'`labels` have {str(unknown.unique()[:5].tolist())[1:-1]}, and '
            f'the network has the classes 0 to {num_classes - 1}.')


def compare_pixels(logits: Tensor,
                   labels: Tensor,
                   ignored: int = IGNORED) -> Dict[str, np.ndarray]:
    """Compare the labels of an image with a prediction.

    Args:
        logits (Tensor): What the network predicts, of shape (C, H, W).
        labels (Tensor): The class of each pixel, integer of shape (H, W).
        ignored (int): The label of pixels that have no class. Defaults to 255.

    Returns:
        dict[str, np.ndarray]: ``losses``, the loss of each pixel, and
        ``gaps``, the probability of the predicted class less the probability
        of the labelled class, of shape (H, W), NaN where a pixel has no class.
        The classes that are ``labelled`` and those that are ``predicted``, of
        shape (C,), each once.
    """
    target = labels.long().to(logits.device)
    is_ignored = target == ignored
    _check_classes(target[~is_ignored], len(logits))
    target = target.masked_fill(is_ignored, 0)[None]
    logits = logits.detach().float()
    losses = F.cross_entropy(logits[None], target, reduction='none')[0]
    highest, predicted = logits.softmax(0).max(0)
    gaps = highest - (-losses).exp()
    return dict(
        losses=losses.masked_fill(is_ignored, math.nan).cpu().numpy(),
        gaps=gaps.masked_fill(is_ignored, math.nan).cpu().numpy(),
        labelled=target[0][~is_ignored].unique().cpu().numpy(),
        predicted=predicted.unique().cpu().numpy())
