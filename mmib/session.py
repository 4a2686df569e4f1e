# Copyright (c) mmib contributors. All rights reserved.
"""A loop of one's own in plain torch, without a Runner."""
import logging
import math
from typing import Any, Callable, Dict, List, Optional, Sized, Union

import torch
from mmengine.logging import print_log
from torch import Tensor

from .clock import Clock, EpochClock, IterationClock
from .errors import Refusal
from .openmmlab.sampler import InfoBatchSampler
from .pruning import Neyman, Policy, ToBudget, as_policy
from .training import Training
from .worth import VarianceRatio


class Session(Training):
    """InfoBatch for a loop of your own.

    Put :attr:`sampler` into the data loader, and differentiate what
    :meth:`mean` makes of the losses of a batch:

        >>> session = mmib.Session(dataset, Neyman(ratio=0.6), epochs=90)
        >>> loader = DataLoader(dataset, 64, sampler=session.sampler)
        >>> for epoch in range(session.epoch, 90):
        >>>     for images, labels in loader:
        >>>         logits = model(images)
        >>>         losses = F.cross_entropy(logits, labels, reduction='none')
        >>>         session.mean(losses, logits).backward()

    Each iterator of the loader is an epoch, shorter by what is pruned. The
    clock counts slots: an iteration is one image.

    Args:
        dataset (Sized): The data set.
        policy (Policy or Callable, optional): Draws the plans. If None,
            ``Neyman(ratio=0.6)``. Defaults to None.
        epochs (int): Passes over the data, at least 2.
        delta (float): Fraction of the training after which the data set is
            full again. Defaults to 0.85.
        start (float): Fraction of the training before which nothing is
            pruned. Defaults to 0, from the second pass on.
        ema (float): Share of the old score in the new one at each visit but
            the first, in [0, 1). Defaults to 0.
        normalize (bool): Whether the weights of a plan are divided by their
            mean. If not, steps of SGD are longer by 1 / kept share. Advised
            for optimizers like Adam. Defaults to False.
        stream (bool): Whether one iterator of the loader is the whole
            training, and ends by itself, after ``ratio`` of the images of
            ``epochs`` passes: for loops that count iterations. A policy
            without a ratio of the training has 0.6. Defaults to False.
        shuffle (bool): Whether to shuffle. Defaults to True.
        seed (int, optional): Random seed. If None, all ranks agree on a random
            one. Defaults to None.
        drop_last (bool): The argument of the data loader. Defaults to False.

    Raises:
        Refusal: If an argument is out of range.
    """

    def __init__(self,
                 dataset: Sized,
                 policy: Union[Policy, Callable, None] = None,
                 epochs: Optional[int] = None,
                 delta: float = 0.85,
                 start: float = 0.,
                 ema: float = 0.,
                 normalize: bool = False,
                 stream: bool = False,
                 shuffle: bool = True,
                 seed: Optional[int] = None,
                 drop_last: bool = False) -> None:
        policy = as_policy(policy or Neyman())
        sampler = InfoBatchSampler(dataset, shuffle, seed)
        sampler.by_epoch = not stream
        clock = _clock_of(sampler, policy, epochs, delta, start)
        if policy.prunes and clock.prunes_nothing:
            raise Refusal(
                f'Nothing would be pruned: annealing begins at {clock.unit} '
                f'{clock.annealing_at} of {clock.length}, and the first pass '
                'is full. Give the Session more `epochs`, or raise `delta`.')
        super().__init__(dataset, policy, sampler, clock, ema, normalize)
        self._drop_last = drop_last
        self._batch_size = 0  # Of this rank. 0 before the first batch.
        # Whether the next iterator goes on with the epoch of a checkpoint.
        self._goes_on = False
        self.sampler.begins = self._begin_epoch_of_loop
        self.sampler.connect(self.draw)

    def mean(self,
             losses: Tensor,
             predictions: Optional[Tensor] = None) -> Tensor:
        """The loss of a batch, to be differentiated: the mean of the losses,
        with the weight of each image.

        Losses without a gradient, as in validation, get their plain mean.

        Args:
            losses (Tensor): Loss of each sample of the batch that the loader
                has just delivered, of shape (B,).
            predictions (Tensor, optional): What the losses are computed from,
                of shape (B, ...), such as logits. The gradient there tells
                what the choice of images is worth. If None, losses stand in
                for its norms. Defaults to None.

        Returns:
            Tensor: A scalar.
        """
        if not (losses.requires_grad and torch.is_grad_enabled()):
            return losses.mean()
        # Norms exist only after the backward pass.
        self.end_batch()
        self._begin_batch_of(losses)
        if self.batch.weights is None:
            return losses.mean()
        if predictions is not None:
            self.batch.watch(predictions)
        if not self.batch.only_scores:
            return self.batch.mean(losses.float())
        value = losses.mean()
        self.batch.add_scores(losses.float(), losses.float())
        self.batch.watch_loss(value)
        return value

    def _begin_batch_of(self, losses: Tensor) -> None:
        size = len(losses)
        if losses.dim() != 1:
            raise Refusal(
                f'`losses` have the shape {tuple(losses.shape)}, and need one '
                "number for each sample: compute them with `reduction='none'`,"
                ' and take the mean over what belongs to a sample.')
        # The batch before may have been the short one of another epoch.
        if self.sampler.awaits_batch or not self._batch_size:
            self._batch_size = size
        due = self.batch_length(self._batch_size)
        if size != due:
            raise Refusal(
                f'`Session.mean` got {size} losses where {due} are due: call '
                'it once for each batch, with the losses of the whole batch, '
                'in the order in which the data loader delivers the batches. '
                'Only the last batch of an epoch may be smaller.')
        self.begin_batch(size, losses.device)

    def _begin_epoch_of_loop(self) -> None:
        """Begin the epoch of a new iterator of the loader."""
        self.end_batch()
        clock, sampler = self.clock, self.sampler
        assert isinstance(clock, EpochClock)
        warning = ''
        if sampler.is_open and not self._goes_on:
            left = len(sampler.queue) // sampler.world_size
            if self._is_over or not sampler.awaits_batch:
                if sampler.awaits_batch or 0 < self._batch_size <= left:
                    warning = f'epoch {clock.epoch + 1} ended'
                sampler.end_epoch()
                clock.epoch += 1
            # An iterator of which no batch was trained on is none.
            elif not sampler.queue.num_waiting:
                warning = f'epoch {clock.epoch + 1} begins again'
        if warning:
            print_log(
                f'InfoBatch: {warning} with {left} images of which no loss '
                'was seen. If the loop was not left early: hand the losses of '
                'each whole batch to `Session.mean`. With `drop_last`, an '
                'epoch needs as many images as a batch.',
                'current',
                level=logging.WARNING)
        self._goes_on = False
        if clock.epoch >= clock.length:
            raise Refusal(f'The {clock.length} `epochs` of the Session are '
                          'over: give it more, or end the loop before.')
        self.begin_epoch(clock.epoch)

    @property
    def _is_over(self) -> bool:
        """bool: Whether nothing can come any more of the open epoch."""
        # With `drop_last` the loader leaves what doesn't fill a batch.
        left = len(self.sampler.queue) // self.sampler.world_size
        return not self._goes_on and (left == 0 or self._drop_last
                                      and left < self._batch_size)

    @property
    def epoch(self) -> int:
        """int: Epochs of the training that are over."""
        if not isinstance(self.clock, EpochClock):
            raise Refusal('A Session with `stream=True` counts no epochs: take'
                          ' one iterator of the loader, and `progress` for '
                          'schedules.')
        return self.clock.epoch + (self.sampler.is_open and self._is_over)

    @property
    def progress(self) -> float:
        """float: How much of the training is over, in [0, 1], for schedules.
        """
        position, current = self.sampler.position, self.planner.current
        if not isinstance(self.clock, EpochClock):
            return position / self.clock.length
        covered = 0. if current is None else current.covered_until(position)
        return covered / self.clock.length

    @property
    def worth(self) -> VarianceRatio:
        """VarianceRatio: Mean V of the plans so far, see :mod:`mmib.worth`:
        below 1 the choice of images can save steps. As of the last plan that
        prunes, or of the last :meth:`state_dict`. NaN before."""
        return self.planner.mean_ratio.add(self.tables.sums).mean()

    def state_dict(self, merge: bool = True) -> Dict[str, Any]:
        state = super().state_dict(merge)
        return dict(
            state,
            is_over=self.sampler.is_open and self._is_over,
            batch_size=self._batch_size * self.sampler.world_size)

    def _load(self, state_dict: Dict[str, Any],
              iteration: Optional[int]) -> List[str]:
        changes = super()._load(state_dict, iteration)
        # With other ranks the batch of each is another one.
        self._batch_size = state_dict['batch_size'] // self.sampler.world_size
        clock = self.clock
        if isinstance(clock, EpochClock):
            if state_dict['is_over']:
                self.sampler.end_epoch()
                clock.epoch += 1
            self._goes_on = self.sampler.is_open
        else:
            self._batch_size = 0
        return changes


def _clock_of(sampler: InfoBatchSampler, policy: Policy, epochs: Optional[int],
              delta: float, start: float) -> Clock:
    """The clock of a loop of one's own, which counts slots."""
    if not isinstance(epochs, int) or epochs < 2:
        raise Refusal('`epochs` of a Session must be 2 or more, as nothing can'
                      f' be pruned in the first pass, but got {epochs!r}.')
    if not 0 <= start < 1 or not 0 <= delta <= 1 or 0 < delta <= start:
        raise Refusal('`delta` of a Session must be in [0, 1], and `start` in '
                      '[0, 1) and less than `delta`, but got '
                      f'`delta={delta}` and `start={start}`.')
    if sampler.by_epoch:
        size = sampler.num_indices
        return EpochClock(size, 1, size, epochs, delta, start)
    ratio = policy.ratio if isinstance(policy,
                                       ToBudget) else policy.default_ratio
    size = sampler.num_images
    length = round(ratio * epochs * size)
    if policy.prunes and length < 2 * size:
        raise Refusal(
            f'{ratio:g} of {epochs} `epochs` are {length / size:.2f} passes '
            'over the data, and a Session needs two, as nothing can be pruned '
            f'in the first one: give it at least {math.ceil(2 / ratio)} '
            '`epochs`.')
    length -= length % sampler.world_size
    clock = IterationClock(
        size, 1, length, delta, start, first_pass=sampler.num_indices)
    clock.end = length
    return clock
