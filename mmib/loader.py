# Copyright (c) mmib contributors. All rights reserved.
"""The loader of a Session: a wrapper of a DataLoader that delivers each batch
with its slots, and the rules by which iterators share one stream of slots."""
import operator
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, Optional, Tuple

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset

from .errors import Refusal
from .ranks import all_gather, random_seed, rank_and_world_size
from .run import Run
from .schedule import StepSize
from .slots import Slots

# Batches that iterators in a row deliver without any `weigh` before a refusal.
_MOST_UNWEIGHED = 20
# Arguments of DataLoader that plans take the place of.
_OF_PLANS = ('shuffle', 'sampler', 'batch_sampler')


class Cursor:
    """The progress of one iterator of a loader.

    Args:
        step (StepSize): The steps of the iterator.
        begin (int): Position in the stream where the iterator begins.
        ends_if_empty (bool): Whether the epoch is over if the iterator has no
            batch to deliver. Defaults to False.
    """

    def __init__(self,
                 step: StepSize,
                 begin: int,
                 ends_if_empty: bool = False) -> None:
        self.step = step
        self.begin = self.next_slot = begin
        self.ends_if_empty = ends_if_empty
        self.num_issued = 0
        self.has_ended = False
        self._in_flight: Deque[Slots] = deque()

    def issue(self, slots: Slots) -> List[int]:
        """Add a batch that is requested from the workers, and return its
        dataset indices."""
        self.next_slot = slots.end
        self.num_issued += 1
        self._in_flight.append(slots)
        return slots.indices.tolist()

    def deliver(self) -> Slots:
        """Return the slots of the oldest batch in flight."""
        return self._in_flight.popleft()

    def finish(self) -> None:
        """Mark that all batches were delivered."""
        self.has_ended = True

    @property
    def was_empty(self) -> bool:
        """bool: Whether the iterator has ended without a batch."""
        return self.has_ended and not self.num_issued


class Dealer:
    """Deals the slots of a run to the iterators of its loaders. One iterator
    is active at a time.

    The stream has one position: the end of the newest batch with a weighed
    slot. Slots before the position were trained on or given up, and the next
    iterator begins at the position. Therefore a look at the first batch, a
    ``break``, an exception, a retry and a resume need no special case.

    Args:
        run (Run): The run.
        ranks (tuple[int, int], optional): The rank, and the number of ranks.
            If None, each process is a rank. Defaults to None.
    """

    def __init__(self,
                 run: Run,
                 ranks: Optional[Tuple[int, int]] = None) -> None:
        self._run, self._ranks = run, ranks
        self._cursor: Optional[Cursor] = None
        # The arguments of the newest iterator, which all ranks must share.
        self._same: Tuple[int, ...] = ()
        self._has_ranks = False
        # Whether any slot was weighed, or any iterator has ended. Until then,
        # a single rank may iterate by itself if the Session got a seed.
        self._is_in_use = False
        self._weighed_until = 0  # The furthest end of a weighed batch.
        # Batches that the last iterators delivered, which ended without any
        # `weigh`.
        self._num_unweighed = 0

    def fix_ranks(self) -> None:
        """Read the rank and the number of ranks at the first call, and refuse
        other ones at later calls. At the first call, all ranks agree on a
        seed."""
        run, now = self._run, self._ranks or rank_and_world_size()
        if not self._has_ranks:
            num_processes = rank_and_world_size()[1]
            if num_processes % now[1]:
                raise Refusal(
                    f'`num_replicas={now[1]}` of the Session does not divide '
                    f'the {num_processes} processes evenly: give the number '
                    'of groups of processes that train on the same batches.')
            self._has_ranks = True
            run.set_rank(*now)
            if run.seed is None:
                run.set_seed(random_seed())
        elif now != (run.rank, run.world_size):
            raise Refusal(
                f'The Session has begun as rank {run.rank} of '
                f'{run.world_size}, and the process is now rank {now[0]} of '
                f'{now[1]}: call `init_process_group`, or create the object '
                'of your framework that calls it, before the first batch.')

    def begin_iterator(self, batch_size: int, drop_last: bool,
                       num_prefetched: int) -> Cursor:
        """Begin an iterator. Older iterators are refused at their next batch.
        Slots that older iterators have delivered may still be weighed, unless
        slots of the rest are left out for another batch size.

        Args:
            batch_size (int): Samples of a batch on this rank.
            drop_last (bool): Whether to leave out samples that fill no batch.
            num_prefetched (int): Batches that workers load in advance.
        """
        self.fix_ranks()
        run, before = self._run, self._cursor
        step = StepSize(batch_size * run.world_size, drop_last)
        self._cursor = None
        if before is not None and before.has_ended and before.num_issued and (
                self._weighed_until <= before.begin):
            self._note_unweighed(before.num_issued)
        position = run.ledger.position
        self._same = batch_size, drop_last, num_prefetched
        if self._is_in_use:
            position = self._agree(position)
        run.advance(position)
        if not run.schedule.by_epoch:
            # An empty iterator before this one may only have checked whether
            # the stream has ended.
            if run.has_ended and (before is None or not before.was_empty):
                raise _over('The stream of the Session is over')
            self._check_step(step, run.schedule.length)
            self._cursor = Cursor(step, position, ends_if_empty=True)
            return self._cursor
        is_at_end, newest = position == run.ledger.end, run.plans.newest
        if is_at_end:
            self._draw(step, before)
        elif newest is not None and position > newest.first_slot:
            run.warn(f'epoch {run.epoch + 1} goes on with the '
                     f'{run.ledger.end - position} images that are left.')
        run.prepare_rest(step)
        position = run.ledger.position
        # With `drop_last`, an iterator over a small rest is empty. The loop
        # may only have looked, so a second empty iterator ends the epoch.
        is_repeated = before is not None and before.was_empty and (before.begin
                                                                   == position)
        self._cursor = Cursor(step, position, is_at_end or is_repeated)
        return self._cursor

    def _note_unweighed(self, num_batches: int) -> None:
        """Warn that an iterator has ended with nothing weighed. After several
        such iterators, refuse to go on, because no epoch would ever end. A
        loop may skip a few batches, even if an epoch has no others."""
        text = ('an iterator of the loader has ended, and nothing was weighed.'
                ' Call `session.weigh` in each step of training. To look at '
                'all images, for validation or statistics of BatchNorm, take a'
                ' plain `DataLoader(dataset)`.')
        if self._num_unweighed == 0:
            self._run.warn(text)
        elif self._num_unweighed + num_batches >= _MOST_UNWEIGHED:
            raise Refusal(f'Once more {text}')
        self._num_unweighed += num_batches

    def _draw(self, step: StepSize, before: Optional[Cursor]) -> None:
        """Draw the plan of the next epoch, if there is one."""
        run = self._run
        if run.epoch + 1 < run.schedule.length:
            self._check_step(step, run.schedule.pass_length)
            run.next_plan(run.epoch + 1, step)
        elif before is None or not before.was_empty:
            raise _over(f'The {run.schedule.length} `epochs` of the Session '
                        'are over')

    @staticmethod
    def _check_step(step: StepSize, size: int) -> None:
        if step.drop_last and step.slots > size:
            raise Refusal(
                f'A step has {step.slots} samples, of {size} in all, and '
                '`drop_last` leaves them all out: lower `batch_size`, or '
                'remove `drop_last`.')

    def _agree(self, position: int) -> int:
        """Return the furthest position of all ranks, and refuse arguments that
        differ between ranks."""
        run = self._run
        assert run.seed is not None
        own = [
            position, *self._same, run.seed,
            len(run.tables.images), run.schedule.length, run.checksum
        ]
        rows = torch.stack(all_gather(torch.tensor(own, dtype=torch.int64)))
        names = ('batch_size', 'drop_last',
                 'num_workers` and `prefetch_factor', 'seed', 'dataset',
                 'epochs', 'policy')
        for name, column in zip(names, rows.T[1:].tolist()):
            if len(set(column)) > 1:
                raise Refusal(
                    f'`{name}` differs between the ranks ({column}), which '
                    'must train on parts of the same batches: give all ranks '
                    'the same arguments, and let a policy take every random '
                    'choice from its argument `rng`.')
        return int(rows[:, 0].max())

    def __iter__(self) -> Iterator[List[int]]:
        """Yield the dataset indices of each batch of the newest iterator: the
        dealer is the batch sampler of a DataLoader."""
        cursor = self._cursor
        assert cursor is not None
        while (indices := self._next_batch(cursor)) is not None:
            yield indices

    def check(self, cursor: Cursor) -> None:
        """Refuse an iterator that isn't the newest one."""
        if cursor is not self._cursor:
            raise Refusal(
                'A newer iterator of a loader of this Session has begun, and '
                'this one would deliver the same samples again: keep one '
                'iterator, and look at samples with `dataset[index]`.')

    def _next_batch(self, cursor: Cursor) -> Optional[List[int]]:
        """Return the dataset indices of the next batch, or None where the
        iterator ends."""
        self.check(cursor)
        run, ledger, begin = self._run, self._run.ledger, cursor.next_slot
        step = cursor.step
        by_epoch, world_size = run.schedule.by_epoch, run.world_size
        while (not by_epoch and ledger.end - begin < step.slots
               and ledger.end != run.schedule.end):
            if run.plans.newest is not None:
                # One iterator may be the whole run, so the ranks agree here.
                self._agree(ledger.position)
            run.next_plan()
        left = (ledger.end - begin) // world_size
        size = min(step.slots // world_size, left)
        if size == 0 or step.drop_last and size * world_size < step.slots:
            return None
        end = begin + size * world_size
        is_last = by_epoch or ledger.end == run.schedule.end
        if step.drop_last and is_last and ledger.end - end < step.slots:
            # The slots after the last whole batch are given up with it.
            end = ledger.end
        return cursor.issue(
            ledger.batch(begin, size, run.rank, world_size,
                         run.plans.is_annealing(begin), end))

    def end_iterator(self, cursor: Cursor) -> None:
        """End an iterator that has delivered all of its batches. The rest of
        the plan is given up if any slot of the plan was weighed, or if nothing
        of the plan could be delivered.

        With ``drop_last``, an iterator over a rest smaller than a batch
        delivers nothing. The first such iterator keeps the rest, because the
        loop may only have looked, and a second one gives the rest up.
        """
        cursor.finish()
        self._is_in_use = True
        run, begin = self._run, cursor.begin
        if run.schedule.by_epoch and run.plans.newest is not None:
            begin = run.plans.newest.first_slot
        if (run.ledger.position > begin
                if cursor.num_issued else cursor.ends_if_empty):
            run.give_up_rest()

    def weighed(self, slots: Slots) -> None:
        """Move the position, because a part of a batch was weighed."""
        self._is_in_use = True
        self._num_unweighed = 0
        self._weighed_until = max(slots.end, self._weighed_until)
        self._run.advance(slots.end)

    def reset(self) -> None:
        """Forget the iterators, because the run was resumed."""
        self._cursor = None
        self._is_in_use = True
        self._weighed_until = 0

    @property
    def is_over(self) -> bool:
        """bool: Whether the position is at the end of the open plan."""
        return self._run.ledger.position == self._run.ledger.end


def _over(text: str) -> Refusal:
    return Refusal(
        f'{text}: let the loop end where `session.progress` is 1. For '
        'validation, or to compute statistics of BatchNorm, take a plain '
        '`DataLoader(dataset)`.')


class Loader:
    """The batches of a Session, each with its slots.

    Iterating over a loader yields ``(slots, batch)``. A loader is not a
    ``DataLoader`` and has no length, so that frameworks neither replace its
    sampler nor cut an epoch that is longer than the epoch before.

    Args:
        dataset (Dataset): The dataset.
        dealer (Dealer): Deals the slots of the batches.
        batch_size (int): Samples of a batch on this rank.
        drop_last (bool): Whether to leave out samples that fill no batch.
        device (torch.device or str, optional): Where to move the tensors in
            dicts, lists and tuples of a batch, and objects that have a method
            ``to``. None leaves them where they are.
        arguments (dict): Other arguments of ``DataLoader``.

    Raises:
        Refusal: If an argument would change which samples are delivered, or
            in which order.
    """

    def __init__(self, dataset: Dataset, dealer: Dealer, batch_size: int,
                 drop_last: bool, device: Any, arguments: Dict[str,
                                                               Any]) -> None:
        for name in _OF_PLANS:
            if name in arguments:
                raise Refusal(
                    f'`{name}` is not an argument of `Session.loader`, because'
                    ' the plans of the Session decide which samples are '
                    f'delivered, and in which order: remove `{name}`. The '
                    'Session itself has an argument `shuffle`.')
        if not arguments.get('in_order', True):
            raise Refusal(
                'With `in_order=False`, a DataLoader delivers batches in any '
                'order, and `Session.loader` could not know which samples they'
                ' have: remove `in_order`.')
        try:
            size = operator.index(batch_size)
        except TypeError:
            size = 0
        if size < 1 or isinstance(batch_size, bool):
            raise Refusal('`batch_size` of `Session.loader` must be a positive'
                          f' integer, but got {batch_size!r}.')
        self._batch_size, self._drop_last = size, bool(drop_last)
        self._dealer = dealer
        self._device = None if device is None else torch.device(device)
        self._num_prefetched = arguments.get('num_workers', 0) * (
            arguments.get('prefetch_factor') or 2)
        # All iterators share one DataLoader, whose workers may persist.
        self._batches: DataLoader = DataLoader(
            dataset, batch_sampler=dealer, **arguments)

    def __iter__(self) -> Iterator[Tuple[Slots, Any]]:
        # A generator, so nothing runs before the first `next`: frameworks call
        # `iter` to check whether a loader is iterable.
        cursor = self._dealer.begin_iterator(self._batch_size, self._drop_last,
                                             self._num_prefetched)
        for batch in self._batches:
            if self._device is not None:
                batch = tree_map(self._move, batch)
            yield cursor.deliver(), batch
            del batch  # Free the batch while the next one is loaded.
            self._dealer.check(cursor)
        self._dealer.end_iterator(cursor)

    def _move(self, value: Any) -> Any:
        if torch.is_tensor(value):
            return value.to(self._device, non_blocking=True)
        # As the batches of tokenizers, which aren't dicts.
        return value.to(self._device) if hasattr(value, 'to') else value

    def __len__(self) -> int:
        raise TypeError(
            'A loader of a Session has no length, because an epoch has as many'
            ' batches as its plan keeps. Take `session.progress`, in [0, 1], '
            'for schedules and progress bars.')
