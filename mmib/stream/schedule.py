# Copyright (c) mmib contributors. All rights reserved.
"""How long a run is, and when its plans may prune. Everything is counted in
slots."""
import numbers
from typing import Any, Dict, NamedTuple, Optional

from ..errors import Refusal
from ..plans import Progress


class Place(NamedTuple):
    """Where a run is, in slots.

    The difference of the two numbers is what the run has saved.

    Args:
        spent (float): Slots of the stream until then, trained on or given up.
        covered (float): Slots that the baseline would have dealt for as many
            passes. A pruned epoch covers a full pass.
    """

    spent: float
    covered: float


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


def check_fractions(delta: float, start: float, where: str) -> None:
    """Check the fractions of a run between which plans may prune.

    Args:
        delta (float): See :class:`Schedule`.
        start (float): See :class:`Schedule`.
        where (str): Where the user gives the arguments, such as ``'of a
            Session'``.
    """
    for name, value in dict(delta=delta, start=start).items():
        if not isinstance(value, numbers.Real):
            raise Refusal(f'`{name}` {where} must be a number, but got '
                          f'{value!r}.')
    if not 0 <= delta <= 1:
        raise Refusal(
            f'`delta` {where} is the fraction of the run after which nothing '
            f'is pruned, and must be in [0, 1], but got {delta}.')
    if not 0 <= start < 1 or 0 < delta <= start:
        raise Refusal(
            f'`start` {where} is the fraction of the run before which nothing '
            f'is pruned, and must be in [0, 1) and less than `delta={delta}`, '
            f'but got {start}.')


class Schedule:
    """The length of a run, and when its plans may prune.

    A run has a clock, which counts slots. The clock of a run by epochs shows
    what the run has covered: such a run has as many epochs as the baseline,
    with fewer slots in each. The clock of any other run shows what the run has
    spent.

    Args:
        pass_length (int): Slots of a full pass.
        count (int): Number of steps or epochs of the run.
        size (int): Slots of each step or epoch.
        delta (float): Fraction of the run after which nothing is pruned, in
            [0, 1]. The number of steps or epochs is rounded.
        start (float): Fraction of the run before which nothing is pruned.
        by_epoch (bool): Whether each plan is an epoch.
        first_pass (int, optional): Slots until each index of the dataset was
            dealt once, which for a RepeatDataset are several passes. If None,
            ``pass_length``. Defaults to None.
        stream_end (int, optional): The slot at which the stream ends. None
            where the loop ends the run. Defaults to None.
        min_gap (int): Minimum number of slots between two reads of the scores,
            and between two plans in the log, with few exceptions. Defaults to
            0.
    """

    def __init__(self,
                 pass_length: int,
                 count: int,
                 size: int,
                 delta: float,
                 start: float,
                 by_epoch: bool,
                 first_pass: Optional[int] = None,
                 stream_end: Optional[int] = None,
                 min_gap: int = 0) -> None:
        self.pass_length, self.by_epoch = pass_length, by_epoch
        self.first_pass = first_pass or pass_length
        self.stream_end, self.min_gap = stream_end, min_gap
        # Times on the clock.
        self.length = count * size
        self.start_at = round(start * count) * size
        self.annealing_from = round(delta * count) * size
        self.zero = Place(0, 0)
        """Place: The place from which the run counts. This place is (0, 0)
        unless the run was resumed with another batch size or without scores.
        Both numbers may be negative. By epochs, the first number is what was
        pruned before a start without scores, which counts full passes."""
        self.fresh_from = 0
        """int: The slot at which all scores were last reset to 1."""

    def clock(self, place: Place) -> float:
        """Return the time at a place."""
        if self.by_epoch:
            return place.covered - self.zero.covered
        return place.spent - self.zero.spent

    @property
    def prune_from(self) -> float:
        """float: The time from which on a plan may prune. Each image is dealt
        once before."""
        # Passes begin at multiples of their length in the stream. By epochs,
        # the clock counts passes itself.
        zero = 0 if self.by_epoch else self.zero.spent
        return max(
            _whole(self.start_at + zero, self.pass_length),
            _whole(self.fresh_from, self.first_pass) + self.first_pass) - zero

    def may_prune(self, now: float) -> bool:
        """Return whether a plan that begins now may prune."""
        return self.prune_from <= now < self.annealing_from

    def is_annealing(self, now: float) -> bool:
        """Return whether a plan that begins now belongs to annealing."""
        return now >= self.annealing_from

    @property
    def prunes_nothing(self) -> bool:
        """bool: Whether annealing begins before anything can be pruned."""
        return self.prune_from >= self.annealing_from

    def room(self, place: Place) -> Optional[int]:
        """Return how many slots a plan may have until annealing begins or the
        stream ends, or None for any number. By epochs, annealing begins with a
        new plan anyway."""
        now = self.clock(place)
        if not self.by_epoch and not self.is_annealing(now):
            return int(self.annealing_from - now)
        return None if self.stream_end is None else self.stream_end - int(
            place.spent)

    def progress(self, place: Place) -> Progress:
        """Return the progress that a policy gets for a plan at a place."""
        return Progress(
            spent=place.spent - self.zero.spent,
            covered=place.covered - self.zero.covered,
            annealing=self.length - self.annealing_from,
            length=self.length,
            of_baseline=self.by_epoch)

    def first_progress(self) -> Progress:
        """Return the progress that a policy gets for the first plan that
        prunes. All plans until then are full."""
        first = self.prune_from
        spent, covered = (0, 0) if self.by_epoch else self.zero
        return self.progress(Place(first + spent, first + covered))

    def state_dict(self) -> Dict[str, Any]:
        """Return plain Python values."""
        return dict(
            by_epoch=self.by_epoch,
            pass_length=self.pass_length,
            annealing_from=self.annealing_from,
            zero=list(self.zero),
            fresh_from=self.fresh_from)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Resume. The length and the fractions stay those of this run."""
        self.zero = Place(*state_dict['zero'])
        self.fresh_from = state_dict['fresh_from']


def outcome(schedule: Schedule, share: float) -> Place:
    """Return the place where a run ends whose pruning plans keep ``share`` of
    the images."""
    length = schedule.length
    pruned = max(schedule.annealing_from - schedule.prune_from, 0)
    if schedule.by_epoch:
        return Place(length - pruned * (1 - share), length)
    return Place(length, length + pruned * (1 / share - 1))


def _whole(slot: float, size: int) -> float:
    """Return the first multiple of a size that isn't less than a slot."""
    return -(-slot // size) * size
