# Copyright (c) mmib contributors. All rights reserved.
"""Change the annotations that datasets have read: right labels of a review,
and paths of other masks."""
from typing import Any, Dict, Iterable, List

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
    """Replace the annotations of a dataset. All readers find the new
    annotations: the pipeline, even if a hook replaces it, workers of the
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
        Refusal: If a label isn't a class, or if the labels of the dataset
            can't be changed.
    """
    parts = leaves(dataset)
    if sum(map(len, parts)) != len(first):
        raise _cannot(parts[0], 'of which a wrapper takes a part')
    # Without a wrapper no image can be in another place.
    checked = wrong if parts[0] is dataset else range(len(first))
    expected, begin = _labels_of(dataset, first, checked), 0
    for part in parts:
        infos = infos_of(part)
        rows = {
            n: infos[n - begin]
            for n in wrong if 0 <= n - begin < len(infos)
        }
        if not all(map(has_one_class, rows.values())):
            raise _cannot(part, 'whose images have no `gt_label` of one class')
        for n, info in rows.items():
            if wrong[n].label:
                info['gt_label'] = _number_of(part, wrong[n])
                expected[n] = str(info['gt_label'])
        if rows:
            put_infos(part, infos)
        begin += len(infos)
    if _labels_of(dataset, first, checked) != expected:
        raise _cannot(
            dataset, 'whose `get_data_info` makes `gt_label`, or has images '
            'in another order than a dataset within it')


def _labels_of(dataset: Any, first: np.ndarray,
               images: Iterable[int]) -> Dict[int, str]:
    """Return the labels of images, as the pipeline finds them."""
    try:
        infos = {n: dataset.get_data_info(int(first[n])) for n in images}
        # A label may be a tensor.
        return {
            n: str(np.asarray(i.get('gt_label')))
            for n, i in infos.items()
        }
    except AttributeError:  # The dataset, or a wrapped one, has no data info.
        return {}


def _number_of(dataset: BaseDataset, entry: Entry) -> int:
    """Return the number of the right class of an image."""
    classes = list(dataset.metainfo.get('classes') or ())
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
