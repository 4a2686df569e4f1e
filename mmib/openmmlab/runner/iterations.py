# Copyright (c) mmib contributors. All rights reserved.
"""Iterations of a Runner: the one place where slots become iterations."""
import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from ...run.run import Run
from ...run.states import changed
from ...stream.schedule import Place, Schedule, outcome
from ...stream.stream import Stream

# Iterations saved in a state are rounded.
_ROUNDING = 1e-8


class Mark(NamedTuple):
    """A slot with which an iteration begins.

    Args:
        slot (int): The slot.
        iteration (int): Iterations before the slot.
        most (float): Iterations until the next mark, at most. Slots that fill
            no batch may be given up. Defaults to no limit.
    """

    slot: int
    iteration: int
    most: float = math.inf


class Iterations:
    """Converts the slots of a run into iterations and epochs of MMEngine.

    The core of mmib counts slots alone. An iteration trains on as many slots
    as all ranks have in a batch, except for the last one of an epoch.

    Args:
        pass_length (int): Slots of a full pass.
        slots_per_iter (int): Slots of an iteration, of all ranks.
        length (int): Length of the run in :attr:`unit`.
        delta (float): See :class:`Schedule`.
        start (float): See :class:`Schedule`. Defaults to 0.
        iters_per_epoch (int, optional): Iterations of an epoch of the
            baseline. None if the run counts iterations. Defaults to None.
        first_pass (int, optional): See :class:`Schedule`. Defaults to None.
        lookahead (int): Slots that may be in flight when a plan is drawn.
            Defaults to 0.
    """

    def __init__(self,
                 pass_length: int,
                 slots_per_iter: int,
                 length: int,
                 delta: float,
                 start: float = 0.,
                 iters_per_epoch: Optional[int] = None,
                 first_pass: Optional[int] = None,
                 lookahead: int = 0) -> None:
        by_epoch = iters_per_epoch is not None
        self.unit = 'epoch' if by_epoch else 'iteration'
        """str: What the run counts."""
        self.length = length
        self.slots_per_iter, self.iters_per_epoch = (slots_per_iter,
                                                     iters_per_epoch)
        self.schedule_iters = length * (1 if iters_per_epoch is None else
                                        iters_per_epoch)
        """int: Iterations that learning rate schedulers are built for:
        iterations of the run, or by epochs iterations of the baseline."""
        self._size = pass_length if by_epoch else slots_per_iter
        self.schedule = Schedule(
            pass_length,
            length,
            self._size,
            delta,
            start,
            by_epoch=by_epoch,
            first_pass=first_pass,
            # A thousandth of the run, but at least the lookahead.
            min_gap=max(lookahead,
                        self.schedule_iters // 1000 * slots_per_iter))
        """Schedule: The schedule of the run, in slots."""
        # Slots that the baseline covers in an iteration.
        self._covered_per_iter: float = slots_per_iter
        if iters_per_epoch is not None:
            self._covered_per_iter = pass_length / max(iters_per_epoch, 1)
        # By epochs: iterations saved beyond what was covered minus what was
        # made. If a run covers 100 iterations in 60 and goes on with batches
        # twice as large, it has saved 40 iterations. In iterations of the new
        # size it has covered 50 in 60, which would be -10, so 50 are added.
        self._surplus = 0.
        # By epochs: where each epoch begins whose visits may not be merged.
        self._marks: List[Mark] = [Mark(0, 0)]

    @property
    def annealing_at(self) -> int:
        """int: How many of :attr:`unit` come before annealing begins."""
        return self.schedule.annealing_from // self._size

    def note_epoch(self, stream: Stream, iteration: int, iters: int) -> None:
        """Note that an epoch, or the rest of an epoch, begins at the position
        of a stream after so many iterations, and has ``iters`` iterations."""
        marks = [*self._marks, Mark(stream.position, iteration, iters)]
        while len(marks) > 1 and marks[1].slot <= stream.known_from:
            marks.pop(0)
        self._marks = marks

    def of_visits(self, numbers: np.ndarray) -> np.ndarray:
        """Return the iteration of the visit of each slot, from 1.

        Args:
            numbers (np.ndarray): Numbers of the slots, increasing, int64 of
                shape (K,).
        """
        slots, iterations = np.array([mark[:2] for mark in self._marks]).T
        rows = np.searchsorted(slots, numbers, 'right') - 1
        return iterations[rows] + 1 + (numbers -
                                       slots[rows]) // self.slots_per_iter

    def before(self, slot: float) -> float:
        """Return the iterations before a slot. Plans of a run that counts
        iterations may begin within an iteration."""
        if self.schedule.by_epoch:
            mark = max((mark for mark in self._marks if mark.slot <= slot),
                       default=self._marks[0])
            made = -(-(slot - mark.slot) // self.slots_per_iter)
            return mark.iteration + min(made, mark.most)
        return (slot - self.schedule.zero.spent) / self.slots_per_iter

    def saved_at(self, place: Place) -> float:
        """Return the iterations saved until a place, compared with the
        baseline."""
        covered = place.covered - self.schedule.zero.covered
        saved = covered / self._covered_per_iter - self.before(place.spent)
        # Without rounding errors, which would show as "-0 iterations".
        return round(saved + self._surplus, 9) + 0.

    def outcome(self, share: float) -> Tuple[float, float, float]:
        """Forecast a run whose pruning plans keep ``share`` of the images.

        Returns:
            tuple[float, float, float]: The iterations of the run, the
            iterations in which the baseline makes as many passes, and the
            number of these passes.
        """
        spent, covered = outcome(self.schedule, share)
        per_iter = self._covered_per_iter
        return (spent / per_iter, covered / per_iter,
                covered / self.schedule.pass_length)

    def pruning(self, share: float) -> Tuple[float, float]:
        """Return the iterations between which a run prunes whose pruning plans
        keep ``share`` of the images."""
        schedule = self.schedule
        begin, end = schedule.prune_from, max(schedule.prune_from,
                                              schedule.annealing_from)
        if schedule.by_epoch:
            end = begin + (end - begin) * share
        return begin / self._covered_per_iter, end / self._covered_per_iter

    def resume(self, run: Run, iteration: int, saved: float) -> None:
        """Go on at the position of a run, with the size that an iteration has
        now. A Runner may have another count than a checkpoint.

        Args:
            run (Run): The run.
            iteration (int): Iterations until now.
            saved (float): Iterations saved until now.
        """
        place, size = run.stream.place, self.slots_per_iter
        self._marks = [Mark(int(place.spent), iteration)]
        if (self.before(place.spent) == iteration
                and abs(self.saved_at(place) - saved) < _ROUNDING):
            # Computed again, `zero` and `_surplus` would differ by rounding.
            return
        if self.schedule.by_epoch:
            self._surplus = (
                saved + iteration - place.covered / self._covered_per_iter)
        else:
            # Where a run with iterations of this size would have begun.
            self.schedule.zero = Place(
                int(place.spent) - iteration * size,
                place.covered - (iteration + saved) * size)

    def state_dict(self, place: Place) -> Dict[str, Any]:
        """Return plain Python values, given the place of the run."""
        return dict(
            iteration=int(self.before(place.spent)),
            saved=self.saved_at(place),
            slots_per_iter=self.slots_per_iter,
            annealing_at=self.annealing_at)

    def what_changed(self, state: Dict[str, Any]) -> List[str]:
        """Return sentences for the log on what has changed since
        :meth:`state_dict` returned a state."""
        own = self.state_dict(Place(0, 0))
        return [
            *changed(state, own, 'an iteration has {1} images instead of {0}',
                     'slots_per_iter'),
            *changed(
                state, own,
                f'annealing begins at {self.unit} {{1}} instead of {{0}}',
                'annealing_at')
        ]
