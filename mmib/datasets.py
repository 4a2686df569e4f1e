# Copyright (c) mmib contributors. All rights reserved.
"""Which image an index of the data set is, through its wrappers, and a
wrapper that shows listed images alone."""
import os.path as osp
import zlib
from functools import cached_property
from typing import (Any, Callable, Dict, List, Optional, Sequence, Set, Sized,
                    Union)

import numpy as np
from mmengine.dataset import (BaseDataset, ClassBalancedDataset, RepeatDataset,
                              force_full_init)
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from torch.utils.data import ConcatDataset

from .image_list import Images, find_images


@DATASETS.register_module()
class ListedImages:
    """A wrapper that shows the listed images of a data set, and no others.

    They come in the order of the data set. An image that the data set repeats
    is listed with all its repeats. Where one of the images can't be read, or
    another one is mixed into it, this is a listed one too, but within other
    wrappers, where a data set takes another of its own images.

    Args:
        dataset (dict or Dataset): The data set, or its config. One that
            derives from ``BaseDataset`` keeps the listed images only.
        images (str, Path or Sequence, optional): File with an image a line,
            or the images themselves: numbers of the images, counted from 0 in
            the order of the data set, or paths, as the data set has them in
            ``img_path``, or their ends where these are unique. Defaults to
            None.
        without (str, Path or Sequence, optional): The same for images that
            are left out, in place of ``images``. Defaults to None.
        lazy_init (bool): Whether to read the list, and the annotations, in
            :meth:`full_init`. Defaults to False.

    Raises:
        TypeError: If ``images`` or ``without`` is neither a file nor a list.
        ValueError: If not exactly one of both is given, if the list can't be
            used, or if the data set mixes its images.

    Examples:
        >>> dict(
        >>>     type='ListedImages',
        >>>     dataset=dict(type='ADE20KDataset', data_root='data/ade'),
        >>>     images='hard.txt')
    """

    def __init__(self,
                 dataset: Any,
                 images: Optional[Images] = None,
                 without: Optional[Images] = None,
                 lazy_init: bool = False) -> None:
        if (images is None) is (without is None):
            raise ValueError(
                'ListedImages in `train_dataloader.dataset` needs either '
                '`images`, those to show, or `without`, those to leave out.')
        self.dataset = (
            DATASETS.build(dataset) if isinstance(dataset, dict) else dataset)
        self.images = images
        self.without = without
        self._fully_initialized = False
        if not lazy_init:
            self.full_init()

    @property
    def metainfo(self) -> dict:
        """dict: What the data set tells of all its images."""
        return self.dataset.metainfo

    @property
    def pipeline(self) -> Any:
        """Compose: The steps of the data set, which hooks may replace."""
        return self.dataset.pipeline

    @pipeline.setter
    def pipeline(self, pipeline: Any) -> None:
        self.dataset.pipeline = pipeline

    def full_init(self) -> None:
        """Read the list, and find its images in the data set."""
        if self._fully_initialized:
            return
        if hasattr(self.dataset, 'full_init'):
            self.dataset.full_init()
        if mixed_in(self.dataset):
            raise ValueError(
                'MultiImageMixDataset within ListedImages, in '
                '`train_dataloader.dataset`, mixes other images into those of '
                'the list: let MultiImageMixDataset wrap ListedImages.')
        of_index = image_numbers(self.dataset)
        num_images = int(of_index.max()) + 1
        numbers, note = find_images(
            self.images if self.without is None else self.without, num_images,
            lambda: image_paths(self.dataset, of_index))
        if self.without is not None:
            numbers = np.setdiff1d(np.arange(num_images), numbers)
            if len(numbers) == 0:
                raise ValueError(
                    '`without` of ListedImages in `train_dataloader.dataset` '
                    'leaves out all images: list fewer.')
        self.numbers = numbers
        """np.ndarray: Numbers of the listed images in the data set,
        increasing, int64 of shape (M,)."""
        self.indices = np.flatnonzero(np.isin(of_index, numbers))
        """np.ndarray: Their indices there, int64 of shape (len(self),)."""
        if isinstance(self.dataset, BaseDataset):
            # It takes another image in place of one that can't be read.
            self.dataset.get_subset_(self.indices.tolist())
            self.indices = np.arange(len(self.indices))
        text = f'InfoBatch: the data set has {len(numbers)} of {num_images} '
        text += 'images, ' + ('those' if self.without is None else 'all but '
                              'those')
        listed = self.images if self.without is None else self.without
        text += f' of {listed}' if isinstance(listed, str) else ' of a list'
        print_log(f'{text}{note and f"; {note}"}.', 'current')
        self._fully_initialized = True

    @force_full_init
    def get_data_info(self, idx: int) -> Dict[str, Any]:
        """The annotation of a listed image."""
        return self.dataset.get_data_info(int(self.indices[idx]))

    @force_full_init
    def get_cat_ids(self, idx: int) -> List[int]:
        """The categories in a listed image."""
        return self.dataset.get_cat_ids(int(self.indices[idx]))

    @force_full_init
    def __getitem__(self, idx: int) -> Any:
        return self.dataset[int(self.indices[idx])]

    @force_full_init
    def __len__(self) -> int:
        return len(self.indices)


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
    if isinstance(dataset, ListedImages):
        numbers = image_numbers(dataset.dataset)[dataset.indices]
        return np.unique(numbers, return_inverse=True)[1]
    return np.arange(len(dataset))


def _parts(dataset: Any) -> list:
    """The data sets that a wrapper has, none of one that is no wrapper."""
    if isinstance(dataset, ConcatDataset):
        return list(dataset.datasets)
    return [dataset.dataset] if hasattr(dataset, 'dataset') else []


def _listed(dataset: Any) -> List[np.ndarray]:
    """Numbers of the images of each list in a data set."""
    own = [dataset.numbers] if isinstance(dataset, ListedImages) else []
    return sum(map(_listed, _parts(dataset)), own)


def _part_ends(dataset: Any) -> List[int]:
    """Where each part of a ``ConcatDataset`` ends, as indices of a data
    set."""
    if isinstance(dataset, ConcatDataset):
        return list(dataset.cumulative_sizes)
    if isinstance(dataset, ListedImages):
        ends = _part_ends(unwrap_repeats(dataset.dataset))
        return np.searchsorted(dataset.indices, ends).tolist()
    return [len(dataset)]


def mixed_in(dataset: Any) -> bool:
    """Whether a data set mixes other images of it into some."""
    return _mixes_images(dataset) or any(map(mixed_in, _parts(dataset)))


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
    data set may be moved. Images without a path are counted. Of a list of
    images their numbers count too.

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
    checksum = zlib.crc32(images.astype(np.int64).tobytes())
    for numbers in _listed(dataset):
        checksum = zlib.crc32(numbers.tobytes(), checksum)
    # File names may be no text in UTF-8.
    return zlib.crc32(names.encode(errors='surrogatepass'), checksum)


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
    """

    NUM_TRIED = 10

    def __init__(self, dataset: Sized, warn: Callable[[str], None]) -> None:
        self._dataset = dataset
        self._warn = warn
        self._warned_of: Set[str] = set()
        self._ends = _part_ends(unwrap_repeats(dataset))
        self._sizes = np.diff(self._ends, prepend=0)
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
