# Copyright (c) mmib contributors. All rights reserved.
"""Boxes whose labels contradict the predictions: functions of arrays."""
from typing import Callable, Dict, List, NamedTuple, Optional

import numpy as np

# Predictions of lower confidence contradict no label.
_CONFIDENT = 0.4
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
    """

    labelled: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    classes: np.ndarray
    confidences: np.ndarray


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
    return Boxes(boxes.labelled[~ignored], boxes.labels[~ignored],
                 boxes.predicted[known], boxes.classes[known],
                 boxes.confidences[known])


def missing(boxes: Boxes) -> List[Suspect]:
    """Find confident predictions that no label overlaps: a label may be
    missing. The weight of each is its confidence."""
    ious = overlaps(boxes.labelled, boxes.predicted).max(0, initial=0)
    confidences = boxes.confidences
    return [
        Suspect('missing', boxes.predicted[i].tolist(), None,
                int(boxes.classes[i]), float(confidences[i]), float(ious[i]),
                float(confidences[i]))
        for i in np.flatnonzero((confidences > _CONFIDENT) & (ious < _APART))
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
