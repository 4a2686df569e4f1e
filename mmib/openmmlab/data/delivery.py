# Copyright (c) mmib contributors. All rights reserved.
"""Which images of a batch are those that were asked for."""
from functools import cached_property
from typing import Any, Callable, List, Optional, Sequence, Set, Sized

import numpy as np

from ...errors import Refusal
from .datasets import image_path, images_checksum, part_ends, unwrap_repeats


def data_samples(data_batch: Any) -> Optional[Sequence]:
    """Data samples of a batch, or None where the batch isn't one of a
    library of OpenMMLab."""
    return data_batch.get('data_samples') if isinstance(data_batch,
                                                        dict) else None


class DeliveryCheck:
    """Tells which images of a batch are those that were asked for.

    Where the pipeline returns None, as for an image that can't be read,
    MMEngine's data sets deliver another image. The ``img_path`` of the sample
    shows this. A pipeline may change all paths, which then tell nothing. One
    image with its own path, or :attr:`NUM_TRIED` images with other paths,
    decide this for each part of a ``ConcatDataset``. Until then an image whose
    path doesn't match isn't scored.

    Args:
        dataset (Sized): The data set of the data loader.
        warn (Callable): Takes a sentence for the user.
    """

    NUM_TRIED = 10

    def __init__(self, dataset: Sized, warn: Callable[[str], None]) -> None:
        self._dataset = dataset
        self._warn = warn
        self._warned_of: Set[str] = set()
        self._ends = part_ends(unwrap_repeats(dataset))
        self._sizes = np.diff(self._ends, prepend=0)
        # Of each part, whether samples have the paths of the data set. None is
        # not known yet.
        self.comparable: List[Optional[bool]] = [None] * len(self._ends)
        # Images of each part that came with another path so far.
        self._tried: List[Set[int]] = [set() for _ in self._ends]

    def __call__(self, indices: np.ndarray,
                 samples: Optional[Sequence]) -> np.ndarray:
        """Whether each sample of a batch is the image of its index, bool of
        shape (B,). True where nothing tells.

        Raises:
            Refusal: If the batch has the right images in another order.
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
            i for i, path in enumerate(asked) if path not in (None, paths[i])
        ]
        # The path of an image that can't be read is missing in the batch.
        if others and (sorted(paths[i]
                              for i in others) == sorted(asked[i]
                                                         for i in others)):
            raise Refusal(
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
        """int: :func:`images_checksum` of the data set."""
        return images_checksum(self._dataset)

    def _part_of(self, indices: np.ndarray) -> np.ndarray:
        # A pass of a training by epochs has all repeats of the data set.
        return np.searchsorted(self._ends, indices % self._ends[-1], 'right')

    def _try(self, part: int, index: int) -> None:
        """Note an image that came with another path."""
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
            f'InfoBatch: the pipeline{of_part} changes `img_path`, so it is '
            'not noticed where the data set delivers another image in place of'
            ' one that cannot be read.')

    def _warn_of(self, index: int) -> None:
        """Warn once for each image that another one replaced."""
        path = image_path(self._dataset, index)
        if path not in self._warned_of:
            self._warned_of.add(path)
            self._warn('InfoBatch: the data set delivered another image than '
                       f'{path}, which keeps its score. Check whether this '
                       'file can be read.')

    def load(self, comparable: List[Optional[bool]]) -> None:
        """Go on with :attr:`comparable` of a checkpoint."""
        if len(comparable) == len(self._ends):
            self.comparable = list(comparable)

    def why_not(self, checksum: Optional[int]) -> Optional[str]:
        """Why a checkpoint with a checksum of images isn't of this data set,
        or None."""
        if checksum == self.checksum:
            return None
        return ('the checkpoint is of other images than '
                '`train_dataloader.dataset` has, or of the same in another '
                'order')
