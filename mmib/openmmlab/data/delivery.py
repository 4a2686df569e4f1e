# Copyright (c) mmib contributors. All rights reserved.
"""Which images of a batch are those that were asked for."""
from typing import Any, Callable, List, Optional, Sequence, Set, Sized

import numpy as np

from ...errors import Refusal
from .datasets import (image_numbers, image_path, image_paths, images_checksum,
                       part_ends, unwrap_repeats)


def _hashes_of(paths: Sequence) -> np.ndarray:
    """Return the hash of each path, int64 of shape (N,)."""
    return np.array([hash(str(path)) for path in paths], np.int64)


class DeliveryCheck:
    """Compares the images of each batch with those that were asked for.

    Where the pipeline returns None, as for an image that can't be read,
    MMEngine's datasets deliver another image. The ``img_path`` of the sample
    shows this. A pipeline may change all paths, which then show nothing. One
    image with its own path, or :attr:`NUM_TRIED` images with other paths,
    decide this for each part of a ``ConcatDataset``. Until then an image whose
    path doesn't match isn't scored.

    Args:
        dataset (Sized): The dataset of the data loader.
        warn (Callable): Takes a sentence for the user, and shows it once.
    """

    NUM_TRIED = 10

    def __init__(self, dataset: Sized, warn: Callable[[str], None]) -> None:
        self._dataset = dataset = unwrap_repeats(dataset)
        self._warn = warn
        images = image_numbers(dataset)
        paths = image_paths(dataset, images)
        self.checksum = images_checksum(dataset, paths)
        """int: :func:`images_checksum` of the dataset."""
        _, of_image = np.unique(images, return_inverse=True)
        # Of each index. To read a path anew in each step would cost more than
        # everything else that the hook does there.
        self._has_path = np.array([x is not None for x in paths])[of_image]
        self._hashes = _hashes_of(paths)[of_image]
        self._ends = part_ends(dataset)
        self._sizes = np.diff(self._ends, prepend=0)
        self.comparable: List[Optional[bool]] = [None] * len(self._ends)
        """list[bool, optional]: Of each part, whether samples have the paths
        of the dataset. None is not known yet."""
        # Images of each part that came with another path so far.
        self._tried: List[Set[int]] = [set() for _ in self._ends]

    def __call__(self, indices: np.ndarray, data_batch: Any) -> np.ndarray:
        """Return whether each sample of a batch is the image of its index,
        bool of shape (B,). True where nothing shows it.

        Raises:
            Refusal: If the batch has the right images in another order.
        """
        delivered = np.ones(len(indices), bool)
        samples = (
            data_batch.get('data_samples')
            if isinstance(data_batch, dict) else None)
        if samples is None or all(x is False for x in self.comparable):
            return delivered
        rows = indices % len(self._hashes)
        paths = [getattr(sample, 'img_path', None) for sample in samples]
        known = self._has_path[rows] & [path is not None for path in paths]
        hashes = _hashes_of(paths)
        others = known & (self._hashes[rows] != hashes)
        decides = None in self.comparable and known.any()
        # In nearly all steps no path differs, and the parts don't matter.
        if not (decides or others.any()):
            return delivered
        # The path of an image that can't be read is missing in the batch.
        if others.any() and (sorted(hashes[others]) == sorted(
                self._hashes[rows[others]])):
            raise Refusal(
                'A batch has its images in another order than they were asked '
                'for, so weights and scores would go to wrong images: keep the'
                ' order in `train_dataloader.collate_fn`.')
        # A pass of a run by epochs has all repeats of the dataset.
        part_of = np.searchsorted(self._ends, indices % self._ends[-1],
                                  'right')
        if decides:
            for part in np.unique(part_of[known & ~others]):
                self._decide(part, True)
        for i in np.flatnonzero(others):
            part, index = part_of[i], int(rows[i])
            if self.comparable[part] is None:
                tried = self._tried[part]
                tried.add(index)
                if len(tried) >= min(self.NUM_TRIED, self._sizes[part]):
                    self._decide(part, False)
            elif self.comparable[part]:
                self._warn_of(index)
            delivered[i] = self.comparable[part] is False
        return delivered

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
            f'InfoBatch: the pipeline{of_part} changes `img_path`, so it is '
            'not noticed where the dataset delivers another image in place of'
            ' an image that cannot be read.')

    def _warn_of(self, index: int) -> None:
        """Warn of an image that another one replaced."""
        self._warn(
            'InfoBatch: the dataset delivered another image than '
            f'{image_path(self._dataset, index)}, which keeps its score. Check'
            ' whether this file can be read.')

    def load(self, comparable: List[Optional[bool]]) -> None:
        """Go on with :attr:`comparable` of a checkpoint."""
        if len(comparable) == len(self._ends):
            self.comparable = list(comparable)
