# Copyright (c) mmib contributors. All rights reserved.
"""Plans become the stream of indices that the data loader reads."""
from dataclasses import replace
from typing import Any, Callable, Iterator, Optional, Sized

import numpy as np
import torch
from mmengine.dist import get_dist_info, sync_random_seed
from mmengine.logging import MessageHub
from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import Sampler

from ..errors import Refusal, check_no_others
from ..pruning import EpochPlan, Slots
from .data.datasets import unwrap_repeats

# Samplers of the baseline, by iterations and by epochs.
BASELINES = ('InfiniteSampler', 'DefaultSampler')
_NO_SLOTS = Slots(
    np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int16),
    np.empty(0, np.float32))
DrawPlan = Callable[[int, np.random.Generator], Optional[EpochPlan]]


class FullPasses:
    """The passes of the baseline's sampler.

    Args:
        num_indices (int): Indices of the data set.
        shuffle (bool): Whether a pass is shuffled.
        seed (int): Random seed.
    """

    def __init__(self, num_indices: int, shuffle: bool, seed: int) -> None:
        self._num_indices, self._shuffle = num_indices, shuffle
        self._seed = seed
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)
        # The order of the shuffle in use, how much of it came already, and the
        # generator before it.
        self._order, self._used = np.empty(0, np.int64), 0
        self._before = self._generator.get_state()

    def of_epoch(self, epoch: int) -> np.ndarray:
        """The pass of ``DefaultSampler`` in an epoch."""
        generator = torch.Generator()
        generator.manual_seed(self._seed + epoch)
        return self._permutation(generator)

    def next(self, size: int, limit: Optional[int] = None) -> np.ndarray:
        """The next ``size`` indices of ``InfiniteSampler``, at most
        ``limit``. A pass that was left goes on."""
        if self._used == len(self._order):
            self._before = self._generator.get_state()
            self._order, self._used = self._permutation(self._generator), 0
        begin = self._used
        self._used = begin + min(size - begin % size, limit or size)
        return self._order[begin:self._used]

    def skip(self, position: int, size: int) -> None:
        """Go from the beginning to a position."""
        passes, rest = divmod(position, self._num_indices)
        for _ in range(passes):
            self._permutation(self._generator)
        self._before = self._generator.get_state()
        while rest > 0:
            rest -= len(self.next(size, rest))

    def _permutation(self, generator: torch.Generator) -> np.ndarray:
        if not self._shuffle:
            return np.arange(self._num_indices)
        return torch.randperm(self._num_indices, generator=generator).numpy()

    def state_dict(self) -> dict:
        """Tensors and plain Python values."""
        return dict(generator=self._before, used=self._used)

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on from :meth:`state_dict`."""
        self._before = state_dict['generator']
        self._generator.set_state(self._before)
        self._used = state_dict['used']
        if self._used:
            self._order = self._permutation(self._generator)


class SlotQueue:
    """Slots that were dealt and not trained on: those in flight, then those
    that wait to be issued.

    Args:
        slots (Slots): The slots, none of which was issued yet. Defaults to
            none.
    """

    def __init__(self, slots: Slots = _NO_SLOTS) -> None:
        self.slots = slots
        self.num_issued = 0
        """int: Slots of all ranks that are in flight."""

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def num_waiting(self) -> int:
        """int: Slots of all ranks that weren't issued."""
        return len(self.slots) - self.num_issued

    def append(self, slots: Slots) -> None:
        """Deal more slots."""
        self.slots = Slots.join([self.slots, slots])

    def issue(self, rank: int, world_size: int) -> int:
        """Issue a slot to each rank, and return the index of this rank's."""
        index = self.slots.indices[self.num_issued + rank]
        self.num_issued += world_size
        return int(index)

    def take(self, count: int) -> Slots:
        """Take the oldest slots in flight."""
        taken, self.slots = self.slots[:count], self.slots[count:]
        self.num_issued -= count
        return taken

    def forget_tiers(self) -> None:
        """Learn nothing from slots of plans of another policy."""
        tiers = np.zeros_like(self.slots.tiers)
        self.slots = replace(self.slots, tiers=tiers)

    def state_dict(self) -> dict:
        """Tensors. Slots in flight are among them, as nobody has trained on
        them."""
        return {
            name: torch.from_numpy(array.copy())
            for name, array in vars(self.slots).items()
        }

    @classmethod
    def of_state(cls, state_dict: dict) -> 'SlotQueue':
        """Go on from :meth:`state_dict`."""
        return cls(
            Slots(**{
                name: tensor.numpy()
                for name, tensor in state_dict.items()
            }))


@DATA_SAMPLERS.register_module()
class InfoBatchSampler(Sampler):
    """The baseline's sampler without what :class:`InfoBatchHook` prunes.

    By iterations, the plans of all virtual epochs make one infinite stream of
    slots, as ``InfiniteSampler``. By epochs, each epoch is one plan, as with
    ``DefaultSampler``, and shorter by what is pruned. Full passes have the
    indices of these samplers with the same seed. Until a hook or a session has
    told which of the two it is, the stream is that of ``InfiniteSampler``, and
    the length that of ``DefaultSampler``, as a loop by epochs asks for it.

    Rank ``k`` of ``W`` reads the slots ``k, k + W, ...``, and all ranks ask
    for the next plan at the same step. By iterations, up to ``W - 1`` slots
    that don't fill a step are issued together with the next plan. By epochs,
    the first slots of a plan come again until all ranks have equally many.

    Issued slots are in flight until :meth:`take` hands them out with their
    batch: a data loader returns batches in the order of its requests. So by
    iterations only the training loop may read. By epochs, the first iterator
    of an epoch is that of the loop, and others, such as that of
    ``PreciseBNHook``, get full passes.

    A ``RepeatDataset`` is several passes by iterations, one by epochs.

    Args:
        dataset (Sized): The data set.
        shuffle (bool): Whether to shuffle. If not, plans of mmib keep the
            order of the data set. Defaults to True.
        seed (int, optional): Random seed. If None, all ranks agree on a
            random one. Defaults to None.

    Raises:
        Refusal: If there is another argument, or the data set is empty.
    """

    def __init__(self,
                 dataset: Sized,
                 shuffle: bool = True,
                 seed: Optional[int] = None,
                 **unknown: Any) -> None:
        check_no_others(unknown, InfoBatchSampler,
                        '`train_dataloader.sampler`')
        if len(dataset) == 0:
            raise Refusal(
                'InfoBatchSampler got an empty data set: check `data_root` '
                'and `data_prefix` in `train_dataloader.dataset`.')
        self.rank, self.world_size = get_dist_info()
        self.shuffle = shuffle
        self.seed = sync_random_seed() if seed is None else seed
        self.by_epoch: Optional[bool] = None
        """bool, optional: Whether the training counts epochs. None until a
        hook or a session has told."""
        self.epoch = 0
        self.position = 0
        """int: Slots of all ranks before the oldest one in flight."""
        self.queue = SlotQueue()
        """SlotQueue: Slots from :attr:`position` on."""
        self.is_open = False
        """bool: By epochs, whether an epoch has begun and isn't over."""
        self.awaits_batch = False
        """bool: By epochs, whether the open epoch has had no batch yet."""
        self.begins: Optional[Callable[[], None]] = None
        """Callable, optional: By epochs, begins an epoch for the iterator that
        calls it, where no hook begins epochs."""
        self.num_indices = len(dataset)
        """int: Indices of the data set, with all repeats."""
        self.num_images = len(unwrap_repeats(dataset))
        """int: Indices of the data set, without repeats."""
        self._draw_plan: Optional[DrawPlan] = None
        # A training that begins while no hook is connected is a config error.
        self._built_in_training = _in_training()
        self._num_readers = 0
        self._num_slots = 0
        # By epochs: whether the loop reads next. So an epoch is begun (open,
        # awaits loop and batch), read by the loop (open, awaits batch), and
        # trained on (open), until it is ended (none of them).
        self._awaits_loop = False
        self.restart(0)

    def __iter__(self) -> Iterator[int]:
        """Issue the slots of this rank."""
        # This runs at the first `next`: torch may call `iter` without it.
        if not self.by_epoch:
            yield from self._stream()
            return
        if self.begins is not None:
            self.begins()
        if self._awaits_loop:
            self._awaits_loop = False
            while self.queue.num_waiting:
                yield self.queue.issue(self.rank, self.world_size)
        elif self.awaits_batch:
            raise _other_reader()
        else:
            full_pass = _rounded_up(
                EpochPlan.full(self.full_pass()).slots(), self.world_size)
            yield from full_pass.indices[self.rank::self.world_size].tolist()

    def _stream(self) -> Iterator[int]:
        self._num_readers += 1
        if self._num_readers > 1 and self._draw_plan is not None:
            raise _other_reader()
        while True:
            if (self._draw_plan is None and not self._built_in_training
                    and _in_training()):
                raise _no_hook()
            while self.queue.num_waiting < self.world_size:
                if not self._extend():
                    return
            index = self.queue.issue(self.rank, self.world_size)
            if self._draw_plan is None:
                self.take(1)
            yield index

    def __len__(self) -> int:
        """Slots of a full pass by iterations; slots of this rank in the epoch
        by epochs: the baseline's samplers count them so."""
        if self.by_epoch is False:
            return self.num_images
        slots = self._num_slots if self.is_open else self.num_indices
        return -(-slots // self.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next full pass by epochs."""
        self.epoch = epoch

    def full_pass(self, limit: Optional[int] = None) -> np.ndarray:
        """Indices of the next full pass, those that the baseline's sampler
        would issue next, int64. By iterations, a ``RepeatDataset`` is shuffled
        as a whole and comes in several passes, and a pass that was left goes
        on.

        Args:
            limit (int, optional): The most slots. Defaults to None.
        """
        if self.by_epoch:
            return self._passes.of_epoch(self.epoch)
        return self._passes.next(self.num_images, limit)

    def begin_epoch(self) -> None:
        """Draw the plan of an epoch, unless a checkpoint had begun one: then
        it goes on with the rest."""
        if not self.is_open:
            self._extend()
            self.is_open = True
        # A checkpoint may be of another number of ranks.
        self.queue = SlotQueue(_rounded_up(self.queue.slots, self.world_size))
        self._num_slots = len(self.queue)
        self._awaits_loop = True
        self.awaits_batch = self._num_slots > 0

    def end_epoch(self) -> None:
        """Leave the slots that didn't fill a batch, as ``drop_last`` does."""
        self.position += len(self.queue)
        self.queue = SlotQueue()
        self.is_open = self._awaits_loop = self.awaits_batch = False

    def connect(self, draw_plan: DrawPlan) -> None:
        """Let a function draw the plans from now on.

        OpenMMLab's training loop starts its workers before any hook can act.
        What they were given is in flight from here on: slots of full passes,
        which are drawn again.

        Args:
            draw_plan (Callable): Called as ``draw_plan(start, rng)`` with the
                number of the plan's first slot. None ends the stream.
        """
        if self._num_readers > 1 and not self.by_epoch:
            raise _other_reader()
        in_flight = 0
        if self._draw_plan is None:
            in_flight = self.position - self._in_flight_from
        self._draw_plan = draw_plan
        if in_flight:
            num_readers = self._num_readers
            self.restart(self._in_flight_from)
            self._num_readers = num_readers
            while not self.by_epoch and len(self.queue) < in_flight:
                self._extend()
            self.queue.num_issued = min(in_flight, len(self.queue))

    def take(self, batch_size: int) -> Slots:
        """Take the oldest slots in flight.

        Args:
            batch_size (int): Images in the batch that has arrived.

        Returns:
            Slots: Slots of all ranks, of shape (batch_size * W,). This rank
            has ``[rank::W]``, in order.

        Raises:
            Refusal: If fewer slots are in flight.
        """
        count = batch_size * self.world_size
        if count > self.queue.num_issued:
            raise Refusal(
                f'A batch of {batch_size} images arrived, but only '
                f'{self.queue.num_issued // self.world_size} are in flight: '
                'the indices of `train_dataloader` must come from its '
                'InfoBatchSampler alone, in order.')
        self.position += count
        self.awaits_batch = False
        return self.queue.take(count)

    def skip(self, num_indices: int) -> None:
        """MMEngine's loop calls this where it resumes. The state of a
        checkpoint has gone to the position before, so nothing is done."""

    def state_dict(self) -> dict:
        """Everything that the rest of the stream follows from."""
        return dict(
            slots=self.queue.state_dict(),
            seed=self.seed,
            is_open=self.is_open,
            position=self.position,
            full_passes=self._passes.state_dict(),
            plans_rng=self._plans_rng.bit_generator.state)

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on from :meth:`state_dict`, on any number of ranks."""
        self.seed = state_dict['seed']
        self.restart(0)
        self.position = self._in_flight_from = state_dict['position']
        self.is_open = state_dict['is_open']
        self.queue = SlotQueue.of_state(state_dict['slots'])
        self._passes.load_state_dict(state_dict['full_passes'])
        self._plans_rng.bit_generator.state = state_dict['plans_rng']

    def restart(self, position: int) -> None:
        """Draw the full passes again from the seed, up to a position. What was
        issued went to nobody."""
        self._passes = FullPasses(self.num_indices, self.shuffle, self.seed)
        self._plans_rng = np.random.default_rng(self.seed)
        self.queue = SlotQueue()
        self._num_readers = 0
        self._in_flight_from = self.position = position
        if not self.by_epoch:
            self._passes.skip(position, self.num_images)

    def _extend(self) -> bool:
        """Append the next plan to the slots, or tell that there is none."""
        plan: Optional[EpochPlan]
        if self._draw_plan is None:
            plan = EpochPlan.full(self.full_pass())
        else:
            start = self.position + len(self.queue)
            plan = self._draw_plan(start, self._plans_rng)
        if plan is None:
            return False
        slots = plan.slots()
        if plan.is_shuffled and not self.shuffle:
            slots = slots[np.argsort(slots.indices)]
        self.queue.append(slots)
        return True


def _no_hook() -> Refusal:
    return Refusal(
        'InfoBatchSampler is read before any InfoBatchHook, and would '
        'prune nothing. If the config has none: add `custom_hooks = '
        "[dict(type='InfoBatchHook')]`, or set "
        '`train_dataloader.sampler.type` back to '
        f'{BASELINES[0]!r}, where the training counts epochs to '
        f'{BASELINES[1]!r}. If it has one: a hook '
        'before it reads from `train_dataloader`; let that one build '
        'a data loader of its own.')


def _other_reader() -> Refusal:
    return Refusal(
        'Something else than the training loop reads from '
        '`train_dataloader`, and InfoBatch could no longer tell which '
        'images a batch has: let a hook that looks at the data build '
        'a data loader of its own. In a notebook, look at '
        '`runner.train_dataloader.dataset[0]`, and build the Runner '
        'anew.')


def _rounded_up(slots: Slots, world_size: int) -> Slots:
    """Slots with the first ones again, until all ranks have as many."""
    missing = -len(slots) % world_size
    if len(slots) == 0 or missing == 0:
        return slots
    return slots[np.resize(np.arange(len(slots)), len(slots) + missing)]


def _in_training() -> bool:
    """Whether the process is in a training loop, which a sampler has no Runner
    to ask for."""
    # RuntimeInfoHook, a default hook, keeps the stage up to date.
    info = MessageHub.get_current_instance().runtime_info
    return info.get('loop_stage') == 'train'
