# Copyright (c) mmib contributors. All rights reserved.
"""The stream of the slots of all plans, and the position of a run in it."""
import copy
from dataclasses import dataclass, replace
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import torch

from ..plans import EpochPlan
from ..ranks import World
from .schedule import Place, StepSize
from .slots import Columns, Slots, columns_of


@dataclass(frozen=True, eq=False)
class Dealt:
    """A plan whose slots are in the stream.

    Args:
        first_slot (int): Number of the first slot of the plan.
        covered (float): Slots that the plans before cover.
        kept (int): Slots of the plan, before annealing cut the plan short, and
            without slots that are repeated for other ranks.
        annealing (bool): Whether the plan belongs to annealing.
        mean_weight (np.float32): Mean weight of the plan when it was drawn. If
            slots of the rest were left out later, the mean was multiplied by
            :attr:`Rest.scale`.
        keeps (np.ndarray, optional): Whether the plan keeps each index of a
            pass, packed by :func:`np.packbits`, uint8. None for a full plan.
        record (Any): What else is known of the plan. The stream doesn't read
            the record.
        known_from (int): Number of the first slot in ``columns``. After a
            resume, the slots before are gone.
        columns (Columns): The slots from ``known_from`` on.
    """

    first_slot: int
    covered: float
    kept: int
    annealing: bool
    mean_weight: np.float32
    keeps: Optional[np.ndarray]
    record: Any
    known_from: int
    columns: Columns

    @property
    def end(self) -> int:
        """int: Number of the first slot after the plan."""
        return self.known_from + len(self.columns.indices)

    def covered_at(self, slot: int, pass_length: int) -> float:
        """Return the slots that are covered until a slot of the plan. A plan
        that annealing cuts short covers a part of a pass."""
        # A plan may repeat some slots, so that all ranks have equally many.
        done = min((slot - self.first_slot) / max(self.kept, 1), 1.)
        return self.covered + done * pass_length

    def slots(self, begin: int, end: int, step: int = 1) -> Columns:
        """Return the slots with the numbers ``begin, begin + step, ...`` below
        ``end``."""
        return self.columns.at(
            slice(begin - self.known_from, end - self.known_from, step))


class Rest(NamedTuple):
    """The rest of the open plan in steps of a size: a proposal. A run stays as
    it is until :meth:`Run.go_on_with` takes the rest.

    Args:
        stream (Stream): A stream with this rest.
        rng (np.random.Generator): The generator of later plans, after it has
            chosen what is left out.
        left_out (np.ndarray, optional): Whether each index of a pass was left
            out, bool of shape (pass_length,). None if nothing was left out.
        scale (float): Factor of the weights of the other slots.
    """

    stream: 'Stream'
    rng: np.random.Generator
    left_out: Optional[np.ndarray] = None
    scale: float = 1.


class Stream:
    """The slots of all ranks, in the order in which they are dealt.

    The number of a slot is its place in the stream of all plans. Rank ``k`` of
    ``W`` has the slots ``k, k + W, ...`` of a batch. :attr:`position` is the
    only record of progress: slots before the position were trained on or given
    up, and all later slots are still to be trained on. Slots that are in
    flight when a run stops lie after the position, so a resumed run issues
    these slots again. The workers of a data loader load ahead, so a plan may
    be dealt while the plan before it is still in training.

    Args:
        pass_length (int): Slots of a full pass.
        begins (Place): Where the stream begins. Defaults to (0, 0).
    """

    def __init__(self, pass_length: int, begins: Place = Place(0, 0)) -> None:
        self._pass_length, self._begins = pass_length, begins
        self.position = int(begins.spent)
        """int: The end of the newest batch of which any slot is trained on. In
        MMEngine the position moves when the step is over, in a Session when a
        loss is weighed."""
        self.plans: List[Dealt] = []
        """list[Dealt]: The plans whose slots may still be weighed, or whose
        visits may not be merged yet."""
        self.repeated = 0
        """int: Slots before the end that are repeated for other ranks."""
        self.numbering = object()
        """object: Another object whenever numbers are given to other slots,
        so that :meth:`Session.weigh` refuses slots with the old numbers."""

    @property
    def known_from(self) -> int:
        """int: Number of the first slot that the stream keeps."""
        return self.plans[0].known_from if self.plans else self.position

    @property
    def end(self) -> int:
        """int: Number that the first slot of the next plan will have."""
        return self.plans[-1].end if self.plans else self.position

    @property
    def newest(self) -> Optional[Dealt]:
        """Dealt, optional: The plan that was dealt last."""
        return self.plans[-1] if self.plans else None

    @property
    def current(self) -> Optional[Dealt]:
        """Dealt, optional: The plan in training."""
        for plan in reversed(self.plans):
            if plan.first_slot < self.position:
                return plan
        return self.plans[0] if self.plans else None

    @property
    def left(self) -> int:
        """int: Number of slots from the position on."""
        return self.end - self.position

    @property
    def place(self) -> Place:
        """Place: Where the run is. Slots that are repeated for other ranks
        count as spent."""
        return self._place_of(self.current, self.position)

    @property
    def end_place(self) -> Place:
        """Place: Where the next plan begins. Slots that are repeated for other
        ranks don't count, so that plans don't depend on the ranks."""
        spent, covered = self._place_of(self.newest, self.end)
        return Place(spent - self.repeated, covered)

    def _place_of(self, plan: Optional[Dealt], slot: int) -> Place:
        if plan is None:
            return self._begins
        return Place(slot, plan.covered_at(slot, self._pass_length))

    # Plans -------------------------------------------------------------------

    def deal(self,
             plan: EpochPlan,
             kept: int,
             mean_weight: float = 1.,
             annealing: bool = False,
             keeps: Optional[np.ndarray] = None,
             record: Any = None) -> None:
        """Append the slots of a plan. Annealing may have cut the plan short:
        ``kept`` and ``mean_weight`` are those of the whole plan. The other
        arguments are those of :class:`Dealt`."""
        mean, end = np.float32(mean_weight), self.end
        columns = Columns(plan.indices, plan.weights, plan.tier_of_slot,
                          plan.weights / mean)
        self.plans.append(
            Dealt(end, self.end_place.covered, kept, annealing, mean, keeps,
                  record, end, columns))

    def begun(self, begin: int, end: int) -> List[Dealt]:
        """Return the plans whose first slot is one of these."""
        return [plan for plan in self.plans if begin <= plan.first_slot < end]

    def advance(self, position: int) -> None:
        """Move the position forward, and never back."""
        self.position = max(position, self.position)

    def forget_trained(self) -> None:
        """Forget the plans before the plan in training, whose visits were
        merged."""
        while self.plans and self.plans[0] is not self.current:
            self.plans.pop(0)

    def forget_tiers(self) -> None:
        """Exclude all slots from V and from what the policy learns, because
        another policy drew them."""
        self.plans = [
            replace(
                plan,
                columns=plan.columns._replace(
                    tiers=np.zeros_like(plan.columns.tiers)))
            for plan in self.plans
        ]

    def drop_from(self, number: int) -> None:
        """Drop the slots of the rest from a number on."""
        number = max(number, self.position)
        if number < self.end:
            self.numbering = object()
            for plan in self.plans:
                first = max(plan.first_slot + plan.kept, plan.known_from,
                            number)
                self.repeated -= max(plan.end - first, 0)
            # A plan without any slot goes, but one plan is always there.
            self.plans = [
                replace(
                    plan,
                    columns=plan.slots(plan.known_from,
                                       max(number, plan.known_from)))
                for plan in self.plans
                if plan.known_from < number or plan is self.plans[0]
            ]

    def rest_for(self, step: StepSize, rng: np.random.Generator, world: World,
                 seed: int) -> Rest:
        """Return the rest of the open plan in steps of a size. Slots are left
        out if the last step would be too small, as after a resume in steps of
        another size, and repeated until all ranks have equally many. This
        stream and ``rng`` stay as they are.

        Args:
            step (StepSize): The steps.
            rng (np.random.Generator): Chooses what is left out.
            world (World): The ranks.
            seed (int): Seed of the slots that are repeated.
        """
        stream, plan = copy.copy(self), self.newest
        stream.plans = [*self.plans]
        if plan is None:
            return Rest(stream, rng)
        # Without the slots that were repeated for other ranks.
        own = max(plan.first_slot + plan.kept - self.position, 0)
        # A user's policy may prune and have as many slots as a full pass.
        prunes = plan.keeps is not None or plan.kept != self._pass_length
        tail = step.tail(own, self._pass_length) if prunes else 0
        left_out, scale = None, 1.
        if tail or self.left != own + -own % world.size:
            stream.drop_from(self.position + own)
        if tail:
            rng = copy.deepcopy(rng)
            left_out, scale = stream._cut(tail, rng)
        left = stream.left
        missing = -left % world.size if left else 0
        if missing:
            # As the baseline repeats the first indices of a pass. A plan that
            # prunes may be in the order of the dataset.
            again = np.resize(np.arange(left), missing)
            if prunes:
                # Not of `rng`, so that plans don't depend on the ranks.
                again = np.random.default_rng([seed, self.position]).choice(
                    left, missing, replace=missing > left)
            stream.repeated += missing
            stream._replace_newest(stream.plans[-1].columns.followed_by(
                stream.slots_left().at(again)))
        return Rest(stream, rng, left_out, scale)

    def _cut(self, tail: int,
             rng: np.random.Generator) -> Tuple[np.ndarray, float]:
        """Leave out ``tail`` random slots of the rest of the newest plan.
        Return which indices were left out, and the factor of the weights."""
        plan, rest = self.plans[-1], self.slots_left()
        size, kept = len(rest.indices), len(rest.indices) - tail
        rows = np.sort(rng.permutation(size)[:kept])
        # As in `EpochPlan.without_tail`. With `normalize`, the mean stays 1.
        scale = size / kept if round(float(plan.mean_weight), 6) != 1 else 1.
        factor = np.float32(scale)
        left, mean = rest.at(rows), plan.mean_weight * factor
        weights = left.weights * factor
        left = left._replace(weights=weights, relative_weights=weights / mean)
        # A user's policy may draw an image twice. The slots before the
        # position don't count, because they are gone after a resume.
        left_out = self._mask(rest.indices) & ~self._mask(left.indices)
        done = plan.slots(plan.known_from, max(self.position, plan.known_from))
        self.numbering = object()
        self._replace_newest(
            done.followed_by(left),
            kept=plan.kept - tail,
            mean_weight=mean,
            keeps=None if plan.keeps is None else plan.keeps
            & ~np.packbits(left_out))
        return left_out, scale

    def _replace_newest(self, columns: Columns, **changes: Any) -> None:
        self.plans[-1] = replace(self.plans[-1], columns=columns, **changes)

    def _mask(self, indices: np.ndarray) -> np.ndarray:
        """Return whether each index of a pass is among ``indices``, bool."""
        mask = np.zeros(self._pass_length, bool)
        mask[indices] = True
        return mask

    # Slots -------------------------------------------------------------------

    def slots_left(self) -> Columns:
        """Return the slots from the position on."""
        return columns_of(self.plans, range(self.position, self.end))

    def at(self, numbers: np.ndarray) -> Columns:
        """Return the slots with these increasing numbers."""
        if len(numbers) == 0:
            return Columns()
        begin, end = int(numbers[0]), int(numbers[-1]) + 1
        if end - begin == len(numbers):
            # All slots between the first and the last one: nothing is copied
            # if they are of one plan.
            return columns_of(self.plans, range(begin, end))
        bounds = np.searchsorted(numbers, [plan.end for plan in self.plans])
        return Columns.joined([
            plan.columns.at(numbers[low:high] - plan.known_from)
            for plan, low, high in zip(self.plans, [0, *bounds], bounds)
            if low < high
        ])

    def indices(self, begin: int, world: World, count: int) -> List[int]:
        """Return up to ``count`` dataset indices of a rank, from the slot with
        the number ``begin`` on. A rest of fewer slots than ranks is left out.
        """
        left = (self.end - begin) // world.size
        end = begin + min(count, left) * world.size
        own = range(begin + world.rank, end, world.size)
        return columns_of(self.plans, own).indices.tolist()

    def batch(self,
              begin: int,
              size: int,
              world: World,
              end: Optional[int] = None) -> Slots:
        """Return the slots of a rank in a batch.

        Args:
            begin (int): Number of the first slot of the batch.
            size (int): Slots of each rank.
            world (World): The rank.
            end (int, optional): Position after the batch, if slots that follow
                the batch are given up. If None, the end of the batch. Defaults
                to None.
        """
        last = begin + size * world.size
        plans = [
            plan for plan in self.plans
            if plan.known_from < max(last, begin + 1) and begin < plan.end
        ]
        own = range(begin + world.rank, last, world.size)
        annealing = bool(plans) and plans[0].annealing
        return Slots(own, plans, end or last, annealing, self.numbering)

    # State -------------------------------------------------------------------

    def state_dict(self) -> Dict[str, Any]:
        """Return the position, and the slots from the position on as tensors.
        """
        plans = [] if self.current is None else self.plans[
            self.plans.index(self.current):]
        return dict(
            position=self.position,
            covered=self.place.covered,
            repeated=self.repeated,
            plans=[
                dict(
                    first_slot=plan.first_slot,
                    covered=plan.covered,
                    kept=plan.kept,
                    annealing=plan.annealing,
                    mean_weight=float(plan.mean_weight),
                    keeps=None
                    if plan.keeps is None else torch.from_numpy(plan.keeps),
                    size=plan.end - max(plan.known_from, self.position))
                for plan in plans
            ],
            **{
                name: torch.from_numpy(column.copy())
                for name, column in self.slots_left()._asdict().items()
            })

    def load_state_dict(self, state_dict: Dict[str, Any],
                        records: List[Any]) -> None:
        """Resume where :meth:`state_dict` was called, with the record of each
        plan. Slots that were dealt before are refused."""
        self.position = start = state_dict['position']
        self._begins = Place(start, state_dict['covered'])
        self.repeated = state_dict['repeated']
        self.numbering, self.plans = object(), []
        rest = Columns(*(state_dict[name].numpy() for name in Columns._fields))
        for plan, record in zip(state_dict['plans'], records):
            end = start + plan['size']
            keeps = plan['keeps']
            self.plans.append(
                Dealt(
                    plan['first_slot'], plan['covered'], plan['kept'],
                    plan['annealing'], np.float32(plan['mean_weight']),
                    None if keeps is None else keeps.numpy(), record, start,
                    rest.at(slice(start - self.position,
                                  end - self.position))))
            start = end
