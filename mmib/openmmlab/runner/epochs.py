# Copyright (c) mmib contributors. All rights reserved.
"""What drives MMEngine in a run whose epochs are shorter than the epochs of
its schedule: the steps of schedulers, and the iterations that are left."""
from typing import Any, Optional

from mmengine.hooks import ParamSchedulerHook
from mmengine.runner import Runner

from ...planner import Step
from ...run import Run
from ...schedule import Moment
from ..sampler import InfoBatchSampler
from .compat import expect_iters


class ScheduleSteps(ParamSchedulerHook):
    """MMEngine's ParamSchedulerHook, except that schedulers which step by
    iteration make as many steps in an epoch as in the baseline.

    Where an epoch was left early, as with another batch size and
    ``drop_last``, the next epoch makes up for that.

    Args:
        run (Run): The run.
        steps_per_epoch (int): Iterations of an epoch for which the schedulers
            were made.
    """

    _STATE = ('_steps_per_epoch', '_epoch', '_start', '_end', '_num_steps')

    def __init__(self, run: Run, steps_per_epoch: int) -> None:
        super().__init__()
        self._run = run
        # With another batch size the schedulers go on as they were.
        self._steps_per_epoch = steps_per_epoch
        self._epoch = 0
        self._start = self._end = 0
        # None before the first epoch.
        self._num_steps: Optional[int] = None

    def enter(self, epoch: int) -> None:
        """Begin an epoch at the position of the run."""
        self._epoch, self._start = epoch, self._run.ledger.position
        if self._num_steps is None:
            self._num_steps = epoch * self._steps_per_epoch

    def expect(self, end: int) -> None:
        """Set until which slot the epoch will be trained on."""
        self._end = end

    def due(self) -> int:
        """Return how many steps this iteration stands for."""
        assert self._num_steps is not None
        done = self._steps_per_epoch * (self._run.ledger.position -
                                        self._start) // (
                                            self._end - self._start)
        due = self._epoch * self._steps_per_epoch + done - self._num_steps
        self._num_steps += max(due, 0)
        return max(due, 0)

    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        """Step the schedulers that step by iteration."""
        for _ in range(self.due()):
            super().after_train_iter(*args, **kwargs)

    def state_dict(self) -> dict:
        """Return plain Python values."""
        return {name: getattr(self, name) for name in self._STATE}

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on from :meth:`state_dict`."""
        self.__dict__.update(state_dict)


class EpochDriver:
    """Begins the epochs of a run in MMEngine's loop.

    Args:
        runner (Runner): The runner.
        run (Run): The run.
        sampler (InfoBatchSampler): The sampler from which the loop reads.
        step (Step): The steps of an epoch.
    """

    def __init__(self, runner: Runner, run: Run, sampler: InfoBatchSampler,
                 step: Step) -> None:
        self._run, self._sampler, self._step = run, sampler, step
        self.steps = ScheduleSteps(
            run, runner.max_iters // max(runner.max_epochs, 1))
        hooks = runner.hooks
        for i, hook in enumerate(hooks):
            if type(hook) is ParamSchedulerHook:
                hooks[i] = self.steps
                self.steps.priority = hook.priority

    def begin_epoch(self, runner: Runner) -> None:
        """Draw the plan of the epoch that begins, or go on with the plan of a
        checkpoint within the epoch."""
        run, ledger, schedule = self._run, self._run.ledger, self._run.schedule
        self._sampler.set_epoch(runner.epoch)
        is_new = run.epoch != runner.epoch
        if is_new:
            # What filled no batch of the epoch before is left.
            run.give_up_rest()
            run.next_plan(runner.epoch, self._step)
            self.steps.enter(runner.epoch)
        run.prepare_rest(self._step)
        self._sampler.begin_epoch()
        # With `drop_last` the loader leaves what doesn't fill a batch.
        iters = len(runner.train_dataloader)
        slots = ledger.end - ledger.position
        if is_new and iters == 0:
            runner.logger.warning(
                f'InfoBatch: nothing is trained on in epoch {runner.epoch + 1}'
                f', because its plan has {slots} images, an iteration '
                f'{schedule.slots_per_iter}, and `drop_last` leaves them: '
                'lower `train_dataloader.batch_size`, remove '
                '`train_dataloader.drop_last`, or let the `policy` of '
                'InfoBatchHook in `custom_hooks` keep more.')
        self.steps.expect(ledger.position +
                          min(iters * schedule.slots_per_iter, slots))
        left = schedule.length - runner.epoch - 1
        pruned = sum(
            schedule.may_prune(Moment(ledger.end, epoch=epoch))
            for epoch in range(runner.epoch + 1, schedule.length))
        per_epoch = schedule.schedule_iters // schedule.length
        later = round(per_epoch * (left - pruned * (1 - run.expected_share())))
        expect_iters(runner, runner.iter + iters + later, is_last=left == 0)
