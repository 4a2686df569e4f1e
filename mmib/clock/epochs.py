# Copyright (c) mmib contributors. All rights reserved.
"""How far a training that counts epochs is."""
import sys
from typing import Callable, List, Optional, Tuple

from mmengine.runner import Runner

from .. import compat
from ..errors import ValueRefusal
from ..plan_record import PlanRecord
from ..pruning import Policy, Progress
from ..sampler import InfoBatchSampler
from .clock import Clock, Origin


class EpochClock(Clock):
    """The clock of a training that counts epochs, each a virtual epoch.

    The training has as many epochs as the baseline, of fewer iterations. Each
    epoch has the validation, the checkpoints and the learning rate that it
    has in the baseline.

    Args:
        iters_per_epoch (int): Iterations of an epoch of the baseline.
        max_epochs (int): Epochs of the training.
        steps_per_epoch (int, optional): Iterations of an epoch for which the
            schedulers were made. If None, ``iters_per_epoch``. Defaults to
            None.
        epoch (int): Epochs that are over, where the training is resumed.
            Defaults to 0.

    Other arguments are those of :class:`Clock`.
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
                         max_epochs * iters_per_epoch, max_epochs, delta,
                         start)
        self.iters_per_epoch = iters_per_epoch
        # With another batch size the schedulers go on as they were.
        self._steps_per_epoch = steps_per_epoch or iters_per_epoch
        # In the first epoch there are no scores.
        self._first_epoch = max(self.start_at, 1)
        self.epoch = epoch
        """int: The epoch that has begun last, from 0."""
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
    def annealing_start(self) -> int:
        return self._annealing_start

    @property
    def _start_slot(self) -> int:
        return 0 if self.epoch >= self.start_at else sys.maxsize

    @property
    def prunes_nothing(self) -> bool:
        return self.annealing_at <= self._first_epoch

    def _now(self, iteration: int) -> int:
        return self.epoch

    def iteration_at(self, position: int) -> int:
        slots = max(min(position, self._epoch_end) - self.origin.position, 0)
        # The last batch of an epoch may be short.
        return self.origin.iteration + -(-slots // self.slots_per_iter)

    def covered(self, last: Optional[PlanRecord], start: int) -> float:
        return float(self.epoch)

    def full_equivalent(self, covered: float) -> float:
        return self.origin.full_equivalent + (
            covered - self.origin.covered) * self.iters_per_epoch

    def progress(self, start: int, covered: float, policy: Policy) -> Progress:
        if policy.full_iters is not None:
            raise ValueRefusal(
                f'`full_iters = {policy.full_iters}` is for a training that '
                'counts iterations, and this one counts epochs: remove it from'
                ' the `policy` of InfoBatchHook in `custom_hooks`, and set '
                '`ratio` there, the share of the iterations to run.')
        # Epochs before `since` count as full.
        spent = (
            int(self.since.covered) * self.pass_length + start -
            self.since.position)
        annealing_slots = (self.length - self.annealing_at) * self.pass_length
        budget = policy.budget * (self.length * self.pass_length)
        return Progress(
            slots_left=budget - spent - annealing_slots,
            full_slots=(self.annealing_at - int(covered)) * self.pass_length)

    def first_progress(self, policy: Policy) -> Progress:
        # Epochs until then are full ones.
        passes = self._first_epoch - int(self.since.covered)
        start = self.since.position + passes * self.pass_length
        return self.progress(start, self._first_epoch, policy)

    def outcome(self, share: float) -> Tuple[float, float, float]:
        pruned = self.iters_per_epoch * max(
            self.annealing_at - self._first_epoch, 0)
        iters = self.schedule_iters - pruned * (1 - share)
        return iters, self.schedule_iters, self.length

    def check_length(self) -> None:
        if self.length < 2:
            raise ValueRefusal(
                f'`train_cfg.max_epochs` is {self.length}, and InfoBatch '
                'needs 2 or more, as nothing can be pruned in the first '
                'epoch: train for longer, or remove InfoBatchHook and '
                'InfoBatchSampler. To try a config in a short time, take a '
                'few images: `train_dataloader.dataset.indices=64`.')
        if self.iters_per_epoch == 0:
            raise ValueRefusal(
                f'An iteration has {self.slots_per_iter} images, the data set '
                f'{self.pass_length}, and `drop_last` leaves them all: lower '
                '`train_dataloader.batch_size`, or remove '
                '`train_dataloader.drop_last`.')

    def connect(self, runner: Runner, sampler: InfoBatchSampler,
                draw_plan: Callable) -> None:
        super().connect(runner, sampler, draw_plan)
        compat.follow_progress(runner,
                               lambda: self.steps_due(sampler.position))

    def begin_epoch(self, runner: Runner, sampler: InfoBatchSampler,
                    next_share: Callable[[], float]) -> None:
        """Draw the plan of the epoch that begins, or go on with the plan of a
        checkpoint within the epoch."""
        if sampler.is_open and self.epoch != runner.epoch:
            # A checkpoint that a hook has saved at the edge, before it ended.
            sampler.end_epoch()
        # DistSamplerSeedHook may act later, by a `priority` of InfoBatchHook.
        sampler.set_epoch(runner.epoch)
        is_new = not sampler.is_open
        if is_new:
            self.enter(runner.epoch, runner.iter, sampler.position)
        sampler.begin_epoch()
        # With `drop_last` the loader leaves what doesn't fill a batch.
        iters = len(runner.train_dataloader)
        slots = len(sampler) * sampler.world_size
        if is_new and iters == 0:
            runner.logger.warning(
                f'InfoBatch: nothing is trained on in epoch {runner.epoch + 1}'
                f', as its plan has {slots} images, an iteration '
                f'{self.slots_per_iter}, and `drop_last` leaves them: lower '
                '`train_dataloader.batch_size`, remove '
                '`train_dataloader.drop_last`, or let the `policy` of '
                'InfoBatchHook in `custom_hooks` keep more.')
        self.expect(sampler.position, min(iters * self.slots_per_iter, slots))
        compat.expect_iters(
            runner,
            runner.iter + iters + self._iters_left(next_share()),
            is_last=runner.epoch + 1 == runner.max_epochs)

    def end_epoch(self, sampler: InfoBatchSampler) -> None:
        sampler.end_epoch()

    def enter(self, epoch: int, iteration: int, position: int) -> None:
        """Begin an epoch, when its plan is to be drawn: after so many epochs,
        iterations and slots."""
        self.epoch = epoch
        self.origin = Origin(iteration, position, float(epoch),
                             self.full_equivalent(epoch))
        self._annealing_start = (
            min(self._annealing_start, position)
            if epoch >= self.annealing_at else sys.maxsize)
        self._epoch_start = position
        if self._num_steps is None:
            self._num_steps = epoch * self._steps_per_epoch

    def expect(self, position: int, num_slots: int) -> None:
        """Be told that from a position on ``num_slots`` slots of the epoch
        will be trained on."""
        self._epoch_end = position + num_slots

    def steps_due(self, position: int) -> int:
        """Iterations of the schedule that this iteration stands for. An epoch
        has as many of them as in the baseline. Where an epoch was left early,
        as with another batch size and ``drop_last``, the next epoch makes up
        for that.

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

    def _iters_left(self, share: float) -> int:
        """Iterations to expect of the epochs after this one, with the kept
        share of those that prune."""
        left = self.length - self.epoch - 1
        annealing = min(left, self.length - self.annealing_at)
        return round(self.iters_per_epoch * (annealing +
                                             (left - annealing) * share))

    def state_dict(self, covered: float) -> dict:
        return dict(
            super().state_dict(covered),
            epoch=self.epoch,
            steps_per_epoch=self._steps_per_epoch,
            annealing_start=self._annealing_start,
            since=tuple(self._since),
            epoch_start=self._epoch_start,
            epoch_end=self._epoch_end,
            num_steps=self._num_steps)

    def load_state_dict(self, state_dict: dict, iteration: int, position: int,
                        covered: float, pruned_until: int) -> List[str]:
        self.epoch = state_dict['epoch']
        self._steps_per_epoch = state_dict['steps_per_epoch']
        self._annealing_start = state_dict['annealing_start']
        self._since = Origin(*state_dict['since'])
        self._epoch_start = state_dict['epoch_start']
        self._epoch_end = state_dict['epoch_end']
        self._num_steps = state_dict['num_steps']
        return super().load_state_dict(state_dict, iteration, position,
                                       covered, pruned_until)

    def begin(self, iteration: int, position: int,
              full_equivalent: float) -> None:
        super().begin(iteration, position, full_equivalent)
        self._since = self.origin
        self._epoch_end = position
        self._first_epoch = max(self._first_epoch, self.epoch + 1)
