# Copyright (c) mmib contributors. All rights reserved.
"""Boxes whose labels contradict the predictions: functions of arrays."""
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional

import numpy as np

# Predictions of lower confidence contradict no label.
_CONFIDENT = 0.4
# The share of the images in which a prediction without a label counts in full.
_SHARE = 0.2
# Boxes that overlap less than `_APART` are of different objects, and those
# that overlap `_SAME` and more are one box.
_APART, _SAME = 0.2, 0.5
# Least confidence of a prediction that supports the label of a box, and the
# weight of a label without a prediction beside it.
_SUPPORTED, _ALONE = 0.2, 0.3


class Boxes(NamedTuple):
    """The labelled and the predicted boxes of an image. A box has left, top,
    right and bottom in pixels.

    Args:
        labelled (np.ndarray): Labelled boxes, of shape (N, 4).
        labels (np.ndarray): Class of each labelled box, int of shape (N,).
        predicted (np.ndarray): Predicted boxes, of shape (M, 4).
        classes (np.ndarray): Class of each predicted box, int of shape (M,).
        confidences (np.ndarray): Confidence of each predicted box, from 0 to
            1, of shape (M,).
        limit (float): Predictions without a label count in full above this
            confidence, see :func:`limit_of`. Defaults to 0.4.
    """

    labelled: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    classes: np.ndarray
    confidences: np.ndarray
    limit: float = _CONFIDENT


class Suspect(NamedTuple):
    """A box that may be wrong.

    Args:
        kind (str): Name of the kind in :data:`KINDS`.
        box (list[float]): Left, top, right and bottom of the label, or of the
            prediction if there is no label.
        label (int, optional): The labelled class. None if there is no label.
        predicted (int, optional): The class of the prediction that contradicts
            the label. None if there is no prediction.
        confidence (float): Confidence of this prediction. 0 if there is none.
        iou (float): IoU of label and prediction. If one of them is missing,
            the highest IoU of the other with any box.
        weight (float): What the box adds to the ranking of its image.
    """

    kind: str
    box: List[float]
    label: Optional[int]
    predicted: Optional[int]
    confidence: float
    iou: float
    weight: float


def overlaps(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of N boxes with M other boxes, of
    shape (N, M). 0 where both are empty."""
    both = _intersections(boxes, others)
    union = _areas(boxes)[:, None] + _areas(others) - both
    return both / np.where(union > 0, union, 1)


def without_ignored(boxes: Boxes, ignored: np.ndarray) -> Boxes:
    """Return the boxes without ignored labels, such as those of crowds, and
    without predictions of which half lies in an ignored label.

    Args:
        boxes (Boxes): All boxes of an image.
        ignored (np.ndarray): Whether each label is ignored, bool of shape
            (N,).
    """
    inside = _intersections(boxes.labelled[ignored], boxes.predicted)
    in_crowd = inside.max(0, initial=0) >= 0.5 * _areas(boxes.predicted)
    known = ~(in_crowd & ignored.any())
    return boxes._replace(
        labelled=boxes.labelled[~ignored],
        labels=boxes.labels[~ignored],
        predicted=boxes.predicted[known],
        classes=boxes.classes[known],
        confidences=boxes.confidences[known])


def limit_of(images: Iterable[Boxes]) -> float:
    """Return the confidence that the surest prediction without a label exceeds
    in a fifth of the images.

    How sure a detector is depends on the detector: a weak one may find objects
    rightly with confidences below 0.3, and one that has learned that an object
    has no label is less sure of it.

    Args:
        images (Iterable[Boxes]): The boxes of each image.
    """
    surest = [
        each.confidences[_is_free(each)].max(initial=0) for each in images
    ]
    return float(np.quantile(surest, 1 - _SHARE)) if surest else _CONFIDENT


def _is_free(boxes: Boxes) -> np.ndarray:
    """Return whether no label overlaps each prediction."""
    return overlaps(boxes.labelled, boxes.predicted).max(0, initial=0) < _APART


def missing(boxes: Boxes) -> List[Suspect]:
    """Find predictions that no label overlaps: a label may be missing. These
    are the predictions above the limit, or the surest one where none is above
    the limit. The weight of each is its confidence."""
    ious = overlaps(boxes.labelled, boxes.predicted).max(0, initial=0)
    confidences = boxes.confidences
    free = np.flatnonzero(_is_free(boxes))
    sure = free[confidences[free] > boxes.limit]
    if not len(sure) and len(free):
        sure = free[[confidences[free].argmax()]]
    return [
        Suspect('missing', boxes.predicted[i].tolist(), None,
                int(boxes.classes[i]), float(confidences[i]), float(ious[i]),
                float(confidences[i])) for i in sure
    ]


def unsupported(boxes: Boxes) -> List[Suspect]:
    """Find labels that no prediction of any class supports: the labels may be
    extra or misplaced. The weight of a label is the confidence of a prediction
    beside it, unless another label is nearer to the prediction. Without such a
    prediction, the weight is small."""
    ious = overlaps(boxes.labelled, boxes.predicted)
    support = np.where(ious >= _SAME, boxes.confidences, 0).max(1, initial=0)
    is_beside = ((ious >= _APART) & (ious < _SAME) &
                 (ious == ious.max(0, initial=0)) &
                 (boxes.confidences > _CONFIDENT))
    beside = np.where(is_beside, boxes.confidences, 0)
    found = []
    for i in np.flatnonzero(support < _SUPPORTED):
        at = beside[i].argmax() if is_beside[i].any() else None
        sure = 0. if at is None else float(beside[i, at])
        found.append(
            Suspect(
                'unsupported', boxes.labelled[i].tolist(),
                int(boxes.labels[i]),
                None if at is None else int(boxes.classes[at]), sure,
                float(ious[i].max(initial=0) if at is None else ious[i, at]),
                max(sure, _ALONE)))
    return found


def other_class(boxes: Boxes) -> List[Suspect]:
    """Find labels that a confident prediction of another class overlaps well.
    The weight of a label is the confidence of this prediction less the
    confidence of a prediction of the labelled class."""
    ious = overlaps(boxes.labelled, boxes.predicted)
    sure = np.where(ious >= _SAME, boxes.confidences, 0)
    is_own = boxes.labels[:, None] == boxes.classes
    own = np.where(is_own, sure, 0).max(1, initial=0)
    others = np.where(is_own, 0, sure)
    found = []
    for i in np.flatnonzero(
            others.max(1, initial=0) > np.maximum(own, _CONFIDENT)):
        at = others[i].argmax()
        found.append(
            Suspect('other_class', boxes.labelled[i].tolist(),
                    int(boxes.labels[i]), int(boxes.classes[at]),
                    float(others[i, at]), float(ious[i, at]),
                    float(others[i, at] - own[i])))
    return found


KINDS: Dict[str, Callable[[Boxes], List[Suspect]]] = dict(
    missing=missing, unsupported=unsupported, other_class=other_class)


def confident_classes(boxes: Boxes) -> np.ndarray:
    """Return the classes of the confident predictions, each once."""
    return np.unique(boxes.classes[boxes.confidences > _CONFIDENT])


def total(suspects: List[Suspect]) -> float:
    """Return the sum of the weights of an image's boxes of a kind."""
    return sum((each.weight for each in suspects), 0.)


def _areas(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2:] - boxes[:, :2]).prod(1)


def _intersections(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return (high - low).clip(0).prod(2)
