# Copyright (c) mmib contributors. All rights reserved.
"""Change the annotations that datasets have read: right labels of a review,
and paths of other masks."""
from typing import Any, Dict, Iterable, List, Tuple

import numpy as np
from mmengine.dataset import BaseDataset

from ..errors import Refusal
from ..openmmlab.data.datasets import leaves
from .lists import Entry


def has_one_class(info: dict) -> bool:
    """Return whether the annotation of an image has one class, by number."""
    # The labels of MNIST are tensors.
    label = np.asarray(info.get('gt_label'))
    return label.ndim == 0 and np.issubdtype(label.dtype, np.integer)


def infos_of(dataset: Any) -> List[dict]:
    """Return the annotations of all images of a dataset, empty ones where it
    doesn't derive from ``BaseDataset``."""
    if not isinstance(dataset, BaseDataset):
        return [{} for _ in range(len(dataset))]
    # A `get_data_info` of a subclass may change what it returns.
    return [BaseDataset.get_data_info(dataset, i) for i in range(len(dataset))]


def put_infos(dataset: BaseDataset, infos: List[dict]) -> None:
    """Replace the annotations of a dataset. All who read them find the new
    ones: the pipeline, also one that a hook puts in its place, workers of the
    loader, and wrappers that count classes."""
    dataset.data_list = infos
    if dataset.serialize_data:
        dataset.data_bytes, dataset.data_address = dataset._serialize_data()


def change_labels(dataset: Any, first: np.ndarray, wrong: Dict[int,
                                                               Entry]) -> None:
    """Change the labels of images to those of a review, and no others.

    Args:
        dataset (Dataset): The dataset, which may wrap others.
        first (np.ndarray): An index of each image, int of shape (N,).
        wrong (dict[int, Entry]): Wrong images by their number. Those without
            a right label keep theirs.

    Raises:
        Refusal: If a label is no class, or the dataset has no labels that can
            be changed.
    """
    parts = leaves(dataset)
    if sum(map(len, parts)) != len(first):
        raise _cannot(parts[0], 'of which a wrapper takes a part')
    # Without a wrapper no image can be in another place.
    checked = wrong if parts[0] is dataset else range(len(first))
    expected, begin = _labels_of(dataset, first, checked), 0
    for part in parts:
        rows = {
            n - begin: entry
            for n, entry in wrong.items() if 0 <= n - begin < len(part)
        }
        if rows:
            labels = _change(part, rows)
            expected.update((begin + row, str(label)) for row, label in labels)
        begin += len(part)
    if _labels_of(dataset, first, checked) != expected:
        why = 'whose `get_data_info` makes `gt_label`'
        if parts[0] is not dataset:
            why += (', or which has images in another order than the dataset '
                    'that it wraps')
        raise _cannot(dataset, why)


def _labels_of(dataset: Any, first: np.ndarray,
               images: Iterable[int]) -> Dict[int, str]:
    """The labels of images, as the pipeline finds them."""
    try:
        infos = {n: dataset.get_data_info(int(first[n])) for n in images}
        return {
            n: str(
                int(info['gt_label']) if has_one_class(info) else info.
                get('gt_label'))
            for n, info in infos.items()
        }
    except AttributeError:  # The dataset, or a wrapped one, has no data info.
        return {}


def _change(dataset: BaseDataset, rows: Dict[int,
                                             Entry]) -> List[Tuple[int, int]]:
    """Change the labels of images by their indices. Return the new ones."""
    infos = infos_of(dataset)
    if not all(has_one_class(infos[index]) for index in rows):
        raise _cannot(dataset, 'whose images have no `gt_label` of one class')
    classes = list(dataset.metainfo.get('classes') or ())
    labels = [(index, _number_of(dataset, classes, entry))
              for index, entry in rows.items() if entry.label]
    for index, label in labels:
        infos[index]['gt_label'] = label
    put_infos(dataset, infos)
    return labels


def _number_of(dataset: Any, classes: List[str], entry: Entry) -> int:
    if classes.count(entry.label) != 1:
        which = 'several classes' if entry.label in classes else 'no class'
        known = f'{", ".join(classes[:8])}{", ..." * (len(classes) > 8)}'
        raise Refusal(
            f'{entry.where} has the label `{entry.label}`, which is the name '
            f'of {which} of {type(dataset).__name__}, whose classes are '
            f'{known or "not known"}: correct the column `label` (--relabel '
            'of the command), or set `metainfo=dict(classes=[...])` of the '
            'dataset in `train_dataloader.dataset`.')
    return classes.index(entry.label)


def _cannot(dataset: Any, why: str) -> Refusal:
    return Refusal(
        '`relabel` of ListedImages in `train_dataloader.dataset` (--relabel) '
        f'can\'t change the classes of {type(dataset).__name__}, {why}: leave '
        'out the wrong images by `without` (--without).')
