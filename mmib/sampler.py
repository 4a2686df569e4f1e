# Copyright (c) mmib contributors. All rights reserved.
"""Plans become the stream of indices that the data loader reads."""
from dataclasses import replace
from typing import Any, Callable, Iterator, Optional, Sized

import numpy as np
import torch
from mmengine.dist import get_dist_info, sync_random_seed
from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import Sampler

from . import compat
from .config.checks import check_no_others
from .datasets import unwrap_repeats
from .errors import RuntimeRefusal, ValueRefusal
from .pruning import EpochPlan

# Samplers of the baseline, by iterations and by epochs.
BASELINES = ('InfiniteSampler', 'DefaultSampler')
_NO_SLOTS = EpochPlan.full(np.empty(0, np.int64))
DrawPlan = Callable[[int, np.random.Generator], Optional[EpochPlan]]


@DATA_SAMPLERS.register_module(
    name=['InfoBatchSampler', 'InfoBatchEpochSampler'])
class InfoBatchSampler(Sampler):
    """The baseline's sampler without what :class:`InfoBatchHook` prunes.

    By iterations, the plans of all virtual epochs make one infinite stream of
    slots, as ``InfiniteSampler``. By epochs, each epoch is one plan, as with
    ``DefaultSampler``, and shorter by what is pruned. Full passes have the
    indices of these samplers with the same seed. The sampler asks the training
    loop which of the two it is.

    Rank ``k`` of ``W`` reads the slots ``k, k + W, ...``, and all ranks ask
    for the next plan at the same step. By iterations, up to ``W - 1`` slots
    that don't fill a step are issued together with the next plan. By epochs,
    the first slots of a plan come again until all ranks have equally many.

    Issued slots are known until :meth:`take` hands them to the hook with their
    batch: a data loader returns batches in the order of its requests. So by
    iterations only the training loop may read. By epochs, others such as
    ``PreciseBNHook`` get full passes.

    A ``RepeatDataset`` is several passes by iterations, one by epochs.

    Args:
        dataset (Sized): The data set.
        shuffle (bool): Whether to shuffle. If not, plans keep the order of
            the data set. Defaults to True.
        seed (int, optional): Random seed. If None, all ranks agree on a
            random one. Defaults to None.

    Raises:
        TypeError: If there is another argument.
        ValueError: If the data set is empty.
    """

    def __init__(self,
                 dataset: Sized,
                 shuffle: bool = True,
                 seed: Optional[int] = None,
                 **unknown: Any) -> None:
        check_no_others(unknown, InfoBatchSampler,
                        '`train_dataloader.sampler`')
        if len(dataset) == 0:
            raise ValueRefusal(
                'InfoBatchSampler got an empty data set: check `data_root` '
                'and `data_prefix` in `train_dataloader.dataset`.')
        self.rank, self.world_size = get_dist_info()
        self.shuffle = shuffle
        self.seed = sync_random_seed() if seed is None else seed
        self.by_epoch: Optional[bool] = None
        """bool, optional: Whether the training counts epochs. None until the
        training loop has asked for something."""
        self.epoch = 0
        self._lengths = len(unwrap_repeats(dataset)), len(dataset)
        self._draw_plan: Optional[DrawPlan] = None
        # A training that begins while no hook is connected is a config error.
        self._built_in_training = compat.in_training()
        # Iterators that began the stream, or that got full passes of epochs.
        self._num_readers = 0
        # Where the loop began to read before a hook is connected.
        self._in_flight_from = 0
        self.position = 0
        """int: Slots of all ranks before the oldest one in flight."""
        self.is_open = False
        """bool: By epochs, whether an epoch has begun and isn't over."""
        self._num_slots = 0
        self._awaits_loop = False  # By epochs: it reads next.
        self._full_passes_rng = torch.Generator()
        self._slots = _NO_SLOTS
        self._restart(0)

    @property
    def pass_length(self) -> int:
        """int: Slots of a full pass."""
        return self._lengths[self._counts_epochs()]

    def _counts_epochs(self) -> bool:
        """Whether passes end. Who reads outside of a training wants so."""
        if self.by_epoch is None:
            self.by_epoch = compat.loop_counts_epochs()
        return self.by_epoch is not False

    def __iter__(self) -> Iterator[int]:
        """Issue the slots of this rank."""
        # This runs at the first `next`: torch may call `iter` without it.
        if not self._counts_epochs():
            yield from self._stream()
        self._check_hook()
        if self._awaits_loop and not compat.in_hook():
            self._awaits_loop = False
            while self._issued < len(self._slots):
                yield self._issue()
        else:
            self._num_readers += 1
            full_pass = self._rounded_up(self._full_plan()).indices
            yield from full_pass[self.rank::self.world_size].tolist()

    def _stream(self) -> Iterator[int]:
        self._num_readers += 1
        self._check_readers()
        while True:
            self._check_hook()
            while self._issued + self.world_size > len(self._slots):
                self._extend()
            index = self._issue()
            if self._draw_plan is None:
                self.take(1)
            yield index

    def _issue(self) -> int:
        index = self._slots.indices[self._issued + self.rank]
        self._issued += self.world_size
        return int(index)

    def __len__(self) -> int:
        """Slots of a full pass by iterations; slots of this rank in the epoch
        by epochs: the baseline's samplers count them so."""
        if not self._counts_epochs():
            return self.pass_length
        slots = self._num_slots if self.is_open else self.pass_length
        return -(-slots // self.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next full pass by epochs."""
        self.epoch = epoch

    def batch_length(self, batch_size: int) -> int:
        """Images of this rank in the next batch, of which the data loader asks
        for ``batch_size``. The last batch of an epoch may be shorter."""
        return min(batch_size, self._issued // self.world_size)

    def begin_epoch(self) -> None:
        """Draw the plan of an epoch, unless a checkpoint had begun one: then
        it goes on with the rest."""
        if not self.is_open:
            self._extend()
            self.is_open = True
        # A checkpoint may be of another number of ranks.
        self._slots = self._rounded_up(self._slots)
        self._num_slots = len(self._slots)
        self._issued = 0
        self._awaits_loop = True

    def end_epoch(self) -> None:
        """Leave the slots that didn't fill a batch, as ``drop_last`` does."""
        self.position += len(self._slots)
        self._slots = _NO_SLOTS
        self.is_open = False

    def connect(self, draw_plan: DrawPlan) -> None:
        """Let a hook draw the plans from now on.

        OpenMMLab's training loop starts its workers before any hook can act.
        What they were given is in flight from here on: slots of full passes,
        which are drawn again.

        Args:
            draw_plan (Callable): Called as ``draw_plan(start, rng)`` with the
                number of the plan's first slot. None is a full pass.
        """
        in_flight = (0 if self._draw_plan else self.position -
                     self._in_flight_from)
        self._draw_plan = draw_plan
        self._check_readers()
        if in_flight:
            self._restart(self._in_flight_from)
            while len(self._slots) < in_flight:
                self._extend()
            self._issued = in_flight

    def take(self, batch_size: int) -> EpochPlan:
        """Take the oldest slots in flight.

        Args:
            batch_size (int): Images in the batch that has arrived.

        Returns:
            EpochPlan: Slots of all ranks, of shape (batch_size * W,). This
            rank has ``[rank::W]``, in order.

        Raises:
            RuntimeError: If fewer slots are in flight.
        """
        end = batch_size * self.world_size
        if end > self._issued:
            raise RuntimeRefusal(
                f'A batch of {batch_size} images arrived, but only '
                f'{self._issued // self.world_size} are in flight: the '
                'indices of `train_dataloader` must come from its '
                'InfoBatchSampler alone, in order.')
        taken = self._slots[:end]
        self._slots = self._slots[end:]
        self._issued -= end
        self.position += end
        return taken

    def skip(self, num_indices: int) -> None:
        """Go to an absolute position of the full passes.

        A hook has gone to the position before the training loop calls this,
        and nothing happens.

        Args:
            num_indices (int): Indices of this rank before the position.
        """
        if self._draw_plan is not None:
            return
        position = num_indices * self.world_size
        if self._counts_epochs():
            self.position, self._slots = position, _NO_SLOTS
        elif position != self.position:
            self._restart(position)
        self._forget_issued()

    def state_dict(self) -> dict:
        """Everything that the rest of the stream follows from, with the slots
        in flight: they were not trained on."""
        return dict(
            seed=self.seed,
            size=self.pass_length,
            is_open=self.is_open,
            position=self.position,
            indices=torch.from_numpy(self._slots.indices.copy()),
            weights=torch.from_numpy(self._slots.weights.copy()),
            tiers=torch.from_numpy(self._slots.tier_of_slot.copy()),
            full_passes_rng=self._full_passes_rng.get_state(),
            plans_rng=self._plans_rng.bit_generator.state)

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on from :meth:`state_dict`, on any number of ranks."""
        self.seed = state_dict['seed']
        self.position = state_dict['position']
        self.is_open = state_dict['is_open']
        self._forget_issued()
        self._slots = EpochPlan(
            state_dict['indices'].numpy(),
            state_dict['weights'].numpy(),
            tier_of_slot=state_dict['tiers'].numpy())
        self._full_passes_rng.set_state(state_dict['full_passes_rng'])
        self._plans_rng.bit_generator.state = state_dict['plans_rng']

    def forget_tiers(self) -> None:
        """Learn nothing from slots of plans of another policy."""
        tiers = np.zeros_like(self._slots.tier_of_slot)
        self._slots = replace(self._slots, tier_of_slot=tiers)

    def _restart(self, position: int) -> None:
        """Draw the full passes again from the seed, up to a position."""
        self._full_passes_rng.manual_seed(self.seed)
        self._plans_rng = np.random.default_rng(self.seed)
        self._in_flight_from = self.position = position
        self._issued = 0
        self._slots = _NO_SLOTS
        if position > 0:  # The length of a pass isn't known before the loop.
            passes, rest = divmod(position, self.pass_length)
            for _ in range(passes):
                self._full_plan()
            self._slots = self._full_plan()[rest:] if rest else _NO_SLOTS

    def _forget_issued(self) -> None:
        """Nothing is in flight, and what was issued went to nobody."""
        self._in_flight_from = self.position
        self._issued = 0
        self._num_readers = 0

    def _extend(self) -> None:
        """Append the next plan to the slots."""
        plan = None
        if self._draw_plan is not None:
            start = self.position + len(self._slots)
            plan = self._draw_plan(start, self._plans_rng)
        if plan is None:
            plan = self._full_plan()
        elif not self.shuffle:
            plan = plan[np.argsort(plan.indices)]
        slots = self._slots
        self._slots = EpochPlan(
            np.concatenate([slots.indices, plan.indices]),
            np.concatenate([slots.weights, plan.weights]),
            tier_of_slot=np.concatenate(
                [slots.tier_of_slot, plan.tier_of_slot]))

    def _full_plan(self) -> EpochPlan:
        """The next pass of the baseline's sampler."""
        if self._counts_epochs():
            # The baseline's pass, whatever came before: plans that prune draw
            # from other generators.
            self._full_passes_rng.manual_seed(self.seed + self.epoch)
        if self.shuffle:
            order = torch.randperm(
                self.pass_length, generator=self._full_passes_rng).numpy()
        else:
            order = np.arange(self.pass_length)
        return EpochPlan.full(order)

    def _rounded_up(self, plan: EpochPlan) -> EpochPlan:
        """A plan with its first slots again, until ranks have as many."""
        missing = -len(plan) % self.world_size
        if len(plan) == 0 or missing == 0:
            return plan
        return plan[np.resize(np.arange(len(plan)), len(plan) + missing)]

    def _check_hook(self) -> None:
        if (self._draw_plan is None and not self._built_in_training
                and compat.in_training()):
            raise RuntimeRefusal(
                'InfoBatchSampler is read before any InfoBatchHook, and would '
                'prune nothing. If the config has none: add `custom_hooks = '
                "[dict(type='InfoBatchHook')]`, or set "
                '`train_dataloader.sampler.type` back to '
                f"'{BASELINES[self._counts_epochs()]}'. If it has one: a hook "
                'before it reads from `train_dataloader`; let that one build '
                'a data loader of its own.')

    def _check_readers(self) -> None:
        if self._num_readers > 1 and self._draw_plan and not self.by_epoch:
            raise RuntimeRefusal(
                'Something else than the training loop reads from '
                '`train_dataloader`, and InfoBatch could no longer tell which '
                'images a batch has: let a hook that looks at the data build '
                'a data loader of its own. In a notebook, look at '
                '`runner.train_dataloader.dataset[0]`, and build the Runner '
                'anew.')


# The name that older configs have for trainings that count epochs.
InfoBatchEpochSampler = InfoBatchSampler
