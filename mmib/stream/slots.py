# Copyright (c) mmib contributors. All rights reserved.
"""Slots, the entries of plans: `Slots` for a batch, and `Columns` for many."""
from typing import Any, NamedTuple, Optional, Protocol, Sequence, Tuple, Union

import numpy as np
import torch


class Slots:
    """The slots of this rank in a batch.

    A slot is one entry of a plan. :meth:`Session.loader` delivers each batch
    together with its slots, and :meth:`Session.weigh` takes the slots.
    ``slots[a:b]``, ``slots[mask]`` and ``slots[permutation]`` are the slots of
    a part of the batch. They are the slots that torch would choose from a
    tensor, and a mask may be a tensor.

    Frameworks that move batches to a device leave slots as they are, because
    the class is neither a tuple nor a dataclass nor an iterable, and has no
    method ``to``.

    Args:
        numbers (range or np.ndarray): Number of each slot in the stream of all
            plans: a range, or int64 of shape (B,).
        plans (Sequence[PlanInStream]): The plans of the slots. Empty unless
            ``numbers`` is a range.
        end (int): Where the position moves when the batch is weighed: after
            the batch, and after slots that are given up with it.
        annealing (bool): Whether the batch belongs to annealing, in which
            losses are not weighed.
        numbering (Any): The :attr:`~mmib.stream.stream.Stream.numbering` of
            the stream that dealt the slots.
        columns (Columns, optional): What else is known of the slots. If None,
            the plans know it. Defaults to None.
    """

    __slots__ = ('_numbers', '_plans', 'end', 'annealing', 'numbering',
                 '_columns', 'prepared', 'was_weighed')
    # Without this line, `__getitem__` would make slots iterable, and Lightning
    # would look for tensors in them.
    __iter__ = None

    def __init__(self,
                 numbers: Union[range, np.ndarray],
                 plans: Sequence['PlanInStream'],
                 end: int,
                 annealing: bool,
                 numbering: Any,
                 columns: Optional['Columns'] = None) -> None:
        self._numbers, self._plans, self._columns = numbers, plans, columns
        self.end = end
        self.annealing = annealing
        self.numbering = numbering
        self.prepared: Optional[Tuple[torch.Tensor, ...]] = None
        """tuple[Tensor], optional: What a compiled step reads and writes, see
        :mod:`mmib.scores.compiled`."""
        self.was_weighed = False
        """bool: Whether a compiled step has weighed the slots."""

    @property
    def numbers(self) -> np.ndarray:
        """np.ndarray: Number of each slot in the stream, int64 of shape (B,).
        """
        own = self._numbers
        if isinstance(own, range):
            return np.arange(own.start, own.stop, own.step)
        return own

    @property
    def columns(self) -> 'Columns':
        """Columns: What else is known of the slots. A step doesn't need it,
        because many batches at once are copied to the device."""
        if self._columns is None:
            assert isinstance(self._numbers, range)
            self._columns = columns_of(self._plans, self._numbers)
        return self._columns

    @property
    def indices(self) -> np.ndarray:
        """np.ndarray: Dataset index of each slot, int64 of shape (B,)."""
        return self.columns.indices

    @property
    def weights(self) -> np.ndarray:
        """np.ndarray: Weight of each slot, float32 of shape (B,)."""
        return self.columns.weights

    @property
    def relative_weights(self) -> np.ndarray:
        """np.ndarray: Weight of each slot over the mean weight of its plan,
        float32 of shape (B,)."""
        return self.columns.relative_weights

    @property
    def first(self) -> Optional[int]:
        """int, optional: Number of the first slot. None without slots."""
        return int(self._numbers[0]) if len(self._numbers) else None

    @property
    def in_row(self) -> Optional[range]:
        """range, optional: The numbers, if the slots are in a row. None for a
        part of a batch in another order."""
        return self._numbers if isinstance(self._numbers, range) else None

    def ahead(self, num_batches: int) -> Tuple[range, 'Columns']:
        """Return the slots of this rank from the first one on, in so many
        batches of this size, as far as the plans of this batch go: their
        numbers, and what else is known. The slots must be in a row."""
        own = self._numbers
        assert isinstance(own, range)
        end = own.start + num_batches * len(own) * own.step
        ahead = range(own.start, min(end, self._plans[-1].end), own.step)
        return ahead, columns_of(self._plans, ahead)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, part: Union[slice, np.ndarray,
                                      torch.Tensor]) -> 'Slots':
        if torch.compiler.is_compiling():
            # A graph has no ranges.
            return torch.compiler.disable(self.__getitem__)(part)
        own = self._numbers
        if isinstance(part, slice) and isinstance(own, range):
            own = own[part]
            if own.step > 0:
                return Slots(own, self._plans, self.end, self.annealing,
                             self.numbering)
        if torch.is_tensor(part):
            part = part.cpu().numpy()
        if not isinstance(part, slice):
            part = np.asarray(part)
            if part.size == 0 and part.dtype == float:  # An empty list.
                part = part.astype(np.int64)
            if part.dtype == np.uint8 and part.ndim:
                # A mask for torch, which chooses the losses, and a list of
                # numbers for numpy.
                part = part.astype(bool)
            part = np.atleast_1d(part)
        return Slots(self.numbers[part], (), self.end, self.annealing,
                     self.numbering, self.columns.at(part))

    def __repr__(self) -> str:
        return (f'Slots(indices={self.indices.tolist()}, '
                f'weights={self.weights.tolist()})')


class Columns(NamedTuple):
    """Many slots as columns: one array for each property.

    Args:
        indices (np.ndarray): Dataset index of each slot, int64 of shape (K,).
        weights (np.ndarray): Weight of each slot, float32 of shape (K,).
        tiers (np.ndarray): Tier of each slot in its plan, from 1, int16 of
            shape (K,). 0: the visit counts neither in V nor in what the
            policy learns. Full plans, biased plans, and plans of a policy that
            was replaced have 0.
        relative_weights (np.ndarray): Weight of each slot over the mean weight
            of its plan when the slot was dealt, float32 of shape (K,).
    """

    indices: np.ndarray = np.empty(0, np.int64)
    weights: np.ndarray = np.empty(0, np.float32)
    tiers: np.ndarray = np.empty(0, np.int16)
    relative_weights: np.ndarray = np.empty(0, np.float32)

    @classmethod
    def joined(cls, parts: Sequence['Columns']) -> 'Columns':
        """Return the slots of all parts. A single part isn't copied."""
        if len(parts) == 1:
            return parts[0]
        return cls(*map(np.concatenate, zip(*parts))) if parts else cls()

    def at(self, rows: Any) -> 'Columns':
        """Return some of the slots."""
        return Columns(*(column[rows] for column in self))

    def followed_by(self, others: 'Columns') -> 'Columns':
        """Return these slots, and others after them."""
        return Columns.joined([self, others])


class PlanInStream(Protocol):
    """A plan in a stream, see :class:`~mmib.stream.stream.Dealt`."""

    @property
    def known_from(self) -> int:
        """int: Number of the first slot that is known."""

    @property
    def end(self) -> int:
        """int: Number of the first slot after the plan."""

    def slots(self, begin: int, end: int, step: int = 1) -> Columns:
        """Return the slots ``begin, begin + step, ...`` below ``end``."""


def columns_of(plans: Sequence[PlanInStream], numbers: range) -> Columns:
    """Return the slots of some plans with these numbers."""
    parts = []
    for plan in plans:
        low = max(numbers.start, plan.known_from)
        high = min(numbers.stop, plan.end)
        low += (numbers.start - low) % numbers.step
        if low < high:
            parts.append(plan.slots(low, high, numbers.step))
    return Columns.joined(parts)
