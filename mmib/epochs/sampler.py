# Copyright (c) mmib contributors. All rights reserved.
"""The index stream of a training that counts epochs."""
from typing import Any, Iterator, Optional, Sized

import numpy as np
from mmengine.registry import DATA_SAMPLERS

from ..pruning import EpochPlan
from ..sampler import InfoBatchSampler


@DATA_SAMPLERS.register_module()
class InfoBatchEpochSampler(InfoBatchSampler):
    """``DefaultSampler`` that skips what :class:`InfoBatchHook` prunes.

    For a training that counts epochs. Each epoch is a virtual epoch: the hook
    has its plan drawn when it begins, and it ends after the last slot, so it
    is as much shorter as images are pruned. Where nothing is pruned, the
    indices are those of ``DefaultSampler`` with the same seed, one by one.

    As there, slots from the beginning of a plan follow its last one until all
    ranks have as many.

    Only the training loop reads plans. Whoever else reads, such as
    ``PreciseBNHook`` between two epochs, gets what it gets from
    ``DefaultSampler``.

    Args:
        dataset (Sized): The data set. Repeats of an image belong to one
            epoch, and have one score.
        shuffle (bool): Whether to shuffle the data set. If not, plans keep
            its order. Defaults to True.
        seed (int, optional): Random seed. If None, all ranks agree on a
            random one. Defaults to None.
        round_up (bool): Whether all ranks have as many slots. Ranks that
            train together must. Defaults to True.

    Raises:
        TypeError: If there is another argument.
        ValueError: If the data set is empty, or ranks would have different
            numbers of slots.
    """

    _baseline = 'DefaultSampler'

    def __init__(self,
                 dataset: Sized,
                 shuffle: bool = True,
                 seed: Optional[int] = None,
                 round_up: bool = True,
                 **unknown: Any) -> None:
        self.epoch = 0
        # The plan of an epoch is drawn, and what it has left isn't over.
        self._is_open = False
        # The next iterator is that of the training loop.
        self._awaits_loop = False
        self._num_slots = 0
        super().__init__(dataset, shuffle, seed, **unknown)
        if not round_up and self.world_size > 1:
            raise ValueError(
                'With `round_up=False` some ranks have a batch less, and the '
                'others would wait for them: remove it from '
                '`train_dataloader.sampler`.')

    def __iter__(self) -> Iterator[int]:
        """Issue the slots of this rank in the epoch that has begun.

        Raises:
            RuntimeError: If the training has no hook.
        """
        # This runs at the first `next`: torch may call `iter` without it.
        if self._draw_plan is None and not self._built_in_training:
            self._check_hook()
        if not self._awaits_loop:
            indices = self._rounded_up(self._full_plan()).indices
            yield from indices[self.rank::self.world_size].tolist()
            return
        self._awaits_loop = False
        while self._issued < len(self._slots):
            index = self._slots.indices[self._issued + self.rank]
            self._issued += self.world_size
            yield int(index)

    def __len__(self) -> int:
        """Slots of this rank: of the epoch in training, else of a full one."""
        slots = self._num_slots if self._is_open else self.pass_length
        return -(-slots // self.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next full pass, as in ``DefaultSampler``."""
        self.epoch = epoch

    def batch_length(self, batch_size: int) -> int:
        # The last batch of an epoch may be shorter.
        return min(batch_size, len(self._slots) // self.world_size)

    @property
    def is_open(self) -> bool:
        """bool: Whether an epoch has begun and didn't end."""
        return self._is_open

    def begin_epoch(self) -> None:
        """Draw the plan of an epoch, unless a checkpoint had begun one: then
        it goes on with the rest."""
        if not self._is_open:
            self._extend()
            self._is_open = True
        # A checkpoint may be of another number of ranks.
        self._slots = self._rounded_up(self._slots)
        self._num_slots = len(self._slots)
        self._issued = 0
        self._awaits_loop = True

    def end_epoch(self) -> None:
        """Leave the slots that didn't fill a batch, as ``drop_last`` does."""
        self._position += len(self._slots)
        self._slots = self._no_slots()
        self._is_open = False

    def skip(self, num_indices: int) -> None:
        """Go to an absolute position between two epochs.

        Args:
            num_indices (int): Indices of this rank before the position.
        """
        self._position = num_indices * self.world_size
        self._slots = self._no_slots()
        self._forget_issued()

    def state_dict(self) -> dict:
        return dict(super().state_dict(), is_open=self._is_open)

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        self._is_open = state_dict['is_open']

    @staticmethod
    def _length_of_pass(dataset: Sized) -> int:
        return len(dataset)

    def _full_plan(self) -> EpochPlan:
        """The pass of ``DefaultSampler`` in this epoch."""
        # Plans that prune draw from other generators, so a full pass is that
        # of the baseline whatever came before.
        self._full_passes_rng.manual_seed(self.seed + self.epoch)
        return super()._full_plan()

    def _rounded_up(self, plan: EpochPlan) -> EpochPlan:
        """With slots of its beginning again, so that ranks have as many."""
        missing = -len(plan) % self.world_size
        if len(plan) == 0 or missing == 0:
            return plan
        return plan[np.resize(np.arange(len(plan)), len(plan) + missing)]
