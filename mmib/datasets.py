# Copyright (c) mmib contributors. All rights reserved.
"""Which image an index of the data set is, through its wrappers."""
from typing import Optional, Sequence, Sized

import numpy as np
from mmengine.dataset import ClassBalancedDataset, RepeatDataset
from torch.utils.data import ConcatDataset

from .reporter import Reporter


def unwrap_repeats(dataset: Sized) -> Sized:
    """The data set that a data loader's one repeats as a whole.

    A stream that never ends has no use for ``RepeatDataset``: it repeats by
    itself. Its indices begin with those of the data set that it repeats.

    Args:
        dataset (Sized): The data set of a data loader.

    Returns:
        Sized: The data set in it that has each index of one pass once.
    """
    while isinstance(dataset, RepeatDataset) or _mixes_images(dataset):
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
    if _mixes_images(dataset):
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


def _mixes_images(dataset: Sized) -> bool:
    # By name: each library of OpenMMLab has one of its own.
    return any(kind.__name__ == 'MultiImageMixDataset'
               for kind in type(dataset).__mro__)


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


class DeliveryCheck:
    """Tells which images of a batch are those that were asked for.

    Where an image can't be read, MMEngine's data sets deliver another one.
    This is seen by ``img_path``, which samples carry by default.

    Args:
        dataset (Sized): The data set of the data loader.
        reporter (Reporter): Tells the user of images that aren't.
    """

    def __init__(self, dataset: Sized, reporter: Reporter) -> None:
        self.dataset = dataset
        self._reporter = reporter
        self.comparable: Optional[bool] = None
        """Whether the paths of samples are those of the data set, known from
        the first batch on: a transform may change all of them."""

    def __call__(self, indices: np.ndarray,
                 samples: Optional[Sequence]) -> np.ndarray:
        """Compare a batch with what was asked for.

        Args:
            indices (np.ndarray): Indices of the batch, shape (B,).
            samples (Sequence, optional): Its data samples.

        Returns:
            np.ndarray: Whether each is the image of its index, bool of shape
            (B,). True where nothing tells.
        """
        everything = np.ones(len(indices), bool)
        if samples is None or self.comparable is False:
            return everything
        delivered = np.array([
            self._is_delivered(int(index), sample)
            for index, sample in zip(indices, samples)
        ])
        if self.comparable is None:
            self.comparable = bool(delivered.any())
            if not self.comparable:
                self._reporter.paths_differ()
        if not self.comparable:
            return everything
        for index in indices[~delivered].tolist():
            self._reporter.not_delivered(image_path(self.dataset, index))
        return delivered

    def _is_delivered(self, index: int, sample: object) -> bool:
        path = getattr(sample, 'img_path', None)
        asked = None if path is None else image_path(self.dataset, index)
        return asked is None or path == asked
