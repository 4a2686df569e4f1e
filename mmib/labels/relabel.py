# Copyright (c) mmib contributors. All rights reserved.
"""Give images the right labels of a review, in the annotations that a dataset
has read."""
from bisect import bisect_right
from typing import Any, Dict, List, Tuple

import numpy as np
from mmengine.dataset import BaseDataset, ClassBalancedDataset, RepeatDataset
from torch.utils.data import ConcatDataset

from ..errors import Refusal
from .verdicts import Judged


def has_one_class(info: dict) -> bool:
    """Whether the annotation of an image has one class, by number."""
    # MNIST has it as a tensor.
    label = np.asarray(info.get('gt_label'))
    return label.ndim == 0 and np.issubdtype(label.dtype, np.integer)


def change_labels(dataset: Any, of_index: np.ndarray,
                  wrong: Dict[int, Judged]) -> None:
    """Change the labels of images, by number, to those of a review.

    The annotations themselves are changed, so that all who read them find the
    right labels: the pipeline, also one that a hook puts in its place, workers
    of the loader, and wrappers that count classes.

    Args:
        dataset (Dataset): The dataset, which may wrap others.
        of_index (np.ndarray): Number of the image of each index of it.
        wrong (dict[int, Judged]): What the review says of each wrong image.
            Those without a label stay.

    Raises:
        Refusal: If a label is no class, or the dataset has no labels that
            could be changed.
    """
    rows: Dict[int, Tuple[Any, Dict[int, Judged]]] = {}
    for index in np.flatnonzero(np.isin(of_index, [*wrong])):
        part, place = _part_of(dataset, int(index))
        of_part = rows.setdefault(id(part), (part, {}))[1]
        of_part[place] = wrong[of_index[index]]
    for part, of_part in rows.values():
        _change(part, of_part)


def _change(dataset: Any, rows: Dict[int, Judged]) -> None:
    """Change the labels at some indices of a dataset that wraps none."""
    if not isinstance(dataset, BaseDataset):
        raise _cannot(dataset, 'which doesn\'t derive from `BaseDataset`')
    infos = [dataset.get_data_info(i) for i in range(len(dataset))]
    if not all(has_one_class(infos[index]) for index in rows):
        raise _cannot(dataset, 'whose images have no `gt_label` of one class')
    classes = list(dataset.metainfo.get('classes') or ())
    labels = {
        index: _number_of(dataset, classes, row)
        for index, row in rows.items() if row.label
    }
    for index, label in labels.items():
        infos[index]['gt_label'] = label
    dataset.data_list = infos
    if dataset.serialize_data:
        dataset.data_bytes, dataset.data_address = dataset._serialize_data()
    for index, label in labels.items():
        if dataset.get_data_info(index)['gt_label'] != label:
            raise _cannot(dataset, 'whose `get_data_info` makes `gt_label`')


def _part_of(dataset: Any, index: int) -> Tuple[Any, int]:
    """The dataset that an index of wrappers leads to, and the index there."""
    if isinstance(dataset, ConcatDataset):
        part = bisect_right(dataset.cumulative_sizes, index)
        index -= [0, *dataset.cumulative_sizes][part]
        return _part_of(dataset.datasets[part], index)
    if isinstance(dataset, RepeatDataset):
        return _part_of(dataset.dataset, index % len(dataset.dataset))
    if isinstance(dataset, ClassBalancedDataset):
        return _part_of(dataset.dataset, dataset.repeat_indices[index])
    return dataset, index


def _number_of(dataset: Any, classes: List[str], row: Judged) -> int:
    if not classes:
        raise Refusal(
            f'{type(dataset).__name__} has no names of classes, by which to '
            f'find the label `{row.label}` of {row.where}: set `metainfo='
            'dict(classes=[...])` of the dataset in '
            '`train_dataloader.dataset`.')
    if classes.count(row.label) != 1:
        several = 'the name of several classes' if row.label in classes else \
            'no class'
        raise Refusal(
            f'{row.where} has the label `{row.label}`, which is {several} of '
            f'the dataset, whose classes are {", ".join(classes[:8])}'
            f'{", ..." * (len(classes) > 8)}: correct the column `label` '
            '(--relabel of the command).')
    return classes.index(row.label)


def _cannot(dataset: Any, why: str) -> Refusal:
    return Refusal(
        '`relabel` of ListedImages in `train_dataloader.dataset` (--relabel) '
        f'can\'t change the classes of {type(dataset).__name__}, {why}: leave '
        'out the wrong images by `without` (--without).')
