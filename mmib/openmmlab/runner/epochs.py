# Copyright (c) mmib contributors. All rights reserved.
"""What drives MMEngine in a run whose epochs are shorter than the epochs of
its schedule: the steps of schedulers, and the iterations that are left."""
from typing import Any, Dict, List, Optional

from mmengine.hooks import Hook, ParamSchedulerHook
from mmengine.runner import Runner

from ...run import Run
from ...schedule import PlanStart, StepSize
from .compat import expect_iters


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

    def begin_epoch(self, end: int) -> None:
        """Begin an epoch, or the rest of an epoch. ``end`` is the number of
        the slot after its last step."""
        self._end = end
        if self._num_steps is None:
            self._num_steps = self._run.epoch * self._steps_per_epoch

    def due(self) -> int:
        """Return how many steps this iteration stands for."""
        run, per_epoch = self._run, self._steps_per_epoch
        assert run.plans.newest is not None and self._num_steps is not None
        start = run.plans.newest.first_slot
        done = per_epoch * (run.ledger.position - start) // (self._end - start)
        due = max(run.epoch * per_epoch + done - self._num_steps, 0)
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


def begin_epoch(runner: Runner, run: Run, steps: ScheduleSteps) -> None:
    """Draw the plan of the epoch that begins, or go on with the plan of a
    checkpoint within the epoch."""
    ledger, schedule = run.ledger, run.schedule
    loader = runner.train_dataloader
    step = StepSize(schedule.slots_per_iter, loader.drop_last)
    loader.sampler.set_epoch(runner.epoch)
    if run.epoch != runner.epoch:
        # Slots of the epoch before that filled no batch are given up.
        run.give_up_rest()
        run.next_plan(runner.epoch, step)
    run.prepare_rest(step)
    loader.sampler.begin_epoch()
    # With `drop_last` the loader leaves what doesn't fill a batch.
    iters, slots = len(loader), ledger.end - ledger.position
    steps.begin_epoch(ledger.position +
                      min(iters * schedule.slots_per_iter, slots))
    later = range(runner.epoch + 1, schedule.length)
    pruned = sum(
        schedule.may_prune(PlanStart(ledger.end, epoch=epoch))
        for epoch in later)
    full = len(later) - pruned * (1 - run.expected_share())
    iters += round(schedule.schedule_iters // schedule.length * full)
    expect_iters(runner, runner.iter + iters, is_last=not later)
