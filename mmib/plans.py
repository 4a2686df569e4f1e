# Copyright (c) mmib contributors. All rights reserved.
"""The open plans of a run: the plan in training, and those drawn after it."""
from typing import Iterable, Iterator, List, Optional

from .plan_record import PlanRecord
from .schedule import PlanStart, Schedule


class OpenPlans:
    """Records of the plan in training and of the plans drawn after it.

    The workers of a data loader load ahead, so a plan may be drawn while the
    plan before it is still in training. A plan is closed when the first slot
    of the next plan was trained on.

    Args:
        schedule (Schedule): How long the run is.
        records (Iterable[PlanRecord]): The open plans. Defaults to none.
    """

    def __init__(
            self,
            schedule: Schedule,
            records: Iterable[PlanRecord] = (),
    ) -> None:
        self._schedule = schedule
        self._records = [*records]

    def __iter__(self) -> Iterator[PlanRecord]:
        return iter(self._records)

    @property
    def current(self) -> Optional[PlanRecord]:
        """PlanRecord, optional: The plan in training. None before the first
        plan."""
        return self._records[0] if self._records else None

    @property
    def newest(self) -> Optional[PlanRecord]:
        """PlanRecord, optional: The plan that was drawn last. None before the
        first plan."""
        return self._records[-1] if self._records else None

    def add(self, record: PlanRecord) -> None:
        """Add a plan that was drawn."""
        self._records.append(record)

    def replace_newest(self, record: PlanRecord) -> None:
        """Replace the record of the newest plan."""
        self._records[-1] = record

    def advance(self, before: int, position: int) -> List[PlanRecord]:
        """Close the plans that are over when the position moves forward.
        Return the plans that have begun since the position before."""
        records, begun = self._records, self.begun(before, position)
        while len(records) > 1 and records[1].first_slot < position:
            records.pop(0)
        return begun

    def begun(self, begin: int, end: int) -> List[PlanRecord]:
        """Return the plans whose first slot is one of these."""
        return [
            record for record in self._records
            if begin <= record.first_slot < end
        ]

    def is_annealing(self, slot: int) -> bool:
        """Return whether a slot belongs to a plan of annealing."""
        begun = [
            record for record in self._records if record.first_slot <= slot
        ]
        return bool(begun) and begun[-1].annealing

    @property
    def kept_share(self) -> float:
        """float: Share of the images that the plan in training keeps."""
        if self.current is None:
            return 1.
        return self.current.kept / self._schedule.pass_length

    def covered(self, position: int) -> float:
        """Return the epochs until a position in the plan in training."""
        if self.current is None:
            return 0.
        return self.current.covered_until(position)

    def saved_iters(self, position: int, iteration: int) -> float:
        """Return the iterations saved until a position in the plan in
        training, given the iterations of the run until there."""
        if self.current is None:
            return 0.
        return self.current.saved_iters + self._schedule.iters_saved_since(
            self.current, position, iteration)

    def recount(self, position: int, iteration: int,
                saved_iters: float) -> None:
        """Correct all records after the schedule has begun to count iterations
        in another way, given the iterations that were made and saved at the
        position."""
        if not self._records:
            return
        current, *later = self._records
        missing = saved_iters - self.saved_iters(position, iteration)
        last = current._replace(saved_iters=current.saved_iters + missing)
        self._records = [last]
        for record in later:
            start = PlanStart(record.first_slot, iteration)
            last = record._replace(
                iter=self._schedule.iteration_at(start),
                saved_iters=last.saved_iters +
                self._schedule.iters_saved_since(last, record.first_slot,
                                                 iteration))
            self._records.append(last)
