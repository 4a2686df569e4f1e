# Copyright (c) mmib contributors. All rights reserved.
"""Full passes over the dataset, in the baseline's order."""
from typing import Any, Dict, Optional

import numpy as np
import torch


class BaselineOrder:
    """The order of the images in the passes of the baseline's sampler.

    Args:
        num_indices (int): Indices of the dataset.
        shuffle (bool): Whether a pass is shuffled.
        seed (int): Random seed.
    """

    def __init__(self, num_indices: int, shuffle: bool, seed: int) -> None:
        self._num_indices, self.shuffle = num_indices, shuffle
        self._seed = seed
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)
        # The permutation in use, how many of its indices were returned, and
        # the state of the generator before the permutation.
        self._order, self._used = np.empty(0, np.int64), 0
        self._before = self._generator.get_state()

    def reseeded(self, seed: int) -> 'BaselineOrder':
        """Return the order of another seed, from its beginning."""
        return BaselineOrder(self._num_indices, self.shuffle, seed)

    def of_epoch(self, epoch: int) -> np.ndarray:
        """Return the pass of MMEngine's ``DefaultSampler`` in an epoch."""
        generator = torch.Generator()
        generator.manual_seed(self._seed + epoch)
        return self._permutation(generator)

    def next(self, size: int, limit: Optional[int] = None) -> np.ndarray:
        """Return the next indices of MMEngine's ``InfiniteSampler``, up to the
        end of a pass of ``size`` indices, and at most ``limit``. A pass that
        was cut short goes on."""
        if self._used == len(self._order):
            self._before = self._generator.get_state()
            self._order, self._used = self._permutation(self._generator), 0
        begin = self._used
        self._used = begin + min(size - begin % size, limit or size)
        return self._order[begin:self._used]

    def skip(self, position: int, size: int) -> None:
        """Skip the indices before a position, in passes of ``size``."""
        passes, rest = divmod(position, self._num_indices)
        for _ in range(passes):
            self._permutation(self._generator)
        self._before = self._generator.get_state()
        while rest > 0:
            rest -= len(self.next(size, rest))

    def _permutation(self, generator: torch.Generator) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self._num_indices)
        return torch.randperm(self._num_indices, generator=generator).numpy()

    def state_dict(self) -> Dict[str, Any]:
        """Return tensors and plain Python values."""
        return dict(generator=self._before, used=self._used)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Resume where :meth:`state_dict` was called."""
        self._before = state_dict['generator']
        self._generator.set_state(self._before)
        self._used = state_dict['used']
        if self._used:
            self._order = self._permutation(self._generator)
