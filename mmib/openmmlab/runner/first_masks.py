# Copyright (c) mmib contributors. All rights reserved.
"""Classes without a pixel in the first masks of a run."""
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from mmengine.logging import print_log

# How many masks are looked at, and how many classes all lie in so many.
_MASKS, _FEW = 64, 10
# The label of a pixel of no class.
_IGNORED = 255


class FirstMasks:
    """The labels of the first images that a run of MMSegmentation trains on.

    Many tools write masks of 0 and 255. MMSegmentation ignores pixels of 255,
    so such a run learns the background alone, at a mIoU of 100. A warning
    names the classes that have no pixel. Where there are many classes, the
    first masks lack some, so that the warning comes only if all pixels have
    one class.

    Args:
        dataset (Dataset): The dataset that the run trains on.
        world_size (int): How many ranks share the dataset.
    """

    def __init__(self, dataset: Any, world_size: int) -> None:
        metainfo = getattr(dataset, 'metainfo', None) or {}
        self._classes = [*map(str, metainfo.get('classes') or ())]
        self._left = min(_MASKS, len(dataset) // world_size)
        # Pixels of each label in the masks so far.
        self._pixels = np.zeros(256, np.int64)
        self._masks = 0

    def see(self, data_batch: Any) -> None:
        """Look at the masks of a batch, before the step."""
        if self._left <= 0:
            return
        samples = data_batch.get('data_samples') if isinstance(
            data_batch, Mapping) else None
        # Masks on the training device are left alone: a copy would wait.
        is_known = isinstance(samples, (list, tuple)) and all(
            'gt_sem_seg' in each and not each.gt_sem_seg.data.is_cuda
            for each in samples)
        if not samples or not is_known:
            self._left = 0
            return
        for sample in samples:
            labels = sample.gt_sem_seg.data.numpy().ravel()
            labels = labels[(labels >= 0) & (labels < 256)]
            self._pixels += np.bincount(labels, minlength=256)
        self._masks += len(samples)
        self._left -= len(samples)
        known = self._pixels[:len(self._classes)][:_IGNORED]
        absent = np.flatnonzero(known == 0).tolist()
        if not absent:
            self._left = 0
        elif self._left <= 0 and (len(known) <= _FEW
                                  or len(absent) >= len(known) - 1):
            names = ', '.join(self._classes[n] for n in absent[:_FEW])
            share = self._pixels[_IGNORED] / self._pixels.sum()
            print_log(
                f'InfoBatch: no pixel of the first {self._masks} masks has '
                f'the class {names}; {share:.0%} of the pixels have no class. '
                f'Does a number of the masks, such as {_IGNORED}, stand for '
                'the class? A pixel of 255 is ignored, and the metrics of a '
                'class without pixels are nan: give each class its number, '
                'from 0, and check `reduce_zero_label`.', 'current',
                logging.WARNING)
