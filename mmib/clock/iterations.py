# Copyright (c) mmib contributors. All rights reserved.
"""How far a training that counts iterations is."""
from typing import Callable, Optional, Tuple

from mmengine.runner import Runner

from .. import compat
from ..errors import ValueRefusal
from ..plan_record import PlanRecord
from ..pruning import Policy, Progress
from ..sampler import InfoBatchSampler
from .clock import Clock


class IterationClock(Clock):
    """The clock of a training that counts iterations.

    Args:
        max_iters (int): Iterations of the training.
        lookahead (int): Slots that may be in flight when a plan is drawn.
            Defaults to 0.

    Other arguments are those of :class:`Clock`.
    """

    unit = 'iteration'

    def __init__(self,
                 pass_length: int,
                 slots_per_iter: int,
                 max_iters: int,
                 delta: float,
                 start: float = 0.,
                 lookahead: int = 0) -> None:
        super().__init__(pass_length, slots_per_iter, max_iters, max_iters,
                         delta, start)
        self.lookahead = lookahead

    @property
    def annealing_start(self) -> int:
        return self._slots_until(self.annealing_at)

    @property
    def _start_slot(self) -> int:
        return self._slots_until(self.start_at)

    def _slots_until(self, iteration: int) -> int:
        return self.origin.position + self.slots_per_iter * (
            iteration - self.origin.iteration)

    @property
    def prunes_nothing(self) -> bool:
        return self.is_annealing(self.first_pruned)

    def _now(self, iteration: int) -> int:
        return iteration

    def iteration_at(self, position: int) -> float:
        return self.origin.iteration + (
            position - self.origin.position) / self.slots_per_iter

    def covered(self, last: Optional[PlanRecord], start: int) -> float:
        if last is None:
            return start / self.pass_length
        return last.covered_until(start)

    def full_equivalent(self, covered: float) -> float:
        return self.origin.full_equivalent + (
            covered -
            self.origin.covered) * self.pass_length / self.slots_per_iter

    def progress(self, start: int, covered: float, policy: Policy) -> Progress:
        # Iterations of the baseline that cover as many passes.
        full_iters = policy.full_iters or self.length / policy.budget
        full_iters -= self.full_equivalent(covered)
        annealing_iters = self.length - self.annealing_at
        return Progress(
            slots_left=self.annealing_start - start,
            full_slots=full_iters * self.slots_per_iter -
            annealing_iters * self.slots_per_iter)

    def first_progress(self, policy: Policy) -> Progress:
        first = self.first_pruned
        return self.progress(first, first / self.pass_length, policy)

    def outcome(self, share: float) -> Tuple[float, float, float]:
        pruned_iters = (self.annealing_start -
                        self.first_pruned) / self.slots_per_iter
        full_iters = self.length + pruned_iters * (1 / share - 1)
        passes = full_iters * self.slots_per_iter / self.pass_length
        return self.length, full_iters, passes

    def check_length(self) -> None:
        passes = self.length * self.slots_per_iter / self.pass_length
        if passes < 2:
            raise ValueRefusal(
                f'`train_cfg.max_iters = {self.length}` with '
                f'{self.slots_per_iter} images in an iteration is '
                f'{passes:.2f} passes over {self.pass_length} images. '
                'InfoBatch needs two, as nothing can be pruned in the first '
                'one: train for at least '
                f'{-(-2 * self.pass_length // self.slots_per_iter)} '
                'iterations, by a larger --ratio where conversion has '
                'shortened the training, or remove InfoBatchHook and '
                'InfoBatchSampler. To try a config in a few iterations, take '
                'a few images: `train_dataloader.dataset.indices=64`.')

    def connect(self, runner: Runner, sampler: InfoBatchSampler,
                draw_plan: Callable) -> None:
        super().connect(runner, sampler, draw_plan)
        if runner.iter > 0:
            compat.restart_loader(runner.train_loop)

    def _has_lost_count(self, iteration: int, position: int) -> bool:
        # After a validation FlexibleRunner saves one iteration too many.
        return self.iteration_at(position) != iteration

    def _keep_plans(self, pruned_until: int) -> None:
        after_plan = self.origin.iteration - (
            self.origin.position - pruned_until) // self.slots_per_iter
        self.annealing_at = max(self.annealing_at, after_plan)
