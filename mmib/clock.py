# Copyright (c) mmib contributors. All rights reserved.
"""How far a training is, in slots, whether it counts iterations or epochs."""
from abc import ABC, abstractmethod
from typing import List, Optional, Tuple

from .plan_record import PlanRecord
from .pruning import Progress


class Clock(ABC):
    """Turns slots into iterations and savings, and says what a plan may do.

    Args:
        pass_length (int): Slots of a full pass.
        slots_per_iter (int): Slots of an iteration, of all ranks.
        length (int): The training has so many of :attr:`unit`.
        delta (float): Fraction of the training after which nothing is pruned,
            in [0, 1].
        start (float): Fraction of the training before which nothing is
            pruned.
        schedule_iters (int): Iterations of the schedule, for which learning
            rates are made: by iterations those of the training, by epochs
            those of the baseline.
        lookahead (int): Slots that may be in flight when a plan is drawn.
            Defaults to 0.
    """

    unit: str
    """str: What the training counts, ``'iteration'`` or ``'epoch'``."""

    def __init__(self,
                 pass_length: int,
                 slots_per_iter: int,
                 length: int,
                 delta: float,
                 start: float,
                 schedule_iters: int,
                 lookahead: int = 0) -> None:
        self.pass_length = pass_length
        self.slots_per_iter = slots_per_iter
        self.length = length
        self.start_at = round(start * length)
        """int: Pruning may begin after so many of :attr:`unit`."""
        self.annealing_at = round(delta * length)
        """int: Annealing begins after so many of :attr:`unit`."""
        self.fresh_from = 0
        """int: The slot at which all scores were 1."""
        self.end: Optional[int] = None
        """int, optional: The slot at which the stream ends. None where the
        loop ends the training."""
        self.schedule_iters = schedule_iters
        self.min_gap = max(lookahead, schedule_iters // 1000 * slots_per_iter)
        """int: Least slots between two reads of the scores, and between two
        lines of log: a thousandth of the training, and the lookahead."""

    @abstractmethod
    def place(self, slot: int) -> int:
        """Where a plan that begins with a slot lies, to compare with the two
        places below: at this slot, by epochs in the epoch that has begun."""

    @property
    @abstractmethod
    def first_pruned(self) -> int:
        """int: Place of the first plan that may prune. Images have to be asked
        for once before."""

    @property
    @abstractmethod
    def first_annealing(self) -> int:
        """int: Place of the first plan of annealing."""

    @property
    def prunes_nothing(self) -> bool:
        """bool: Whether annealing begins before anything can be pruned."""
        return self.first_pruned >= self.first_annealing

    def until_annealing(self, slot: int) -> Optional[int]:
        """Slots from one before annealing until annealing. None by epochs,
        where that isn't known and annealing begins with a plan."""
        return None

    @abstractmethod
    def iteration_at(self, slot: int, iteration: int) -> float:
        """Iterations of the training before a plan that begins with a slot,
        and is drawn after ``iteration`` of them."""

    @abstractmethod
    def gain(self, plan: PlanRecord, position: int, iteration: int) -> float:
        """Iterations saved since a plan began.

        Args:
            plan (PlanRecord): The plan.
            position (int): A slot of the plan, or the one after it.
            iteration (int): Iterations of the training until then.
        """

    @abstractmethod
    def progress(self, slot: int, saved_iters: float) -> Progress:
        """What a policy is told of a plan that begins with a slot, after so
        many iterations were saved."""

    @abstractmethod
    def first_progress(self) -> Progress:
        """What a policy is told of the first plan that prunes."""

    @abstractmethod
    def outcome(self, share: float) -> Tuple[float, float, float]:
        """Iterations of a training that begins, iterations of the baseline
        that cover as many passes, and these passes, by the kept share of the
        plans that prune."""

    def go_on(self, iteration: int, position: int) -> None:
        """Begin, or go on, after so many iterations and slots."""

    def state_dict(self) -> dict:
        """Plain Python values."""
        return dict(
            unit=self.unit,
            pass_length=self.pass_length,
            slots_per_iter=self.slots_per_iter,
            annealing_at=self.annealing_at,
            fresh_from=self.fresh_from)

    def load_state_dict(self, state_dict: dict) -> List[str]:
        """Go on from :meth:`state_dict`, and tell what the config has changed,
        for the log."""
        self.fresh_from = state_dict['fresh_from']
        changes = []
        if state_dict['slots_per_iter'] != self.slots_per_iter:
            changes.append(f'an iteration has {self.slots_per_iter} images '
                           f'instead of {state_dict["slots_per_iter"]}')
        if state_dict['annealing_at'] != self.annealing_at:
            changes.append(
                f'annealing begins at {self.unit} {self.annealing_at} instead '
                f'of {state_dict["annealing_at"]}')
        return changes


class IterationClock(Clock):
    """The clock of a training that counts iterations.

    Args:
        first_pass (int, optional): Slots of full passes until each image was
            asked for, more than a pass where a data set is repeated. If None,
            ``pass_length``. Defaults to None.
        lookahead (int): Slots that may be in flight when a plan is drawn.
            Defaults to 0.

    Other arguments are those of :class:`Clock`.
    """

    unit = 'iteration'

    def __init__(self,
                 pass_length: int,
                 slots_per_iter: int,
                 length: int,
                 delta: float,
                 start: float = 0.,
                 first_pass: Optional[int] = None,
                 lookahead: int = 0) -> None:
        super().__init__(pass_length, slots_per_iter, length, delta, start,
                         length, lookahead)
        self._first_pass = first_pass or pass_length
        # Slots before the training, had it always had this batch size.
        self.zero = 0

    def go_on(self, iteration: int, position: int) -> None:
        self.zero = position - iteration * self.slots_per_iter

    def _slot_of(self, iteration: int) -> int:
        return self.zero + iteration * self.slots_per_iter

    def place(self, slot: int) -> int:
        return slot

    @property
    def first_pruned(self) -> int:
        # At the edge of a pass.
        passes = -(-self._slot_of(self.start_at) // self.pass_length)
        asked = -(-self.fresh_from // self._first_pass) + 1
        return max(passes * self.pass_length, asked * self._first_pass)

    @property
    def first_annealing(self) -> int:
        return self._slot_of(self.annealing_at)

    def until_annealing(self, slot: int) -> Optional[int]:
        return self.first_annealing - slot

    def iteration_at(self, slot: int, iteration: int) -> float:
        return (slot - self.zero) / self.slots_per_iter

    def gain(self, plan: PlanRecord, position: int, iteration: int) -> float:
        left_out = self.pass_length / plan.kept - 1
        return (position - plan.start) * left_out / self.slots_per_iter

    def progress(self, slot: int, saved_iters: float) -> Progress:
        spent = slot - self.zero
        return Progress(
            spent=spent,
            covered=spent + saved_iters * self.slots_per_iter,
            annealing=(self.length - self.annealing_at) * self.slots_per_iter,
            length=self.length * self.slots_per_iter)

    def first_progress(self) -> Progress:
        return self.progress(self.first_pruned, 0.)

    def outcome(self, share: float) -> Tuple[float, float, float]:
        pruned_iters = max(self.first_annealing - self.first_pruned,
                           0) / self.slots_per_iter
        full_iters = self.length + pruned_iters * (1 / share - 1)
        passes = full_iters * self.slots_per_iter / self.pass_length
        return self.length, full_iters, passes


class EpochClock(Clock):
    """The clock of a training that counts epochs, each a virtual epoch.

    The training has as many epochs as the baseline, of fewer iterations. Each
    epoch has the validation, the checkpoints and the learning rate that it
    has in the baseline.

    Args:
        iters_per_epoch (int): Iterations of an epoch of the baseline.

    Other arguments are those of :class:`Clock`.
    """

    unit = 'epoch'

    def __init__(self,
                 pass_length: int,
                 slots_per_iter: int,
                 iters_per_epoch: int,
                 length: int,
                 delta: float,
                 start: float = 0.) -> None:
        super().__init__(pass_length, slots_per_iter, length, delta, start,
                         length * iters_per_epoch)
        self.iters_per_epoch = iters_per_epoch
        self.epoch = 0
        """int: The epoch that has begun last, from 0."""

    def state_dict(self) -> dict:
        return dict(super().state_dict(), epoch=self.epoch)

    def load_state_dict(self, state_dict: dict) -> List[str]:
        self.epoch = state_dict['epoch']
        return super().load_state_dict(state_dict)

    def place(self, slot: int) -> int:
        return self.epoch

    @property
    def first_pruned(self) -> int:
        return max(self.start_at, self.fresh_from // self.pass_length + 1)

    @property
    def first_annealing(self) -> int:
        return self.annealing_at

    def iteration_at(self, slot: int, iteration: int) -> float:
        return iteration

    def gain(self, plan: PlanRecord, position: int, iteration: int) -> float:
        passed = plan.covered_until(position) - plan.covered
        return passed * self.iters_per_epoch - (iteration - plan.iter)

    def progress(self, slot: int, saved_iters: float) -> Progress:
        return self._progress(slot, self.epoch)

    def _progress(self, spent: int, epoch: int) -> Progress:
        return Progress(
            spent=spent,
            covered=epoch * self.pass_length,
            annealing=(self.length - self.annealing_at) * self.pass_length,
            length=self.length * self.pass_length,
            of_baseline=True)

    def first_progress(self) -> Progress:
        # Epochs until then are full ones.
        return self._progress(self.first_pruned * self.pass_length,
                              self.first_pruned)

    def outcome(self, share: float) -> Tuple[float, float, float]:
        pruned = self.iters_per_epoch * max(
            self.first_annealing - self.first_pruned, 0)
        iters = self.schedule_iters - pruned * (1 - share)
        return iters, self.schedule_iters, self.length
