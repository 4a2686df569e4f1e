# Copyright (c) mmib contributors. All rights reserved.
"""How long a run is, and when its plans may prune."""
import numbers
from typing import Any, Dict, NamedTuple, Optional, Tuple

from .errors import Refusal
from .plan_record import PlanRecord
from .pruning import Progress


class PlanStart(NamedTuple):
    """Where in a run a plan begins.

    Args:
        slot (int): Number of the first slot of the plan in the stream of all
            plans.
        iteration (int): Iterations of the run before the plan.
        epoch (int): Epoch of the plan, from 0, if the run counts epochs.
    """

    slot: int
    iteration: int = 0
    epoch: int = 0


class StepSize(NamedTuple):
    """The size of the steps of an epoch. The last step of a plan that prunes
    must not be smaller than the last step of a full pass.

    Args:
        slots (int): Slots of a step, of all ranks.
        drop_last (bool): Whether the data loader leaves out the slots that
            fill no step.
    """

    slots: int
    drop_last: bool

    def tail(self, kept: int, pass_length: int) -> int:
        """Return how many of ``kept`` slots to give up. The last step is then
        at least as large as the last step of a full pass: BatchNorm fails on a
        batch of one image. Plans of less than a step give up nothing.
        """
        tail = kept % self.slots
        last_of_baseline = pass_length % self.slots or self.slots
        needed = self.drop_last or tail < last_of_baseline
        return tail if kept >= self.slots and needed else 0


def check_arguments(delta: float, start: float, ema: float,
                    place: str) -> None:
    """Check the arguments that InfoBatchHook and Session share.

    Args:
        delta (float): See :class:`Schedule`.
        start (float): See :class:`Schedule`.
        ema (float): See :class:`~mmib.visits.Tables`.
        place (str): Where the user gives the arguments, such as ``'of a
            Session'``.
    """
    for name, value in dict(delta=delta, start=start, ema=ema).items():
        if not isinstance(value, numbers.Real):
            raise Refusal(f'`{name}` {place} must be a number, but got '
                          f'{value!r}.')
    if not 0 <= delta <= 1:
        raise Refusal(
            f'`delta` {place} is the fraction of the run after which nothing '
            f'is pruned, and must be in [0, 1], but got {delta}.')
    if not 0 <= start < 1 or 0 < delta <= start:
        raise Refusal(
            f'`start` {place} is the fraction of the run before which nothing '
            f'is pruned, and must be in [0, 1) and less than `delta={delta}`, '
            f'but got {start}.')
    if not 0 <= ema < 1:
        raise Refusal(
            f'`ema` {place} is the share of the old score in the new one, and '
            f'must be in [0, 1), but got {ema}.')


class Schedule:
    """The length of a run, and when its plans may prune.

    A schedule also converts slots to iterations, and estimates how many
    iterations pruning saves.

    A run counts iterations or epochs. A run that counts epochs has as many
    epochs as the baseline, with fewer iterations in each. An epoch keeps its
    validation, its checkpoints and its learning rate.

    Args:
        pass_length (int): Slots of a full pass.
        slots_per_iter (int): Slots of an iteration, of all ranks.
        length (int): Length of the run in :attr:`unit`.
        delta (float): Fraction of the run after which nothing is pruned, in
            [0, 1]. The number of epochs or iterations is rounded.
        start (float): Fraction of the run before which nothing is pruned.
            Defaults to 0.
        iters_per_epoch (int, optional): Iterations of an epoch of the
            baseline. None if the run counts iterations. Defaults to None.
        first_pass (int, optional): Slots until each index of the dataset was
            dealt once, which for a RepeatDataset are several passes. If None,
            ``pass_length``. Defaults to None.
        lookahead (int): Slots that may be in flight when a plan is drawn.
            Defaults to 0.
        ends (bool): Whether the stream of slots ends with the run. If not, the
            loop ends the run. Defaults to False.
    """

    def __init__(self,
                 pass_length: int,
                 slots_per_iter: int,
                 length: int,
                 delta: float,
                 start: float = 0.,
                 iters_per_epoch: Optional[int] = None,
                 first_pass: Optional[int] = None,
                 lookahead: int = 0,
                 ends: bool = False) -> None:
        self.pass_length = pass_length
        self.slots_per_iter = slots_per_iter
        self.length = length
        self.iters_per_epoch = iters_per_epoch
        self.by_epoch = iters_per_epoch is not None
        """bool: Whether the run counts epochs."""
        self.unit = 'epoch' if self.by_epoch else 'iteration'
        """str: What the run counts."""
        self.pruning_at = round(start * length)
        """int: How many of :attr:`unit` come before pruning may begin."""
        self.annealing_at = round(delta * length)
        """int: How many of :attr:`unit` come before annealing begins."""
        self.fresh_from = 0
        """int: The slot at which all scores were last reset to 1."""
        self.end = length * slots_per_iter if ends else None
        """int, optional: The slot at which the stream ends. None where the
        loop ends the run."""
        self.schedule_iters = length * (1 if iters_per_epoch is None else
                                        iters_per_epoch)
        """int: Iterations that learning rate schedulers are built for:
        iterations of the run, or by epochs iterations of the baseline."""
        self.min_gap = max(lookahead,
                           self.schedule_iters // 1000 * slots_per_iter)
        """int: Minimum number of slots between two reads of the scores, and
        between two lines in the log, with few exceptions: a thousandth of the
        run, but at least the lookahead."""
        self._first_pass = first_pass or pass_length
        # By iterations: the slot of iteration 0, extrapolated with the current
        # batch size. The slot may be negative after a resume.
        self._slot_zero = 0
        # By epochs: how many slots were pruned before `fresh_from`.
        self._unspent = 0.

    def count_from(self, iteration: int, position: int) -> None:
        """Set how many iterations the run has made at a position."""
        if not self.by_epoch:
            self._slot_zero = position - iteration * self.slots_per_iter

    def _slot_of(self, iteration: int) -> int:
        return self._slot_zero + iteration * self.slots_per_iter

    def _unit_at(self, start: PlanStart) -> int:
        """Return the epoch of a plan if the run counts epochs, or else its
        first slot: the unit of :attr:`prune_from` and :attr:`anneal_from`."""
        return start.epoch if self.by_epoch else start.slot

    @property
    def prune_from(self) -> int:
        """int: The first epoch whose plan may prune, or the first slot of such
        a plan if the run counts iterations. Each image is dealt once before.
        """
        if self.by_epoch:
            return max(self.pruning_at,
                       self.fresh_from // self.pass_length + 1)
        # Rounded up to a whole pass.
        passes = -(-self._slot_of(self.pruning_at) // self.pass_length)
        dealt = -(-self.fresh_from // self._first_pass) + 1
        return max(passes * self.pass_length, dealt * self._first_pass)

    @property
    def anneal_from(self) -> int:
        """int: The first epoch of annealing, or the first slot of annealing if
        the run counts iterations."""
        if self.by_epoch:
            return self.annealing_at
        return self._slot_of(self.annealing_at)

    def may_prune(self, start: PlanStart) -> bool:
        """Return whether a plan may prune."""
        return (self.prune_from <= self._unit_at(start) < self.anneal_from)

    def is_annealing(self, start: PlanStart) -> bool:
        """Return whether a plan belongs to annealing."""
        return self._unit_at(start) >= self.anneal_from

    @property
    def prunes_nothing(self) -> bool:
        """bool: Whether annealing begins before anything can be pruned."""
        return self.prune_from >= self.anneal_from

    def most_slots(self, start: PlanStart) -> Optional[int]:
        """Return how many slots a plan may have until annealing begins or the
        stream ends, or None for any number. By epochs, annealing begins with a
        new plan anyway."""
        if not self.by_epoch and not self.is_annealing(start):
            return self.anneal_from - start.slot
        return None if self.end is None else self.end - start.slot

    def iteration_at(self, start: PlanStart) -> float:
        """Return the iterations of the run before a plan."""
        if self.by_epoch:
            return start.iteration
        return (start.slot - self._slot_zero) / self.slots_per_iter

    def iters_saved_since(self, plan: PlanRecord, position: int,
                          iteration: int) -> float:
        """Return the iterations saved from the beginning of a plan to a
        position in the plan, given the iterations of the run until there."""
        if self.iters_per_epoch is not None:
            passed = plan.covered_until(position) - plan.covered
            return passed * self.iters_per_epoch - (iteration - plan.iter)
        left_out = self.pass_length / plan.kept - 1
        return (position - plan.first_slot) * left_out / self.slots_per_iter

    def progress(self, start: PlanStart, saved_iters: float) -> Progress:
        """Return the progress that a policy gets when it draws a plan, given
        the iterations saved before the plan."""
        spent: float = start.slot - self._slot_zero
        if self.by_epoch:
            covered: float = start.epoch * self.pass_length
            spent -= self._unspent
        else:
            covered = spent + saved_iters * self.slots_per_iter
        size = self.pass_length if self.by_epoch else self.slots_per_iter
        return Progress(
            spent=spent,
            covered=covered,
            annealing=(self.length - self.annealing_at) * size,
            length=self.length * size,
            of_baseline=self.by_epoch)

    def first_progress(self) -> Progress:
        """Return the progress that a policy gets when it draws the first plan
        that prunes."""
        first = self.prune_from
        if self.by_epoch:
            # Epochs until then are full ones.
            return self.progress(
                PlanStart(first * self.pass_length, 0, first), 0)
        return self.progress(PlanStart(first), 0.)

    def outcome(self, share: float) -> Tuple[float, float, float]:
        """Forecast a run whose pruning plans keep ``share`` of the images.

        Returns:
            tuple[float, float, float]: The iterations of the run, the
            iterations in which the baseline makes as many passes, and the
            number of these passes.
        """
        pruned = max(self.anneal_from - self.prune_from, 0)
        if self.iters_per_epoch is not None:
            saved = pruned * self.iters_per_epoch * (1 - share)
            return (self.schedule_iters - saved, self.schedule_iters,
                    self.length)
        full_iters = self.length + (
            pruned / self.slots_per_iter * (1 / share - 1))
        passes = full_iters * self.slots_per_iter / self.pass_length
        return self.length, full_iters, passes

    def start_afresh(self, position: int, unspent: float = 0.) -> None:
        """Begin anew, with scores of 1, at a position. ``unspent`` is the
        number of slots that were pruned before the position."""
        self.fresh_from, self._unspent = position, unspent

    def state_dict(self) -> Dict[str, Any]:
        """Return plain Python values."""
        return dict(
            unit=self.unit,
            pass_length=self.pass_length,
            slots_per_iter=self.slots_per_iter,
            annealing_at=self.annealing_at,
            fresh_from=self.fresh_from,
            unspent=self._unspent)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Resume where :meth:`state_dict` was called. The length, the batch
        size and the fractions stay those of this run."""
        self.fresh_from = state_dict['fresh_from']
        self._unspent = state_dict['unspent']
