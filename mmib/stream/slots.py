# Copyright (c) mmib contributors. All rights reserved.
"""Slots, the entries of plans: `Slots` for a batch, and `Columns` for many."""
from typing import Any, NamedTuple, Sequence, Union

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
        numbers (np.ndarray): Number of each slot in the stream of all plans,
            int64 of shape (B,).
        indices (np.ndarray): Dataset index of each slot, int64 of shape (B,).
        weights (np.ndarray): Weight of each slot, float32 of shape (B,).
        relative_weights (np.ndarray): Weight of each slot over the mean weight
            of its plan, float32 of shape (B,).
        end (int): Position after the batch, and after slots given up with it.
        annealing (bool): Whether the batch belongs to annealing, in which
            losses are not weighed.
        numbering (Any): The :attr:`~mmib.stream.stream.Stream.numbering` of
            the stream that dealt the slots.
    """

    __slots__ = ('numbers', 'indices', 'weights', 'relative_weights', 'end',
                 'annealing', 'numbering')
    # Without this line, `__getitem__` would make slots iterable, and Lightning
    # would look for tensors in them.
    __iter__ = None

    def __init__(self, numbers: np.ndarray, indices: np.ndarray,
                 weights: np.ndarray, relative_weights: np.ndarray, end: int,
                 annealing: bool, numbering: Any) -> None:
        self.numbers = numbers
        self.indices = indices
        self.weights = weights
        self.relative_weights = relative_weights
        self.end = end
        self.annealing = annealing
        self.numbering = numbering

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, part: Union[slice, np.ndarray,
                                      torch.Tensor]) -> 'Slots':
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
        return Slots(self.numbers[part], self.indices[part],
                     self.weights[part], self.relative_weights[part], self.end,
                     self.annealing, self.numbering)

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
