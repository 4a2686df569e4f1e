# Copyright (c) mmib contributors. All rights reserved.
"""Which image an index of the data set is, through its wrappers."""
from typing import Optional, Sized

import numpy as np
from mmengine.dataset import ClassBalancedDataset, RepeatDataset
from mmseg.datasets import MultiImageMixDataset
from torch.utils.data import ConcatDataset


def one_pass(dataset: Sized) -> Sized:
    """What has each index of one pass once.

    A stream that never ends has no use for ``RepeatDataset``: it repeats by
    itself. Its indices begin with those of the data set that it repeats.

    Args:
        dataset (Sized): The data set of a data loader.

    Returns:
        Sized: The data set in it that nothing repeats as a whole.
    """
    while isinstance(dataset, (RepeatDataset, MultiImageMixDataset)):
        dataset = dataset.dataset
    return dataset


def image_numbers(dataset: Sized) -> np.ndarray:
    """Number the images, so that each repeat of an image has its number.

    Of what ``MultiImageMixDataset`` mixes, the image that was asked for
    counts.

    Args:
        dataset (Sized): A data set.

    Returns:
        np.ndarray: Number of the image of each index, from 0, int64 of shape
        (len(dataset),).
    """
    if isinstance(dataset, MultiImageMixDataset):
        return image_numbers(dataset.dataset)
    if isinstance(dataset, RepeatDataset):
        return np.tile(image_numbers(dataset.dataset), dataset.times)
    if isinstance(dataset, ClassBalancedDataset):
        return image_numbers(dataset.dataset)[dataset.repeat_indices]
    if isinstance(dataset, ConcatDataset):
        parts = [image_numbers(part) for part in dataset.datasets]
        before = np.cumsum([0] + [part.max() + 1 for part in parts])
        return np.concatenate(
            [part + start for part, start in zip(parts, before)])
    return np.arange(len(dataset))


def image_path(dataset: Sized, index: int) -> Optional[str]:
    """Path of an image, or None where the data set doesn't tell.

    Args:
        dataset (Sized): A data set.
        index (int): An index of it.

    Returns:
        str, optional: ``img_path`` of its data info.
    """
    if not hasattr(dataset, 'get_data_info'):
        return None
    return dataset.get_data_info(index).get('img_path')
