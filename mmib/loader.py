# Copyright (c) mmib contributors. All rights reserved.
"""The loader of a Session: a wrapper of a DataLoader that delivers each batch
with its slots, and the rules by which iterators share one stream of slots."""
import copy
import operator
from collections import deque
from collections.abc import MutableMapping
from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Deque, Dict, Iterator, List, Optional, Tuple

import numpy as np
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset

from .errors import Refusal
from .ranks import World, gather_numbers, random_seed, world_of_process
from .run.run import Run
from .scores.compiled import PreparedBatches
from .stop import begin_worker
from .stream.schedule import StepSize
from .stream.slots import Slots
from .stream.stream import Rest

# Batches that iterators in a row deliver without any `weigh` before a refusal.
_MOST_UNWEIGHED = 20
# Arguments of DataLoader that plans take the place of, and the arguments of a
# Session for the same purpose.
_OF_PLANS = dict(shuffle='shuffle', sampler='policy', batch_sampler='policy')


class Weighed(IntEnum):
    """What was weighed since an iterator began whose rest was cut for another
    batch size."""

    NOTHING = 0
    REST = 1  # Slots of the rest.
    OLDER = 2  # Slots of an older iterator.


class Cursor:
    """The progress of one iterator of a loader.

    Args:
        step (StepSize): The steps of the iterator.
        begin (int): Position in the stream where the iterator begins.
        rest (Rest, optional): A cut rest of the open plan that the iterator
            deals from, until the run goes on with the rest. Defaults to None.
        gives_up (bool): Whether the iterator has no batch, because the slots
            that are left fill none and were given up. Defaults to False.
    """

    def __init__(self,
                 step: StepSize,
                 begin: int,
                 rest: Optional[Rest] = None,
                 gives_up: bool = False) -> None:
        self.step = step
        self.begin = self.next_slot = begin
        self.rest, self.weighed = rest, Weighed.NOTHING
        self.gives_up = gives_up
        self.num_issued = self.num_given_up = 0
        self.has_ended = self.has_weighed_first = self.has_warned = False
        self._in_flight: Deque[Slots] = deque()

    def issue(self, slots: Slots) -> List[int]:
        """Add a batch that is requested from the workers, and return its
        dataset indices."""
        self.next_slot = slots.end
        self.num_issued += 1
        self._in_flight.append(slots)
        return slots.indices.tolist()

    @property
    def num_in_flight(self) -> int:
        """int: Batches that were requested, and not delivered yet."""
        return len(self._in_flight)

    def deliver(self) -> Slots:
        """Return the slots of the oldest batch in flight."""
        return self._in_flight.popleft()


class Dealer:
    """Deals the slots of a run to the iterators of its loaders. One iterator
    is active at a time.

    The stream has one position: the end of the newest batch with a weighed
    slot. Slots before the position were trained on or given up, and the next
    iterator begins at the position. Therefore a look at the first batch, a
    ``break``, an exception, a retry and a resume need no special case.

    If the rest of a plan has to be cut for another batch size, the iterator
    deals from a copy of the stream. What is weighed first decides whether the
    run takes over the copy, see :class:`Weighed`:

    ============  ================  =========================================
    Weighed       Stream of the     Slots that may be weighed from then on
                  run
    ============  ================  =========================================
    ``NOTHING``   As it was         Those of the copy, and older ones
    ``REST``      The copy          Those of the copy
    ``OLDER``     As it was         Older ones; the iterator is refused
    ============  ================  =========================================

    An iterator that has delivered all slots of the copy counts as ``REST``.

    Args:
        run (Run): The run.
        ranks (World, optional): The rank. If None, each process is a rank.
            Defaults to None.
    """

    def __init__(self, run: Run, ranks: Optional[World] = None) -> None:
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
        self.prepared = PreparedBatches()
        """PreparedBatches: The batches that a compiled step may weigh."""

    def fix_ranks(self) -> None:
        """Read the rank and the number of ranks at the first call, and refuse
        other ones at later calls. At the first call, all ranks agree on a
        seed."""
        run, now = self._run, self._ranks or world_of_process()
        if not self._has_ranks:
            num_processes = world_of_process().size
            if num_processes % now.size:
                raise Refusal(
                    f'`num_replicas={now.size}` of the Session does not '
                    f'divide the {num_processes} processes evenly: give the '
                    'number of groups of processes that train on the same '
                    'batches.')
            self._has_ranks = True
            run.set_ranks(now, random_seed() if run.seed is None else None)
        elif now != run.world:
            raise Refusal(
                f'The Session has begun as rank {run.world.rank} of '
                f'{run.world.size}, and the process is now rank {now.rank} of '
                f'{now.size}: call `init_process_group`, or create the object '
                'of your framework that calls it, before the first batch.')

    def check_length(self, length: int) -> None:
        """Refuse a dataset whose length has changed."""
        expected = len(self._run.table.images)
        if length != expected:
            raise Refusal(
                f'The dataset has {length} samples now, and the Session was '
                f'made for {expected}: make a '
                'Session for each stage of a training in which the dataset '
                'changes.')

    def seed_of(self, cursor: Cursor) -> int:
        """Return a random seed for the workers of an iterator, which differs
        between ranks, and is the same where a run goes on at a position."""
        run = self._run
        assert run.seed is not None
        entropy = run.seed, cursor.begin, run.world.rank
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def begin_iterator(self, batch_size: int, drop_last: bool,
                       num_prefetched: int) -> Cursor:
        """Begin an iterator. Older iterators are refused at their next batch.

        Args:
            batch_size (int): Samples of a batch on this rank.
            drop_last (bool): Whether to leave out samples that fill no batch.
            num_prefetched (int): Batches that workers load in advance.
        """
        self.fix_ranks()
        run, before = self._run, self._cursor
        step = StepSize(batch_size * run.world.size, drop_last)
        if before is not None and before.has_ended and run.schedule.by_epoch:
            self._note_unweighed(before)
        self._same = batch_size, drop_last, num_prefetched
        if self._is_in_use:
            self._agree()
        self._cursor, rest, stream = None, None, run.stream
        # After a rest was given up, a loop may begin one empty iterator.
        may_be_empty = before is not None and before.gives_up
        if run.schedule.by_epoch:
            rest = self._rest_of_epoch(step, may_be_empty)
            stream = rest.stream
            if rest.left_out is None:
                run.go_on_with(rest)
                rest = None
        else:
            if self.is_stream_over and not may_be_empty:
                raise _over('The stream of the Session is over')
            self._check_step(step, run.schedule.length)
        end = run.schedule.stream_end
        end = stream.end if end is None else end
        left = end - stream.position
        gives_up = drop_last and 0 < left < step.slots
        if gives_up:
            self._give_up(end)
        self._cursor = Cursor(step, run.stream.position, rest, gives_up)
        return self._cursor

    def _rest_of_epoch(self, step: StepSize, may_be_empty: bool) -> Rest:
        """Return the rest of the open plan in these steps. If the open plan is
        over, draw the plan of the next epoch."""
        run, newest = self._run, self._run.stream.newest
        size = run.schedule.pass_length
        num_epochs = run.schedule.length // size
        if run.stream.left == 0:
            if run.epoch < num_epochs:
                self._check_step(step, size)
                run.next_plan(step)
            elif not may_be_empty:
                raise _over(f'The {num_epochs} `epochs` of the Session are '
                            'over')
        elif newest is not None and run.stream.position > newest.first_slot:
            run.warn(f'epoch {run.epoch} goes on with the '
                     f'{run.stream.left} images that are left.')
        return run.rest_for(step)

    def _give_up(self, end: int) -> None:
        """Give up the slots that fill no batch, and say how many."""
        run, newest = self._run, self._run.stream.newest
        # `rest_for` has warned where a whole plan of an epoch is too small.
        if not (run.schedule.by_epoch and newest
                and run.stream.position == newest.first_slot):
            run.warn(f'the last {end - run.stream.position} images are given '
                     'up, because they fill no batch and `drop_last` leaves '
                     'them out.')
        run.stream.advance(end)

    def _note_unweighed(self, cursor: Cursor) -> None:
        """Warn that an iterator has ended with nothing weighed. After several
        such iterators, refuse to go on, because no epoch would ever end. A
        loop may skip a few batches, even if an epoch has no others."""
        if cursor.num_issued == 0 or self._weighed_until > cursor.begin:
            return
        if cursor.num_given_up:
            self._run.warn(
                f'{cursor.num_given_up} images are given up, because an '
                'iterator has delivered them, and none of them was weighed.')
            return
        text = ('an iterator of the loader has ended, and nothing was weighed.'
                ' Call `session.weigh` in each step of training. To look at '
                'all images, for validation or statistics of BatchNorm, take a'
                ' plain `DataLoader(dataset)`.')
        if self._num_unweighed == 0:
            self._run.warn(text)
        elif self._num_unweighed + cursor.num_issued >= _MOST_UNWEIGHED:
            raise Refusal(f'Once more {text}')
        self._num_unweighed += cursor.num_issued

    def _note_unweighed_passes(self, cursor: Cursor) -> None:
        """Warn in the middle of a stream that a whole pass was delivered, and
        nothing was weighed. A framework may hold a few batches, which are
        weighed later."""
        run, num_batches = self._run, cursor.num_issued - cursor.num_in_flight
        if not cursor.has_warned and run.stream.position == cursor.begin and (
                num_batches >= max(
                    _MOST_UNWEIGHED,
                    run.schedule.pass_length / cursor.step.slots)):
            cursor.has_warned = True
            run.warn(f'{num_batches} batches were delivered, and nothing was '
                     'weighed. Call `session.weigh` in each step of training.')

    @staticmethod
    def _check_step(step: StepSize, size: int) -> None:
        if step.drop_last and step.slots > size:
            raise Refusal(
                f'A step has {step.slots} samples, of {size} in all, and '
                '`drop_last` leaves them all out: lower `batch_size`, or '
                'remove `drop_last`.')

    def _agree(self) -> None:
        """Let all ranks go on from the same position and with the same rest.
        """
        cursor = self._cursor
        weighed = Weighed.NOTHING if cursor is None else cursor.weighed
        if world_of_process().size > 1:
            weighed = self._exchange(weighed)
        if cursor is not None and weighed:
            self._note(cursor, weighed)
            cursor.rest = None

    def _exchange(self, own: Weighed) -> Weighed:
        """Move to the furthest position of all ranks, and refuse arguments
        that differ between ranks. Return what was weighed on any rank, given
        what was weighed on this rank."""
        run = self._run
        assert run.seed is not None
        numbers = [
            run.stream.position, own, *self._same, run.seed,
            len(run.table.images), run.schedule.length, run.checksum
        ]
        rows = gather_numbers(numbers)
        names = ('batch_size', 'drop_last',
                 'num_workers` and `prefetch_factor', 'seed', 'dataset',
                 'epochs', 'policy')
        for name, column in zip(names, rows.T[2:].tolist()):
            if len(set(column)) > 1:
                raise Refusal(
                    f'`{name}` differs between the ranks ({column}), which '
                    'must train on parts of the same batches: give all ranks '
                    'the same arguments, and let a policy take every random '
                    'choice from its argument `rng`.')
        weighed = {*map(Weighed, rows[:, 1].tolist())} - {Weighed.NOTHING}
        if len(weighed) > 1:
            raise Refusal(
                'Some ranks have weighed slots of the newest iterator, and '
                'others slots of an iterator before with another batch size: '
                'weigh slots of the newest iterator on all ranks.')
        run.stream.advance(int(rows[:, 0].max()))
        return weighed.pop() if weighed else Weighed.NOTHING

    def _note(self, cursor: Cursor, weighed: Weighed) -> None:
        """Note what was weighed since an iterator has begun. If slots of its
        rest were weighed, the run goes on with the rest."""
        if cursor.rest is not None and cursor.weighed is Weighed.NOTHING:
            cursor.weighed = weighed
            if weighed is Weighed.REST:
                self._run.go_on_with(cursor.rest)

    def agree_on_rest(self) -> None:
        """Let all ranks agree on the rest that the run goes on with. Called on
        all ranks, which have the same iterators."""
        if self._cursor is not None and self._cursor.rest is not None:
            self._agree()

    def may_weigh(self, slots: Slots) -> bool:
        """Return whether slots may be weighed."""
        if slots.numbering is self._run.stream.numbering:
            return True
        # Slots of the newest iterator, of which nothing was weighed yet.
        cursor = self._cursor
        return (cursor is not None and cursor.rest is not None
                and cursor.weighed is Weighed.NOTHING
                and slots.numbering is cursor.rest.stream.numbering)

    def check_slots(self, slots: Slots) -> None:
        """Refuse slots that may not be weighed."""
        if not self.may_weigh(slots):
            raise Refusal(
                '`slots` belong to another Session, to a time before '
                '`load_state_dict`, or to one of two iterators with different '
                'batch sizes, and slots of the other one were weighed: take '
                'slots from the newest iterator of a loader of this Session.')

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
        if cursor.weighed is Weighed.OLDER:
            raise Refusal(
                'Slots of an older iterator were weighed since this one began,'
                ' with another batch size: begin a new iterator.')

    def _next_batch(self, cursor: Cursor) -> Optional[List[int]]:
        """Return the dataset indices of the next batch, or None where the
        iterator ends."""
        self.check(cursor)
        run, begin, step = self._run, cursor.next_slot, cursor.step
        by_epoch, rest = run.schedule.by_epoch, cursor.rest
        stream = run.stream if rest is None else rest.stream
        while (not by_epoch and stream.end - begin < step.slots
               and stream.end != run.schedule.stream_end):
            if stream.newest is not None:
                # One iterator may be the whole run, so the ranks agree here.
                self._agree()
                self._note_unweighed_passes(cursor)
            if not run.next_plan():
                break
        ranks = run.world.size
        size = min(step.slots, stream.end - begin) // ranks
        if size == 0 or step.drop_last and size * ranks < step.slots:
            return None
        end = begin + size * ranks
        is_last = by_epoch or stream.end == run.schedule.stream_end
        if step.drop_last and is_last and stream.end - end < step.slots:
            # The slots after the last whole batch are given up with it.
            end = stream.end
        return cursor.issue(stream.batch(begin, size, run.world, end))

    def end_iterator(self, cursor: Cursor) -> None:
        """End an iterator that has delivered all of its batches. The rest of
        the plan is given up if any slot of the plan was weighed, on this rank
        or before the iterator began."""
        self.check(cursor)
        if cursor.num_in_flight:
            raise Refusal(
                'The DataLoader has ended, and '
                f'{cursor.num_in_flight} of its batches did not arrive, as if '
                'the dataset or `collate_fn` had raised StopIteration: look '
                'for a `next(...)` that finds nothing.')
        cursor.has_ended = self._is_in_use = True
        run, begin = self._run, cursor.begin
        if run.schedule.by_epoch and run.stream.newest is not None:
            begin = run.stream.newest.first_slot
        if not run.schedule.by_epoch:
            # No other iterator follows, at which this would be noticed.
            self._note_unweighed(cursor)
        if run.stream.position <= begin:
            return
        self._note(cursor, Weighed.REST)
        # A framework may hold batches that are weighed later.
        cursor.num_given_up = run.stream.left
        run.stream.advance(run.stream.end)

    def deliver(self, cursor: Cursor) -> Slots:
        """Return the slots of the oldest batch in flight, for a step."""
        slots = cursor.deliver()
        self.prepared.add(slots, self._run.log)
        return slots

    def collect(self) -> None:
        """Log what compiled steps have weighed."""
        for slots, entry in self.prepared.take_weighed():
            self.check_slots(slots)
            self.note_weighed(slots)
            if slots.annealing:
                self._run.log.record_unscored(slots.numbers)
            else:
                self._run.log.record(entry)

    def note_weighed(self, slots: Slots) -> None:
        """Move the position, because a part of a batch was weighed."""
        self._is_in_use = True
        self._num_unweighed = 0
        cursor = self._cursor
        # Equal until the first batch is weighed, and again after the end.
        if cursor is not None and (cursor.has_weighed_first == cursor.has_ended
                                   and slots.first
                                   == cursor.begin + self._run.world.rank):
            self._note_first_batch(cursor)
        self._weighed_until = max(slots.end, self._weighed_until)
        if cursor is not None and cursor.rest is not None:
            is_of_rest = (slots.numbering is cursor.rest.stream.numbering)
            self._note(cursor, Weighed.REST if is_of_rest else Weighed.OLDER)
        self._run.stream.advance(slots.end)

    def _note_first_batch(self, cursor: Cursor) -> None:
        """Note that the first batch of an iterator was weighed. Warn if the
        batch comes again after the end of the iterator."""
        cursor.has_weighed_first = not cursor.has_ended
        if cursor.has_ended:
            self._run.warn(
                'batches of an iterator that has ended are trained on again, '
                'as with `itertools.cycle(loader)`, which keeps the batches of'
                ' the first epoch. Begin an iterator for each epoch, or take '
                'one iterator of a Session with `stream=True`.')

    def reset(self) -> None:
        """Forget the iterators, because the run was resumed."""
        self.prepared.clear()
        self._cursor = None
        self._is_in_use = True
        self._weighed_until = 0

    @property
    def is_stream_over(self) -> bool:
        """bool: Whether the stream has fewer slots left than there are ranks.
        """
        run = self._run
        end = run.schedule.stream_end
        return end is not None and end - run.stream.position < run.world.size

    @property
    def is_plan_over(self) -> bool:
        """bool: Whether the position is at the end of the open plan."""
        return self._run.stream.left == 0


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
        for name, instead in _OF_PLANS.items():
            if name in arguments:
                raise Refusal(
                    f'`{name}` is not an argument of `Session.loader`, because'
                    ' the plans of the Session decide which samples are '
                    f'delivered, and in which order: remove `{name}`. The '
                    f'Session itself has an argument `{instead}`.')
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
        # A DataLoader draws the seed of its workers whenever an iterator
        # begins. From torch's global generator, the draw would change what a
        # resumed run draws next, such as the masks of dropout.
        self._generator = None
        if arguments.get('generator') is None:
            self._generator = torch.Generator()
            arguments = dict(arguments, generator=self._generator)
        if arguments.get('num_workers', 0):
            arguments = dict(
                arguments,
                worker_init_fn=partial(begin_worker,
                                       arguments.get('worker_init_fn')))
        self._num_prefetched = arguments.get('num_workers', 0) * (
            arguments.get('prefetch_factor') or 2)
        # All iterators share one DataLoader, whose workers may persist.
        self._batches: DataLoader = DataLoader(
            dataset, batch_sampler=dealer, **arguments)

    def __iter__(self) -> Iterator[Tuple[Slots, Any]]:
        # A generator, so nothing runs before the first `next`: frameworks call
        # `iter` to check whether a loader is iterable.
        self._dealer.collect()
        self._dealer.prepared.begin(self._device)
        self._dealer.check_length(len(self._batches.dataset))  # type: ignore
        cursor = self._dealer.begin_iterator(self._batch_size, self._drop_last,
                                             self._num_prefetched)
        # Only workers take the seed.
        if self._generator is not None and self._num_prefetched:
            self._generator.manual_seed(self._dealer.seed_of(cursor))
        for batch in self._batches:
            if self._device is not None:
                batch = self._move(batch)
            yield self._dealer.deliver(cursor), batch
            del batch  # Free the batch while the next one is loaded.
            self._dealer.collect()
            self._dealer.check(cursor)
        self._dealer.end_iterator(cursor)

    def _move(self, batch: Any) -> Any:
        # A PackedSequence, a tuple, moves itself. Other objects with a method
        # `to` are the batches of tokenizers.
        return tree_map(
            self._moved, batch, is_leaf=lambda value: hasattr(value, 'to'))

    def _moved(self, value: Any) -> Any:
        if torch.is_tensor(value):
            return value.to(self._device, non_blocking=True)
        if hasattr(value, 'to'):
            moved = value.to(self._device)
            # Such as of an object that moves itself in place.
            return value if moved is None else moved
        # Classes that `tree_map` doesn't know, as `default_collate` or a
        # `collate_fn` makes them.
        if isinstance(value, MutableMapping):
            moved = copy.copy(value)
            moved.update({key: self._move(x) for key, x in value.items()})
            return moved
        if is_dataclass(value) and not isinstance(value, type):
            moved = copy.copy(value)
            for field in fields(value):
                x = self._move(getattr(value, field.name))
                object.__setattr__(moved, field.name, x)  # Also if frozen.
            return moved
        if isinstance(value, list):
            moved = copy.copy(value)
            moved[:] = map(self._move, value)
            return moved
        return value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f'A loader of a Session is not a DataLoader, and has no `{name}`. '
            'Use the loader as it is, without `prepare` or '
            '`skip_first_batches` of a framework: after '
            '`session.load_state_dict` it goes on by itself.')

    def __len__(self) -> int:
        raise TypeError(
            'A loader of a Session has no length, because an epoch has as many'
            ' batches as its plan keeps. Take `session.progress`, in [0, 1], '
            'for schedules and progress bars.')
