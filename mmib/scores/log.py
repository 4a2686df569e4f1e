# Copyright (c) mmib contributors. All rights reserved.
"""The log of visits, which the steps write.

A visit is a slot that was trained on. In a step, a rank keeps the numbers of
its slots on the host, and their scores and norms on the training device. Where
a plan needs the scores, the ranks exchange their rows, and each rank copies
them to the host once. All later computations are on arrays that are equal on
all ranks.
"""
from typing import (Any, Dict, Iterator, List, NamedTuple, Optional, Tuple,
                    Union)

import numpy as np
import torch
from torch import Tensor

from ..errors import Refusal
from ..ranks import World, all_gather, gather_numbers, world_of_process
from ..stream.slots import Slots
from .stretch import Stretch, Views, cuda_stream_of, weights_of
from .weigh import row_norms, weigh_losses

# Entries whose rows are packed at once: launching an operation costs more than
# its few numbers.
_PACKED_ENTRIES = 32
# Largest mean relative error of norms, as where a gradient is of half
# precision. A larger error shows that another term uses the predictions.
_LARGEST_ERROR = 0.05
# Entries between two probes, at least.
_LEAST_UNPROBED = 32
# At most so many entries wait for a backward pass, which may never come.
_MOST_WAITING = 1024
# Visits of a block, whose arrays stay in the processor's cache.
_BLOCK = 1 << 17


class Entry:
    """An entry of the log: the scores of some slots, and the norms that follow
    in the backward pass.

    The norm of image ``i`` is the norm of the gradient at row ``i`` of the
    predictions, divided by the gradient that flows into loss ``i``. The
    quotient is the norm of the gradient of the image's own loss, whatever the
    reduction, the loss scaling, the gradient accumulation and the weights are.
    A backward pass of another term, in which no gradient flows into the
    losses, changes no norm.

    :meth:`VisitLog.entry_for` makes an entry in a step. The backward pass
    calls :meth:`note_flow` and then :meth:`note_gradient`. An entry with views
    leaves its scores and norms in the rows of a stretch. The log packs the
    rows of other entries, many at once. An entry whose backward pass follows
    after a merge stays with the log until its norms are known.

    Args:
        slots (Slots or np.ndarray): The slots, or the number of each slot,
            int64 of shape (B,).
        scores (Tensor): Raw score of each slot, float32 of shape (B,). The
            entry keeps the tensor, so nothing else may write to it.
        norms (Tensor, optional): Norm of each slot, float32 of shape (B,), if
            the backward pass is over. Defaults to None.
        views (Views, optional): The views of the slots that the scores and
            norms are written to. Defaults to None.
        weights (Sequence[Tensor], optional): Relative weights and weights of
            the slots, float32 of shape (B,) each, for :meth:`weigh`. Defaults
            to None.
    """

    __slots__ = ('_slots', 'scores', 'norms', 'views', 'weights', 'own_norms',
                 'awaits_norms', '_flow')

    def __init__(self,
                 slots: Union[Slots, np.ndarray],
                 scores: Tensor,
                 norms: Optional[Tensor] = None,
                 views: Optional[Views] = None,
                 weights: Any = None) -> None:
        self._slots = slots
        self.scores, self.views, self.weights = scores, views, weights
        self.norms = norms
        """Tensor, optional: Norm of each slot, float32 of shape (B,). None
        until a gradient at the predictions was seen."""
        self.own_norms: Optional[Tensor] = None
        """Tensor, optional: Norm of each slot without other terms that use the
        predictions, of shape (B,), to compare with :attr:`norms`."""
        self.awaits_norms = False
        """bool: Whether a backward pass is expected to note the norms."""
        # Noted since the last gradient at the predictions.
        self._flow: Optional[Tensor] = None

    @property
    def numbers(self) -> np.ndarray:
        """np.ndarray: Number of each slot, int64 of shape (B,)."""
        slots = self._slots
        return slots.numbers if isinstance(slots, Slots) else slots

    def weigh(self, losses: Tensor) -> Tensor:
        """Weigh losses by the weights of the entry, as :func:`weigh_losses`
        does, and copy them to the scores. If norms are awaited, the backward
        pass notes the flow."""
        relative_weights, weights = self.weights
        weighed = weigh_losses(losses, relative_weights, weights, self.scores)
        if self.awaits_norms:
            # What the product passes on, which costs less than a hook at the
            # tensor and a product of our own.
            weighed.grad_fn.register_hook(  # type: ignore
                lambda passed_on, _: self.note_flow(passed_on[0]))
        return weighed

    def note_flow(self, gradient: Optional[Tensor]) -> None:
        """Note the gradient that flows into each loss, of shape (B,), or that
        none flows."""
        self._flow = gradient

    def note_gradient(self, gradient: Optional[Tensor]) -> None:
        """Note the gradient at the predictions, of shape (B, ...), after
        :meth:`note_flow`."""
        flow, self._flow = self._flow, None
        if flow is None:
            return
        self.awaits_norms = False
        # In a compiled step the predictions are inside the graph, and autograd
        # passes None.
        if gradient is None:
            return
        out = None if self.views is None else self.views.norms
        norms = row_norms(_without_graph(gradient), out=out)
        self.norms = norms.div_(_without_graph(flow))

    @property
    def has_other_term(self) -> bool:
        """bool: Whether another term uses the predictions, so that the norms
        aren't those of the losses. Waits for the device."""
        if self.own_norms is None or self.norms is None:
            return False
        ratios = (self.norms.abs() / self.own_norms).cpu().numpy()
        # Norms that are 0, infinite or NaN can't be compared.
        ratios = ratios[(ratios > 0) & (ratios < np.inf)]
        errors = np.minimum(np.abs(ratios - 1), 1)
        return bool(errors.sum() > _LARGEST_ERROR * len(errors))


def _without_graph(gradient: Tensor) -> Tensor:
    # With `create_graph=True`, gradients have a graph of their own.
    return gradient.detach() if gradient.requires_grad else gradient


class Merged(NamedTuple):
    """The merged logs of all ranks.

    Args:
        position (int): The furthest position of all ranks.
        numbers (np.ndarray): Numbers of the slots with a score, int64 of shape
            (K,), increasing.
        scores (np.ndarray): Score of each slot, float32 of shape (K,).
        norms (np.ndarray): Norm of each slot, float32 of shape (K,). NaN where
            the norm wasn't seen.
        unscored (np.ndarray): Numbers of the slots that were visited without
            a score, int64.
        late_numbers (np.ndarray): Numbers of the slots whose scores were in an
            earlier merge, before the backward pass, int64 of shape (L,),
            increasing. Defaults to none.
        late_norms (np.ndarray): Norm of each of these slots, float32 of shape
            (L,). Defaults to none.
    """

    position: int
    numbers: np.ndarray
    scores: np.ndarray
    norms: np.ndarray
    unscored: np.ndarray
    late_numbers: np.ndarray = np.empty(0, np.int64)
    late_norms: np.ndarray = np.empty(0, np.float32)

    def blocks(self) -> Iterator[Tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the numbers, scores and norms of many slots with a score."""
        for begin in range(0, len(self.numbers), _BLOCK):
            rows = slice(begin, begin + _BLOCK)
            yield self.numbers[rows], self.scores[rows], self.norms[rows]


class VisitLog:
    """The visits of this rank since the last merge.

    Only :meth:`merge` waits for the device. On the device, the log takes 8
    bytes for each visit of this rank.
    """

    def __init__(self) -> None:
        self.has_other_term = False
        """bool: Whether another term than the losses uses the predictions on
        this rank. No norm is known then."""
        self.probe: Optional[Entry] = None
        """Entry, optional: The newest entry with :attr:`Entry.own_norms`."""
        self.wants_probe = True
        """bool: Whether the next entry is to be a probe."""
        self._num_unprobed = 0  # Entries since the newest probe.
        # Entries whose scores were merged before their backward pass.
        self._late: List[Entry] = []
        self._clear()

    def _clear(self) -> None:
        # All stretches since the last merge, and the newest one for each
        # device and CUDA stream.
        self._stretches: List[Stretch] = []
        self._newest: Dict[Any, Stretch] = {}
        # No slot from here on was visited since the last merge.
        self._visited_until = 0
        self._waiting: List[Entry] = []  # Entries in stretches.
        self._entries: List[Entry] = []
        self._packed: List[Tensor] = []
        self._numbers: List[np.ndarray] = []
        self._unscored: List[np.ndarray] = []
        self._pack_at = _PACKED_ENTRIES

    def __len__(self) -> int:
        """Return how many parts of the log have visits, 0 if none has: rows
        of a stretch without gaps, and what other calls wrote."""
        written = sum(len(each.written()) for each in self._stretches)
        return (written + len(self._entries) + len(self._numbers) +
                len(self._unscored))

    def views(self,
              slots: Slots,
              device: torch.device,
              has_mean_factors: bool = False) -> Optional[Views]:
        """Return the weights of a batch on the device, and the rows where its
        visits may be written in place. None if the slots aren't in a row, or
        if one of them or a later one was visited since the last merge: of
        several visits of a slot, the last one counts."""
        own = slots.in_row
        if not own or own.start < self._visited_until:
            return None
        key = device, cuda_stream_of(device)
        newest = self._newest.get(key)
        views = None if newest is None else newest.views(slots)
        if views is None:
            newest = self._newest[key] = Stretch(slots, device,
                                                 has_mean_factors)
            self._stretches.append(newest)
            views = newest.views(slots)
        return views

    def has_visited(self, slots: Slots) -> bool:
        """Return whether a slot, or a later one, was visited since the last
        merge."""
        return slots.first is not None and slots.first < self._visited_until

    def weights_again(self, slots: Slots, device: torch.device) -> Any:
        """Return the relative weights and the weights of slots that were
        visited, float32 of shape (B,) each. This takes no operation that the
        visit was without: selective checkpointing refuses others when it
        computes a function again."""
        newest = self._newest.get((device, cuda_stream_of(device)))
        views = None if newest is None else newest.views(slots)
        return weights_of(slots, device) if views is None else views[:2]

    def entry_for(self, slots: Slots, losses: Tensor) -> Entry:
        """Return an entry that is to weigh the losses of some slots."""
        views = self.views(slots, losses.device)
        if views is None:
            scores = torch.empty_like(losses, dtype=torch.float32)
            return Entry(
                slots, scores, weights=weights_of(slots, losses.device))
        return Entry(slots, views.scores, views=views, weights=views[:2])

    def begin_plan(self) -> None:
        """Let the next entry be a probe, unless a recent one was: a probe
        takes as long as several steps of a small network."""
        self.wants_probe |= self._num_unprobed >= _LEAST_UNPROBED

    def note_probe(self, entry: Entry) -> None:
        """Note an entry with :attr:`Entry.own_norms`."""
        self.probe, self.wants_probe, self._num_unprobed = entry, False, 0

    def record(self, entry: Entry) -> None:
        """Add an entry. If several entries have the same slot, the last one
        counts."""
        self._num_unprobed += 1
        views = entry.views
        # After a merge within a step, the rows are those of no stretch here.
        if views is not None and views.stretch in self._stretches:
            self._visited_until = max(
                views.stretch.note_written(views), self._visited_until)
            if entry.awaits_norms:
                self._waiting.append(entry)
                if len(self._waiting) >= 2 * _PACKED_ENTRIES:
                    self._waiting = _awaiting(self._waiting)
            return
        until = int(entry.numbers.max()) + 1 if len(entry.numbers) else 0
        self._visited_until = max(until, self._visited_until)
        entries = self._entries
        entries.append(entry)
        if len(entries) >= self._pack_at:
            # Keep entries that await their backward pass, and all later ones:
            # of two entries with the same slot, the later one counts.
            waiting = next(
                (i for i, each in enumerate(entries) if each.awaits_norms),
                len(entries))
            self._pack(max(waiting, len(entries) - _MOST_WAITING))
            self._pack_at = len(self._entries) + _PACKED_ENTRIES

    def record_unscored(self, numbers: np.ndarray) -> None:
        """Add slots that were visited without a score."""
        self._unscored.append(numbers)

    def _pack(self, count: int) -> None:
        entries, self._entries = self._entries[:count], self._entries[count:]
        if entries:
            self._packed.append(_rows_of(entries))
            self._numbers += [entry.numbers for entry in entries]

    def _pack_late(self) -> bool:
        """Pack the norms of entries whose scores were merged already, before
        all other entries. A minus sign marks these norms. Return whether there
        are any."""
        late = [entry for entry in self._late if not entry.awaits_norms]
        if late:
            rows = _rows_of(late)
            # NaN has no sign that all devices agree on.
            rows[1] = -rows[1].nan_to_num(torch.inf, torch.inf)
            self._packed.insert(0, rows)
            self._numbers[:0] = [entry.numbers for entry in late]
        return bool(late)

    def _with_stretches(self) -> Tuple[List[Tensor], List[np.ndarray]]:
        """Return all rows and their numbers. Slots that were visited again are
        in entries, of which the last one counts."""
        values = [rows for each in self._stretches for rows in each.values()]
        written = [own for each in self._stretches for own in each.written()]
        return values + self._packed, written + self._numbers

    def __getstate__(self) -> Dict[str, Any]:
        # In a copy, views would be tensors of their own.
        packed, numbers = self._with_stretches()
        return dict(
            vars(self),
            _packed=packed,
            _numbers=numbers,
            _stretches=[],
            _newest={},
            _waiting=[])

    def merge(self,
              first: int,
              position: int,
              checksum: int,
              world: World = World()) -> Merged:
        """Merge the logs of all ranks, and empty the log of this rank. This
        takes one collective of a few numbers and one of the rows.

        Args:
            first (int): Number of the first slot that the stream keeps. Visits
                of earlier slots are left out.
            position (int): The position of this rank.
            checksum (int): A number that must be the same on all ranks.
            world (World): The rank. If several processes have the same rank,
                the values of the last of these processes count. Defaults to
                the only rank.

        Raises:
            Refusal: If ranks drew different plans, or if the given ranks don't
                fit together. If plans differ in length, the collectives of the
                ranks don't match, and the process group fails first.
        """
        if self.probe is not None and not self.probe.awaits_norms:
            self.has_other_term |= self.probe.has_other_term
            self.probe = None
        waiting = _awaiting([*self._late, *self._waiting, *self._entries])
        self._pack(len(self._entries))
        self._packed, self._numbers = self._with_stretches()
        has_late = False
        if self.has_other_term:
            for rows in self._packed:
                rows[1] = torch.nan
        else:
            has_late = self._pack_late()
        values = torch.cat(self._packed, 1) if self._packed else torch.empty(
            2, 0)
        nothing = [np.empty(0, np.int64)]
        numbers = np.concatenate(self._numbers or nothing)
        unscored = np.concatenate(self._unscored or nothing)
        unscored = unscored[unscored >= first]
        is_old = numbers < first
        if is_old.any():
            kept = np.flatnonzero(~is_old)
            numbers = numbers[kept]
            values = values[:, torch.from_numpy(kept).to(values.device)]
        for stretch in self._stretches:
            stretch.close()
        self._clear()
        # The stream still has their slots.
        self._late = [
            entry for entry in waiting if (entry.numbers >= first).all()
        ][-_MOST_WAITING:]
        if world_of_process().size > 1:
            return _gather(values, numbers, unscored, has_late, first,
                           position, checksum, world)
        scores, norms = values.cpu().numpy()
        return _in_order(position, numbers, scores, norms, unscored, first)


def _awaiting(entries: List[Entry]) -> List[Entry]:
    """Return the newest of the entries that await a backward pass."""
    return [each for each in entries if each.awaits_norms][-_MOST_WAITING:]


def _rows_of(entries: List[Entry]) -> Tensor:
    """Return the scores and the norms of entries, float32 of shape (2, K)."""
    scores = torch.cat([entry.scores for entry in entries])
    norms = torch.cat([
        torch.full_like(entry.scores, torch.nan)
        if entry.norms is None else entry.norms for entry in entries
    ])
    return torch.stack([scores, norms.abs()])


def _gather(values: Tensor, numbers: np.ndarray, unscored: np.ndarray,
            has_late: bool, first: int, position: int, checksum: int,
            world: World) -> Merged:
    """Merge the rows of all processes."""
    rank, world_size = world
    count, begin = len(numbers), (numbers[0] if len(numbers) else 0) - rank
    every = begin + rank + world_size * np.arange(count)
    is_regular = (
        count > 0 and begin >= first and not (has_late or len(unscored))
        and np.array_equal(numbers, every))
    own = [position, checksum, rank, count, len(unscored), begin, is_regular]
    (positions, checksums, ranks, counts, others, begins,
     regular) = gather_numbers(own).T
    if len({*np.bincount(ranks, minlength=world_size).tolist()}) > 1:
        raise Refusal(
            f'The processes have the ranks {ranks.tolist()} of {world_size}: '
            'give the Session the same `num_replicas` in all processes, and '
            'each `rank` in equally many.')
    if (checksums != checksum).any():
        raise Refusal(
            'The ranks drew different plans. A policy must take every random '
            'choice from its argument `rng`: change the policy.')
    position = int(positions.max())
    if regular.all() and (counts == count).all() and (begins == begin).all():
        # Every rank has visited exactly its own slots, so the numbers follow.
        of_all = values.new_empty(2, world_size * count)
        for k, rows in zip(ranks.tolist(), all_gather(values)):
            of_all[:, k::world_size] = rows
        scores, norms = of_all.cpu().numpy()
        numbers = np.arange(begin, begin + world_size * count)
        return Merged(position, numbers, scores, norms, unscored)
    sizes = counts + others
    if not sizes.any():
        empty = np.empty(0, np.float32)
        return Merged(position, numbers, empty, empty, unscored)
    # On the CPU, because a rank without rows doesn't know the device of the
    # other ranks.
    signed = np.concatenate([numbers - first, ~(unscored - first)])
    rows = torch.full((3, int(sizes.max())), torch.nan)
    rows[:2, :count] = values.cpu()
    rows[2, :len(signed)] = torch.from_numpy(signed.astype(np.int32)).view(
        torch.float32)
    gathered = torch.cat([
        rows[:, :size] for rows, size in zip(all_gather(rows), sizes.tolist())
    ], 1).numpy()
    signed = gathered[2].view(np.int32).astype(np.int64)
    scored = signed >= 0
    return _in_order(position, signed[scored] + first, gathered[0, scored],
                     gathered[1, scored], ~signed[~scored] + first, first)


def _in_order(position: int, numbers: np.ndarray, scores: np.ndarray,
              norms: np.ndarray, unscored: np.ndarray, first: int) -> Merged:
    """Sort visits by their numbers, and keep the last visit of each slot. Put
    norms apart whose visits were in an earlier merge."""
    late_numbers, late_norms = numbers[:0], norms[:0]
    is_late = np.signbit(norms) & ~np.isnan(norms)
    if is_late.any():
        late = np.flatnonzero(is_late)
        late = late[np.argsort(numbers[late], kind='stable')]
        # The last row of a slot counts.
        late = late[np.append(np.diff(numbers[late]) > 0, True)]
        late_numbers, late_norms = numbers[late], -norms[late]
        numbers, scores, norms = (
            each[~is_late] for each in (numbers, scores, norms))
    if (numbers[1:] <= numbers[:-1]).any():
        rows = np.full(int(numbers.max()) + 1 - first, -1, np.int64)
        # If an entry gets several values, numpy writes the last one.
        rows[numbers - first] = np.arange(len(numbers))
        rows = rows[rows >= 0]
        numbers, scores, norms = numbers[rows], scores[rows], norms[rows]
    # A slot that was scored as well counts once.
    if len(unscored):
        unscored = np.setdiff1d(unscored, numbers)
    return Merged(position, numbers, scores, norms, unscored, late_numbers,
                  late_norms)
