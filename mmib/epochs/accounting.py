# Copyright (c) mmib contributors. All rights reserved.
"""How far a training that counts epochs is."""
import sys
from typing import List, Optional, Tuple

from ..accounting import Accounting, Origin, VirtualEpoch
from ..pruning import Progress, TierNorms


class EpochAccounting(Accounting):
    """The accounts of a training that counts epochs, each a virtual epoch.

    The training has as many epochs as the baseline, of fewer iterations. An
    iteration of the schedule is one of the baseline.

    Args:
        pass_length (int): Slots of a full pass.
        slots_per_iter (int): Slots of an iteration, of all ranks.
        iters_per_epoch (int): Iterations of an epoch of the baseline.
        max_epochs (int): Epochs of the training.
        delta (float): Fraction of the epochs after which the training is
            annealing, in [0, 1].
        start (float): Fraction of the epochs before which nothing is pruned.
            Defaults to 0.
        steps_per_epoch (int, optional): Iterations of an epoch for which the
            schedulers were made. If None, those of the baseline. Defaults to
            None.
        epoch (int): Epochs that are over, where the training is resumed.
            Defaults to 0.
    """

    unit = 'epoch'

    def __init__(self,
                 pass_length: int,
                 slots_per_iter: int,
                 iters_per_epoch: int,
                 max_epochs: int,
                 delta: float,
                 start: float = 0.,
                 steps_per_epoch: Optional[int] = None,
                 epoch: int = 0) -> None:
        super().__init__(pass_length, slots_per_iter,
                         max_epochs * iters_per_epoch, delta, start)
        self.iters_per_epoch = iters_per_epoch
        # With another batch size the schedulers go on as they were.
        self._steps_per_epoch = steps_per_epoch or iters_per_epoch
        self.max_epochs = max_epochs
        self.annealing_epoch = round(delta * max_epochs)
        self._start_epoch = round(start * max_epochs)
        # In the first epoch there are no scores.
        self.first_epoch = max(self._start_epoch, 1)
        self.epoch = epoch
        """int: The one that has begun last, from 0."""
        # Where annealing has begun. The length of the epochs before it isn't
        # known in advance.
        self._annealing_start = sys.maxsize
        self._since = Origin()
        self._epoch_start = self._epoch_end = 0
        # Iterations of the schedule that are gone. None before the first
        # epoch.
        self._num_steps: Optional[int] = None

    @property
    def since(self) -> Origin:
        return self._since

    @property
    def annealing_at(self) -> int:
        return self.annealing_epoch

    @property
    def length(self) -> int:
        return self.max_epochs

    def now(self, iteration: int) -> int:
        return self.epoch

    @property
    def annealing_start(self) -> int:
        return self._annealing_start

    @property
    def pruning_start(self) -> int:
        return 0 if self.epoch >= self._start_epoch else sys.maxsize

    def prunes_nothing(self, first: int) -> bool:
        return self.annealing_epoch <= self.first_epoch

    def covered(self, last: Optional[VirtualEpoch], start: int) -> float:
        return float(self.epoch)

    def begin_epoch(self, epoch: int, iteration: int, position: int) -> None:
        """Begin an epoch, when its plan is to be drawn.

        Args:
            epoch (int): Epochs before it.
            iteration (int): Iterations of the training before it.
            position (int): Slots before it.
        """
        self.epoch = epoch
        self.origin = Origin(iteration, position, float(epoch),
                             self.full_equivalent(epoch))
        self._annealing_start = (
            min(self._annealing_start, position)
            if epoch >= self.annealing_epoch else sys.maxsize)
        self._epoch_start = position
        if self._num_steps is None:
            self._num_steps = epoch * self._steps_per_epoch

    def iteration_at(self, position: int) -> int:
        slots = max(min(position, self._epoch_end) - self.origin.position, 0)
        # The last batch of an epoch may be short.
        return self.origin.iteration + -(-slots // self.slots_per_iter)

    def full_equivalent(self, covered: float) -> float:
        return self.origin.full_equivalent + (
            covered - self.origin.covered) * self.iters_per_epoch

    def expect(self, position: int, num_slots: int) -> None:
        """Be told how much of the epoch is left.

        Args:
            position (int): Slots before it.
            num_slots (int): Slots that will be trained on.
        """
        self._epoch_end = position + num_slots

    def steps_due(self, position: int) -> int:
        """Iterations of the schedule that this iteration stands for. At the
        end of the epoch they are as many as the baseline has. Where an epoch
        was left early, as with another batch size and ``drop_last``, the next
        one makes up for it.

        Args:
            position (int): Slots before the next iteration.
        """
        assert self._num_steps is not None
        done = self._steps_per_epoch * (position - self._epoch_start) // (
            self._epoch_end - self._epoch_start)
        due = max(self.epoch * self._steps_per_epoch + done - self._num_steps,
                  0)
        self._num_steps += due
        return due

    def iters_left(self, share: float) -> int:
        """Iterations to expect of the epochs after this one.

        Args:
            share (float): Kept share of those that prune.
        """
        left = self.max_epochs - self.epoch - 1
        annealing = min(left, self.max_epochs - self.annealing_epoch)
        return round(self.iters_per_epoch * (annealing +
                                             (left - annealing) * share))

    def outcome(self, share: float, first: int) -> Tuple[float, float]:
        pruned = self.iters_per_epoch * max(
            self.annealing_epoch - self.first_epoch, 0)
        return self.max_iters - pruned * (1 - share), self.max_iters

    def first_progress(self, first: int) -> Progress:
        return self._progress(self.first_epoch,
                              self.first_epoch * self.pass_length)

    def progress(self,
                 start: int,
                 covered: float,
                 first: int,
                 norms: Optional[TierNorms] = None) -> Progress:
        return self._progress(self.epoch, start, norms)

    def _progress(self,
                  epoch: int,
                  start: int,
                  norms: Optional[TierNorms] = None) -> Progress:
        pruning = max(self.annealing_epoch - self.first_epoch, 1)
        return Progress(
            slots_per_iter=self.slots_per_iter,
            max_iters=self.max_iters,
            slots_left=(self.annealing_epoch - epoch) * self.pass_length,
            annealing_slots=(self.max_epochs - self.annealing_epoch) *
            self.pass_length,
            full_equivalent=float(epoch * self.iters_per_epoch),
            done=min((epoch + 0.5 - self.first_epoch) / pruning, 1.),
            norms=norms,
            # Those before count as full.
            spent=int(self.since.covered) * self.pass_length + start -
            self.since.position,
            full_slots=self.max_epochs * self.pass_length)

    def state_dict(self, covered: float) -> dict:
        return dict(
            super().state_dict(covered),
            epoch=self.epoch,
            steps_per_epoch=self._steps_per_epoch,
            annealing_epoch=self.annealing_epoch,
            annealing_start=self._annealing_start,
            since=tuple(self._since),
            epoch_start=self._epoch_start,
            epoch_end=self._epoch_end,
            num_steps=self._num_steps)

    def load_state_dict(self, state_dict: dict, iteration: int, position: int,
                        covered: float, pruned_until: int) -> List[str]:
        changes = []
        self.epoch = state_dict['epoch']
        self._steps_per_epoch = state_dict['steps_per_epoch']
        self._annealing_start = state_dict['annealing_start']
        self._since = Origin(*state_dict['since'])
        self._epoch_start = state_dict['epoch_start']
        # Older ones lack it: all slots until here were trained on.
        self._epoch_end = state_dict.get('epoch_end', position)
        self._num_steps = state_dict['num_steps']
        self.origin = Origin(*state_dict['origin'])
        if state_dict['slots_per_iter'] != self.slots_per_iter:
            changes.append(
                f'an iteration has {self.slots_per_iter} images instead of '
                f'{state_dict["slots_per_iter"]}')
            self.origin = Origin(iteration, position, covered,
                                 state_dict['full_equivalent'])
        if state_dict['annealing_epoch'] != self.annealing_epoch:
            changes.append(
                f'annealing begins at epoch {self.annealing_epoch} instead of '
                f'{state_dict["annealing_epoch"]}')
        return changes

    def begin(self, iteration: int, position: int,
              full_equivalent: float) -> None:
        # Passes were those of another data set, if the list has changed.
        self.origin = self._since = Origin(iteration, position,
                                           float(self.epoch), full_equivalent)
        self._epoch_end = position
        self.first_epoch = max(self.first_epoch, self.epoch + 1)
