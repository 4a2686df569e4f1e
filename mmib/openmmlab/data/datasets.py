# Copyright (c) mmib contributors. All rights reserved.
"""Which image an index of a dataset is, whatever wraps the dataset."""
import os.path as osp
import zlib
from typing import Any, List, Optional, Sized

import numpy as np
from mmengine.dataset import ClassBalancedDataset, RepeatDataset
from torch.utils.data import ConcatDataset


def unwrap_repeats(dataset: Any) -> Sized:
    """Return the dataset that ``RepeatDataset`` repeats, which has each index
    of one pass once.

    A stream that never ends has no use for ``RepeatDataset``, whose indices
    begin with the indices of the dataset that it repeats.
    """
    while isinstance(dataset, RepeatDataset) or mixes_images(dataset):
        dataset = dataset.dataset
    return dataset


def image_numbers(dataset: Any) -> np.ndarray:
    """Return the number of the image of each index of a dataset, from 0, int64
    of shape (len(dataset),).

    All repeats of an image have the same number. In a mixture of
    ``MultiImageMixDataset`` the image that was asked for counts.
    """
    if mixes_images(dataset):
        return image_numbers(dataset.dataset)
    if isinstance(dataset, RepeatDataset):
        return np.tile(image_numbers(dataset.dataset), dataset.times)
    if isinstance(dataset, ClassBalancedDataset):
        return image_numbers(dataset.dataset)[dataset.repeat_indices]
    if isinstance(dataset, ConcatDataset):
        parts = [image_numbers(part) for part in dataset.datasets]
        before = np.cumsum([0] + [part.max(initial=-1) + 1 for part in parts])
        return np.concatenate(
            [part + start for part, start in zip(parts, before)])
    if is_listed(dataset):
        numbers = image_numbers(dataset.dataset)[dataset.indices]
        return np.unique(numbers, return_inverse=True)[1]
    return np.arange(len(dataset))


def _has_type(dataset: object, name: str) -> bool:
    """Return whether a class of a dataset has a name. Each library has a
    MultiImageMixDataset of its own, and mmib.labels need not be imported."""
    return any(kind.__name__ == name for kind in type(dataset).__mro__)


def is_listed(dataset: object) -> bool:
    """Return whether a dataset is ``ListedImages``."""
    return _has_type(dataset, 'ListedImages')


def mixes_images(dataset: object) -> bool:
    """Return whether a dataset is a ``MultiImageMixDataset``."""
    return _has_type(dataset, 'MultiImageMixDataset')


def _parts(dataset: Any) -> list:
    """Return the datasets that a wrapper has."""
    if isinstance(dataset, ConcatDataset):
        return list(dataset.datasets)
    return [dataset.dataset] if hasattr(dataset, 'dataset') else []


def leaves(dataset: Any) -> list:
    """Return the datasets within all wrappers."""
    parts = _parts(dataset)
    return sum(map(leaves, parts), []) if parts else [dataset]


def _listed(dataset: Any) -> List[np.ndarray]:
    """Return the numbers of the images of each list in a dataset."""
    own = [dataset.numbers] if is_listed(dataset) else []
    return sum(map(_listed, _parts(dataset)), own)


def part_ends(dataset: Any) -> List[int]:
    """Return the index where each part of a ``ConcatDataset`` ends."""
    if isinstance(dataset, ConcatDataset):
        return list(dataset.cumulative_sizes)
    if is_listed(dataset):
        ends = part_ends(unwrap_repeats(dataset.dataset))
        return np.searchsorted(dataset.indices, ends).tolist()
    return [len(dataset)]


def mixed_in(dataset: Any) -> bool:
    """Return whether a dataset, or one that it wraps, mixes its images."""
    return mixes_images(dataset) or any(map(mixed_in, _parts(dataset)))


def image_path(dataset: Any, index: int) -> Optional[str]:
    """Return the path of the image of an index, None where the dataset has no
    path."""
    try:
        return dataset.get_data_info(index).get('img_path')
    except AttributeError:  # The dataset, or a wrapped one, has no data info.
        return None


def image_paths(dataset: Any, images: np.ndarray) -> List[Optional[str]]:
    """Return the path of each image, None where the dataset has no path.
    ``images`` are the numbers of the images of its indices."""
    _, first = np.unique(images, return_index=True)
    paths = (image_path(dataset, int(index)) for index in first)
    return [None if path is None else str(path) for path in paths]


def images_checksum(dataset: Sized,
                    paths: Optional[List[Optional[str]]] = None) -> int:
    """Return a checksum of the images of a dataset and their order, 32 bits.

    Paths count within the folder that all images share, so that a dataset may
    be moved. Images without a path are counted. The numbers of listed images
    count too. Reading the paths of a million images takes about 2 seconds.

    Args:
        dataset (Sized): The dataset.
        paths (list[str], optional): The :func:`image_paths` of the dataset, if
            these are known already. Defaults to None.
    """
    dataset = unwrap_repeats(dataset)
    images = image_numbers(dataset)
    if paths is None:
        paths = image_paths(dataset, images)
    own = [path or '' for path in paths]
    known = list(filter(None, own)) or ['']
    shared = osp.commonprefix([min(known), max(known)])
    begin = len(shared) - len(osp.basename(shared))
    names = '\n'.join(path[begin:] for path in own)
    checksum = zlib.crc32(images.astype(np.int64).tobytes())
    for numbers in _listed(dataset):
        checksum = zlib.crc32(numbers.tobytes(), checksum)
    # File names may be no text in UTF-8.
    return zlib.crc32(names.encode(errors='surrogatepass'), checksum)
