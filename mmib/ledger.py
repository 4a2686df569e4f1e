# Copyright (c) mmib contributors. All rights reserved.
"""The stream of the slots of all plans, and the position of a run in it."""
from typing import Any, Dict, List, Optional

import numpy as np
import torch

from .pruning import EpochPlan
from .slots import Columns, Slots


class Ledger:
    """The slots of all ranks, in the order in which they are dealt.

    The number of a slot is its place in the stream of all plans. Rank ``k`` of
    ``W`` has the slots ``k, k + W, ...`` of a batch. :attr:`position` is the
    only record of progress: slots before the position were trained on or given
    up, and all later slots are still to be trained on. Slots that are in
    flight when a run stops lie after the position, so a resumed run issues
    these slots again. The ledger keeps slots before the position as long as
    their losses may still be weighed, or their visits merged.

    Args:
        position (int): Number of the first slot. Defaults to 0.
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        """int: The end of the newest batch of which any slot is trained on. In
        MMEngine the position moves when the step is over, in a Session when a
        loss is weighed."""
        self.first = position
        """int: Number of the first slot that the ledger keeps."""
        self._columns = Columns()
        self.token = object()
        """object: A new object whenever slots are renumbered, so that
        :meth:`Session.weigh` refuses slots with the old numbers."""

    @property
    def end(self) -> int:
        """int: Number that the first slot of the next plan will have."""
        return self.first + len(self._columns.indices)

    def deal(self, plan: EpochPlan, mean_weight: float) -> None:
        """Append the slots of a plan. Annealing may have cut the plan short,
        and the mean weight is the mean of the whole plan."""
        means = np.full(len(plan), mean_weight, np.float32)
        self._columns = self._columns.followed_by(
            Columns(plan.indices, plan.weights, plan.tier_of_slot, means))

    def repeat(self, rows: np.ndarray) -> None:
        """Append slots of the rest once more, by their places in the rest."""
        if len(rows):
            self._columns = self._columns.followed_by(self.rest().at(rows))

    def thin_rest(self, rows: np.ndarray, scale: float) -> None:
        """Keep only some slots of the rest, by their increasing places in the
        rest, and multiply their weights by a factor."""
        kept, factor = self.rest().at(rows), np.float32(scale)
        self.token = object()
        self._columns = self._columns.at(
            slice(self.position - self.first)).followed_by(
                kept._replace(
                    weights=kept.weights * factor, means=kept.means * factor))

    def end_at(self, number: int) -> None:
        """Drop the slots of the rest from a number on."""
        number = max(number, self.position)
        if number < self.end:
            self.token = object()
            self._columns = self._columns.at(slice(number - self.first))

    def batch(self,
              begin: int,
              size: int,
              rank: int,
              world_size: int,
              annealing: bool,
              end: Optional[int] = None) -> Slots:
        """Return the slots of a rank in a batch.

        Args:
            begin (int): Number of the first slot of the batch.
            size (int): Slots of each rank.
            rank (int): The rank.
            world_size (int): Number of ranks.
            annealing (bool): Whether the batch belongs to annealing.
            end (int, optional): Position after the batch, if slots that follow
                the batch are given up. If None, the end of the batch. Defaults
                to None.
        """
        last = begin + size * world_size
        numbers = np.arange(begin + rank, last, world_size)
        own = self._columns.at(
            slice(begin + rank - self.first, last - self.first, world_size))
        return Slots(numbers, own.indices, own.weights, own.relative_weights,
                     end or last, annealing, self.token)

    def at(self, numbers: np.ndarray) -> Columns:
        """Return the slots with these increasing numbers."""
        if len(numbers) and numbers[-1] - numbers[0] + 1 == len(numbers):
            # All slots between the first and the last one: nothing is copied.
            begin = numbers[0] - self.first
            return self._columns.at(slice(begin, begin + len(numbers)))
        return self._columns.at(numbers - self.first)

    def rest(self) -> Columns:
        """Return the slots from the position on."""
        return self._columns.at(slice(self.position - self.first, None))

    def indices(self, begin: int, rank: int, world_size: int,
                count: int) -> List[int]:
        """Return up to ``count`` dataset indices of a rank, from the slot with
        the number ``begin`` on. A rest of fewer slots than ranks is left out.
        """
        begin -= self.first
        left = (len(self._columns.indices) - begin) // world_size
        end = begin + min(count, left) * world_size
        return self._columns.indices[begin + rank:end:world_size].tolist()

    def go_to(self, position: int) -> None:
        """Move the position forward."""
        self.position = max(position, self.position)

    def forget(self, number: int) -> None:
        """Forget the slots before a number."""
        # After a resume, `number` may lie before the first slot that is kept.
        number = max(number, self.first)
        rest = slice(number - self.first, None)
        # Copies, so that the forgotten slots can be freed.
        self._columns = Columns(*(column[rest].copy()
                                  for column in self._columns))
        self.first = number

    def forget_tiers(self) -> None:
        """Exclude all slots from V and from what the policy learns, because
        another policy drew them."""
        tiers = np.zeros_like(self._columns.tiers)
        self._columns = self._columns._replace(tiers=tiers)

    def state_dict(self) -> Dict[str, Any]:
        """Return the position, and the slots from the position on as tensors.
        """
        return dict(
            position=self.position,
            **{
                name: torch.from_numpy(column.copy())
                for name, column in self.rest()._asdict().items()
            })

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Resume where :meth:`state_dict` was called."""
        self.first = self.position = state_dict['position']
        self._columns = Columns(*(state_dict[name].numpy()
                                  for name in Columns._fields))
