# Copyright (c) mmib contributors. All rights reserved.
"""Change the annotations that datasets have read: right labels of a review,
and paths of other masks."""
from typing import Any, Dict, List, Sequence

import numpy as np
from mmengine.dataset import BaseDataset

from ..errors import Refusal
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
    return [dataset.get_data_info(i) for i in range(len(dataset))]


def put_infos(dataset: BaseDataset, infos: List[dict]) -> None:
    """Replace the annotations of a dataset. All who read them find the new
    ones: the pipeline, also one that a hook puts in its place, workers of the
    loader, and wrappers that count classes."""
    dataset.data_list = infos
    if dataset.serialize_data:
        dataset.data_bytes, dataset.data_address = dataset._serialize_data()


def change_labels(datasets: Sequence[Any], num_images: int,
                  wrong: Dict[int, Entry]) -> None:
    """Change the labels of images to those of a review.

    Args:
        datasets (Sequence[Dataset]): The datasets, which wrap no others.
        num_images (int): How many images they have together.
        wrong (dict[int, Entry]): Wrong images by their number in all datasets.
            Those without a right label keep theirs.

    Raises:
        Refusal: If a label is no class, or a dataset has no labels that can
            be changed.
    """
    if sum(map(len, datasets)) != num_images:
        raise _cannot(datasets[0], 'of which a wrapper takes a part')
    for dataset in datasets:
        rows = {n: entry for n, entry in wrong.items() if n < len(dataset)}
        if rows:
            _change(dataset, rows)
        wrong = {
            n - len(dataset): entry
            for n, entry in wrong.items() if n not in rows
        }


def _change(dataset: Any, rows: Dict[int, Entry]) -> None:
    """Change the labels of images by their indices."""
    infos = infos_of(dataset)
    if not all(has_one_class(infos[index]) for index in rows):
        raise _cannot(dataset, 'whose images have no `gt_label` of one class')
    classes = list(dataset.metainfo.get('classes') or ())
    labels = {
        index: _number_of(dataset, classes, entry)
        for index, entry in rows.items() if entry.label
    }
    for index, label in labels.items():
        infos[index]['gt_label'] = label
    put_infos(dataset, infos)
    for index, label in labels.items():
        if dataset.get_data_info(index)['gt_label'] != label:
            raise _cannot(dataset, 'whose `get_data_info` makes `gt_label`')


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
