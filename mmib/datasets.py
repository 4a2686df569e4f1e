# Copyright (c) mmib contributors. All rights reserved.
"""Which image an index of the data set is, through its wrappers."""
import os.path as osp
import zlib
from functools import cached_property
from typing import Any, Callable, List, Optional, Sequence, Set, Sized, Union

import numpy as np
from mmengine.dataset import ClassBalancedDataset, RepeatDataset
from torch.utils.data import ConcatDataset



def unwrap_repeats(dataset: Any) -> Sized:
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


def image_numbers(dataset: Any) -> np.ndarray:
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


def mixed_in(dataset: Any) -> bool:
    """Whether a data set mixes other images of it into some."""
    if isinstance(dataset, ConcatDataset):
        return any(map(mixed_in, dataset.datasets))
    return _mixes_images(dataset) or (hasattr(dataset, 'dataset')
                                      and mixed_in(dataset.dataset))


def _mixes_images(dataset: object) -> bool:
    # By name: each library of OpenMMLab has one of its own.
    return any(kind.__name__ == 'MultiImageMixDataset'
               for kind in type(dataset).__mro__)


def image_path(dataset: Any, index: int) -> Optional[str]:
    """Path of an image, or None where the data set doesn't tell.

    Args:
        dataset (Sized): A data set.
        index (int): An index of it.

    Returns:
        str, optional: ``img_path`` of its data info.
    """
    try:
        return dataset.get_data_info(index).get('img_path')
    except AttributeError:  # Of it, or of the one that it wraps.
        return None


def image_paths(dataset: Any, images: np.ndarray) -> List[Optional[str]]:
    """Path of each image, None where the data set doesn't tell.

    Args:
        dataset (Sized): A data set.
        images (np.ndarray): Number of the image of each of its indices, int64
            of any length.
    """
    _, first = np.unique(images, return_index=True)
    return [image_path(dataset, int(index)) for index in first]


def images_checksum(dataset: Sized) -> int:
    """Checksum of the images of a data set and their order.

    It is that of their paths within the folder that they share, so that a
    data set may be moved. Images without a path are counted.

    Args:
        dataset (Sized): A data set. Each of its paths is read, which takes
            about 2 seconds for a million images.

    Returns:
        int: 32 bits.
    """
    dataset = unwrap_repeats(dataset)
    images = image_numbers(dataset)
    paths = [
        '' if path is None else str(path)
        for path in image_paths(dataset, images)
    ]
    known = list(filter(None, paths)) or ['']
    shared = osp.commonprefix([min(known), max(known)])
    begin = len(shared) - len(osp.basename(shared))
    names = '\n'.join(path[begin:] for path in paths)
    # File names may be no text in UTF-8.
    return zlib.crc32(
        names.encode(errors='surrogatepass'),
        zlib.crc32(images.astype(np.int64).tobytes()))


def data_samples(data_batch: Any) -> Optional[Sequence]:
    """Data samples of a batch, None where it has others or none, as batches
    that aren't of a library."""
    return data_batch.get('data_samples') if isinstance(data_batch,
                                                        dict) else None


class DeliveryCheck:
    """Tells which images of a batch are those that were asked for.

    Where the pipeline returns None for an image, as it may where the image
    can't be read, MMEngine's data sets deliver another one. This is seen by
    ``img_path``, which samples carry by default. A pipeline may change the
    paths of all images, so that they tell nothing: this is known for each
    part of a ``ConcatDataset`` once one image of it came with its own path,
    or :attr:`NUM_TRIED` others without. Until then an image that doesn't
    match isn't scored.

    Args:
        dataset (Sized): The data set of the data loader.
        warn (Callable): Takes a sentence for the user.
        indices (np.ndarray, optional): Indices of a pass, increasing, int64
            of any length. None for all. Defaults to None.
    """

    NUM_TRIED = 10

    def __init__(self,
                 dataset: Sized,
                 warn: Callable[[str], None],
                 indices: Optional[np.ndarray] = None) -> None:
        self._dataset = dataset
        self._warn = warn
        self._warned_of: Set[str] = set()
        parts = unwrap_repeats(dataset)
        if isinstance(parts, ConcatDataset):
            self._ends = list(parts.cumulative_sizes)
        else:
            self._ends = [len(parts)]
        # Images of a pass that each part has.
        self._sizes = np.diff(self._ends, prepend=0)
        if indices is not None:
            self._sizes = np.bincount(
                self._part_of(np.unique(indices % self._ends[-1])),
                minlength=len(self._ends))
        self.comparable: List[Optional[bool]] = [None] * len(self._ends)
        """list[bool, optional]: Whether the paths of samples are those of the
        data set, for each of its parts; None is not known yet."""
        # Images of each part that came with another path until it is known.
        self._tried: List[Set[int]] = [set() for _ in self._ends]

    def __call__(self, indices: np.ndarray,
                 samples: Optional[Sequence]) -> np.ndarray:
        """Compare a batch with what was asked for.

        Args:
            indices (np.ndarray): Indices of the batch, shape (B,).
            samples (Sequence, optional): Its data samples.

        Returns:
            np.ndarray: Whether each is the image of its index, bool of shape
            (B,). True where nothing tells.

        Raises:
            RuntimeError: If the batch has the right images in another order.
        """
        delivered = np.ones(len(indices), bool)
        if samples is None or not any(c is not False for c in self.comparable):
            return delivered
        paths = [getattr(sample, 'img_path', None) for sample in samples]
        asked = [
            None if path is None else image_path(self._dataset, int(index))
            for index, path in zip(indices, paths)
        ]
        others = [
            i for i, path in enumerate(asked)
            if path is not None and path != paths[i]
        ]
        # An image that can't be read is delivered in no place.
        if others and sorted(paths[i]
                             for i in others) == sorted(asked[i]
                                                        for i in others):
            raise RuntimeError(
                'A batch has its images in another order than they were asked '
                'for, so weights and scores would go to wrong ones: keep the '
                'order in `train_dataloader.collate_fn`.')
        part_of = self._part_of(indices)
        for i, part in enumerate(part_of):
            if asked[i] is not None and i not in others:
                self._decide(part, True)
        for i in others:
            self._try(part_of[i], int(indices[i]) % self._ends[-1])
            delivered[i] = self.comparable[part_of[i]] is False
        return delivered

    @cached_property
    def checksum(self) -> int:
        """int: :func:`images_checksum` of the data set, when it is asked
        for."""
        return images_checksum(self._dataset)

    def _part_of(self, indices: np.ndarray) -> np.ndarray:
        # Where epochs count, a pass has all repeats of the data set.
        return np.searchsorted(self._ends, indices % self._ends[-1], 'right')

    def _try(self, part: int, index: int) -> None:
        """Take note of an image that came with another path."""
        if self.comparable[part]:
            self._warn_of(index)
        elif self.comparable[part] is None:
            tried = self._tried[part]
            tried.add(index)
            if len(tried) >= min(self.NUM_TRIED, self._sizes[part]):
                self._decide(part, False)

    def _decide(self, part: int, comparable: bool) -> None:
        if self.comparable[part] is not None:
            return
        self.comparable[part] = comparable
        if comparable:
            for index in sorted(self._tried[part]):
                self._warn_of(index)
            return
        of_part = '' if len(self._ends) == 1 else (
            f' of part {part} of `train_dataloader.dataset`')
        self._warn(
            f'InfoBatch: the pipeline{of_part} changes `img_path`, so images '
            'that cannot be read, for which the data set delivers others, are '
            'not noticed.')

    def _warn_of(self, index: int) -> None:
        """Warn once of an image for which another one was delivered."""
        path = image_path(self._dataset, index)
        if path not in self._warned_of:
            self._warned_of.add(path)
            self._warn('InfoBatch: the data set delivered another image than '
                       f'{path}, which keeps its score. Check whether this '
                       'file can be read.')

    def load(self, comparable: Union[None, bool,
                                     List[Optional[bool]]]) -> None:
        """Go on with :attr:`comparable` of a checkpoint.

        Args:
            comparable (list[bool, optional] or bool, optional): What it has.
                It was one for all parts in version 0.1.0.
        """
        if not isinstance(comparable, list):
            comparable = [comparable]
        if len(comparable) == len(self._ends):
            self.comparable = list(comparable)
