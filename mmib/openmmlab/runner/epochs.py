# Copyright (c) mmib contributors. All rights reserved.
"""Runs by epochs, whose epochs are shorter than the epochs of the schedule:
how schedulers step, and how many iterations are left."""
from typing import Any, Dict, List, Optional

from mmengine.hooks import Hook, ParamSchedulerHook
from mmengine.runner import Runner

from ...run.run import Run
from ...stream.schedule import StepSize
from .compat import expect_iters
from .iterations import Iterations


class ScheduleSteps(ParamSchedulerHook):
    """MMEngine's ParamSchedulerHook, except that schedulers which step by
    iteration make as many steps in an epoch as in the baseline. The next epoch
    makes the steps that are missing where an epoch ends early.

    Args:
        run (Run): The run.
        steps_per_epoch (int): Iterations of an epoch for which the schedulers
            were made.
    """

    def __init__(self, run: Run, steps_per_epoch: int) -> None:
        super().__init__()
        self._run = run
        # With another batch size the schedulers go on as they were.
        self._steps_per_epoch = steps_per_epoch
        # Steps until now, None before the first epoch.
        self._num_steps: Optional[int] = None
        self._end = 0

    def take_over(self, hooks: List[Hook]) -> None:
        """Take the place of MMEngine's hook, if there is one."""
        for i, hook in enumerate(hooks):
            if type(hook) is ParamSchedulerHook:
                hooks[i], self.priority = self, hook.priority

    def set_end(self, end: int) -> None:
        """Set where the open epoch ends: the number of the slot after its last
        step."""
        self._end = end
        if self._num_steps is None:
            self._num_steps = (self._run.epoch - 1) * self._steps_per_epoch

    def due(self) -> int:
        """Return how many steps this iteration stands for."""
        run, per_epoch = self._run, self._steps_per_epoch
        assert run.stream.newest is not None and self._num_steps is not None
        start = run.stream.newest.first_slot
        done = per_epoch * (run.stream.position - start) // (self._end - start)
        due = max((run.epoch - 1) * per_epoch + done - self._num_steps, 0)
        self._num_steps += due
        return due

    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        """Step the schedulers that step by iteration."""
        for _ in range(self.due()):
            super().after_train_iter(*args, **kwargs)

    def state_dict(self) -> Dict[str, Any]:
        """Return plain Python values."""
        return dict(
            _steps_per_epoch=self._steps_per_epoch, _num_steps=self._num_steps)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        self._steps_per_epoch = state_dict['_steps_per_epoch']
        self._num_steps = state_dict['_num_steps']


def begin_epoch(runner: Runner, run: Run, iterations: Iterations,
                steps: ScheduleSteps) -> None:
    """Draw the plan of the epoch that begins, or go on with the plan of a
    checkpoint within the epoch."""
    schedule, loader = run.schedule, runner.train_dataloader
    step = StepSize(iterations.slots_per_iter, loader.drop_last)
    loader.sampler.set_epoch(runner.epoch)
    is_open = run.epoch == runner.epoch + 1
    while not is_open:
        # Slots of the epoch before that filled no batch are given up.
        run.stream.advance(run.stream.end)
        run.next_plan(step)
        # A Runner may have another count than a checkpoint.
        is_open = run.epoch > runner.epoch
    run.go_on_with(run.rest_for(step))
    stream = run.stream
    loader.sampler.issue_rest()
    # With `drop_last` the loader leaves what doesn't fill a batch.
    iters = len(loader)
    iterations.note_epoch(stream, runner.iter, iters)
    steps.set_end(stream.position +
                  min(iters * iterations.slots_per_iter, stream.left))
    later = range(runner.epoch + 1, iterations.length)
    pruned = sum(
        schedule.may_prune(epoch * schedule.pass_length) for epoch in later)
    full = len(later) - pruned * (1 - _expected_share(run))
    assert iterations.iters_per_epoch is not None
    iters += round(iterations.iters_per_epoch * full)
    expect_iters(runner, runner.iter + iters, is_last=not later)


def _expected_share(run: Run) -> float:
    """Return the kept share to expect from the next plans that prune."""
    newest, pass_length = run.stream.newest, run.schedule.pass_length
    if newest is not None and newest.kept < pass_length:
        return newest.kept / pass_length
    share = run.policy.expected_share(run.schedule.first_progress())
    return 1. if share is None else share
