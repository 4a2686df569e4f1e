# Copyright (c) mmib contributors. All rights reserved.
"""How far the training is: passes covered, iterations saved, and whether it
is annealing."""
from abc import ABC, abstractmethod
from typing import Callable, List, NamedTuple, Optional, Tuple

from mmengine.runner import Runner

from ..plan_record import PlanRecord
from ..pruning import Policy, Progress
from ..sampler import InfoBatchSampler


class Origin(NamedTuple):
    """Where the present batch size began.

    Args:
        iteration (int): Iterations before the origin.
        position (int): Slots before the origin.
        covered (float): Virtual epochs before the origin.
        full_equivalent (float): Iterations of the baseline that cover as many
            virtual epochs.
    """

    iteration: int = 0
    position: int = 0
    covered: float = 0.
    full_equivalent: float = 0.


class Clock(ABC):
    """Turns slots into iterations, passes and savings.

    Args:
        pass_length (int): Slots of a full pass.
        slots_per_iter (int): Slots of an iteration, of all ranks.
        schedule_iters (int): Iterations of the schedule, for which learning
            rates are made: by iterations those of the training, by epochs
            those of the baseline.
        length (int): The training has so many of :attr:`unit`.
        delta (float): Fraction of the training after which nothing is pruned,
            in [0, 1].
        start (float): Fraction of the training before which nothing is
            pruned.
    """

    unit: str
    """str: What the training counts, ``'iteration'`` or ``'epoch'``."""
    lookahead = 0
    """int: Slots that may be in flight when a plan is drawn."""

    def __init__(self, pass_length: int, slots_per_iter: int,
                 schedule_iters: int, length: int, delta: float,
                 start: float) -> None:
        self.pass_length = pass_length
        self.slots_per_iter = slots_per_iter
        self.schedule_iters = schedule_iters
        self.length = length
        self.start_at = round(start * length)
        """int: Pruning may begin after so many of :attr:`unit`."""
        self.annealing_at = round(delta * length)
        """int: Annealing begins after so many of :attr:`unit`."""
        self.origin = Origin()
        # Nothing is pruned before each image was asked for once.
        self._full_until = pass_length

    @property
    def annealing_iter(self) -> int:
        """int: Annealing begins after so many iterations of the schedule."""
        return round(self.annealing_at * self.schedule_iters / self.length)

    @property
    def since(self) -> Origin:
        """Origin: Where the account begins: where the batch size changed last,
        or where scores started afresh."""
        return self.origin

    @property
    def first_pruned(self) -> int:
        """int: From which slot on a plan may prune."""
        return max(self._full_until, self._start_slot)

    @property
    def min_gap(self) -> int:
        """int: Least slots between two reads of the scores, and between two
        lines of log: a thousandth of the training, and the lookahead."""
        return max(self.lookahead,
                   self.schedule_iters // 1000 * self.slots_per_iter)

    def is_annealing(self, position: int) -> bool:
        """Whether nothing is pruned from a slot on."""
        return position >= self.annealing_start

    def saved_iters(self, record: PlanRecord, position: int) -> float:
        """Iterations that the baseline needs more for the same virtual epochs,
        at a slot of a plan."""
        return self.full_equivalent(
            record.covered_until(position)) - self.iteration_at(position)

    def place(self, record: PlanRecord) -> PlanRecord:
        """Tell at which iteration a plan begins, and what is saved there."""
        return record._replace(
            iter=self.iteration_at(record.start),
            full_equivalent=self.full_equivalent(record.covered),
            saved_iters=self.saved_iters(record, record.start))

    def until_annealing(self, iteration: int) -> str:
        """How long pruning goes on after so many iterations, for the log."""
        if self.annealing_at >= self.length:
            return 'no annealing'
        left = self.annealing_at - self._now(iteration)
        return (f'{left} {self.unit}s until annealing'
                if left > 0 else 'annealing')

    @property
    @abstractmethod
    def annealing_start(self) -> int:
        """int: Slots before annealing."""

    @property
    @abstractmethod
    def _start_slot(self) -> int:
        """int: Slots before pruning may begin."""

    @property
    @abstractmethod
    def prunes_nothing(self) -> bool:
        """bool: Whether annealing begins before anything can be pruned."""

    @abstractmethod
    def _now(self, iteration: int) -> int:
        """So many of :attr:`unit` are over."""

    @abstractmethod
    def iteration_at(self, position: int) -> float:
        """Iterations of the training before a slot."""

    @abstractmethod
    def covered(self, last: Optional[PlanRecord], start: int) -> float:
        """Virtual epochs before a plan that begins with a slot and follows
        another plan, if any."""

    @abstractmethod
    def full_equivalent(self, covered: float) -> float:
        """Iterations of the baseline that cover so many virtual epochs."""

    @abstractmethod
    def progress(self, start: int, covered: float, policy: Policy) -> Progress:
        """What a policy is told of a plan, by the policy's budget.

        Args:
            start (int): Number of the plan's first slot.
            covered (float): Virtual epochs before the plan.
            policy (Policy): The policy.
        """

    @abstractmethod
    def first_progress(self, policy: Policy) -> Progress:
        """What a policy is told of the first plan that prunes."""

    @abstractmethod
    def outcome(self, share: float) -> Tuple[float, float, float]:
        """Iterations of a training that begins, iterations of the baseline
        that cover as many passes, and these passes, by the kept share of the
        plans that prune."""

    @abstractmethod
    def check_length(self) -> None:
        """Refuse a training of less than two passes over the data: nothing
        can be pruned in the first one."""

    def connect(self, runner: Runner, sampler: InfoBatchSampler,
                draw_plan: Callable) -> None:
        """Let the training loop read the plans that a function draws, see
        :meth:`InfoBatchSampler.connect`."""
        sampler.connect(draw_plan)

    def begin_epoch(self, runner: Runner, sampler: InfoBatchSampler,
                    next_share: Callable[[], float]) -> None:
        """Draw the plan of the epoch that begins, where epochs count.
        ``next_share`` tells the kept share to expect of the next plans."""

    def end_epoch(self, sampler: InfoBatchSampler) -> None:
        """End the plan of an epoch, where epochs count."""

    def state_dict(self, covered: float) -> dict:
        """Everything that the accounts follow from, after so many virtual
        epochs: plain Python values."""
        return dict(
            unit=self.unit,
            slots_per_iter=self.slots_per_iter,
            annealing_at=self.annealing_at,
            full_equivalent=self.full_equivalent(covered),
            origin=tuple(self.origin),
            full_until=self._full_until)

    def load_state_dict(self, state_dict: dict, iteration: int, position: int,
                        covered: float, pruned_until: int) -> List[str]:
        """Go on where :meth:`state_dict` was called.

        The batch size, the number of ranks, ``delta`` and the length of the
        training come from the config that goes on.

        Args:
            state_dict (dict): What :meth:`state_dict` returned.
            iteration (int): Iterations of the training until then.
            position (int): Slots that were taken.
            covered (float): Virtual epochs until then.
            pruned_until (int): Slots before the end of the last plan that
                prunes.

        Returns:
            list[str]: What has changed since then, for the log.
        """
        changes = []
        self._full_until = state_dict['full_until']
        self.origin = Origin(*state_dict['origin'])
        slots_before = state_dict['slots_per_iter']
        if (slots_before != self.slots_per_iter
                or self._has_lost_count(iteration, position)):
            self.origin = Origin(iteration, position, covered,
                                 state_dict['full_equivalent'])
        if slots_before != self.slots_per_iter:
            changes.append(f'an iteration has {self.slots_per_iter} images '
                           f'instead of {slots_before}')
        self._keep_plans(pruned_until)
        if state_dict['annealing_at'] != self.annealing_at:
            changes.append(
                f'annealing begins at {self.unit} {self.annealing_at} instead '
                f'of {state_dict["annealing_at"]}')
        return changes

    def _has_lost_count(self, iteration: int, position: int) -> bool:
        """Whether a checkpoint has another number of iterations."""
        return False

    def _keep_plans(self, pruned_until: int) -> None:
        """Let annealing begin after the plans that were drawn."""

    def begin(self, iteration: int, position: int,
              full_equivalent: float) -> None:
        """Begin within a training that went on without scores until now.

        Args:
            iteration (int): Iterations of the training until then.
            position (int): Slots of full passes until then.
            full_equivalent (float): Iterations of the baseline that cover as
                many passes as what was trained on until then.
        """
        self._full_until = position + self.pass_length
        self.origin = Origin(iteration, position, self.covered(None, position),
                             full_equivalent)
