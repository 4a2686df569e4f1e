# Copyright (c) mmib contributors. All rights reserved.
"""A training with InfoBatch, without a Runner."""
import logging
from typing import Any, Callable, Dict, List, Optional, Sized, Union

import numpy as np
import torch
from mmengine.logging import print_log
from torch import Tensor

from .batch import BatchContext, to_device
from .clock import Clock, EpochClock, IterationClock
from .data.datasets import image_numbers
from .errors import Refusal, damaged
from .plan_record import PlanRecord
from .planner import Planner
from .pruning import EpochPlan, Neyman, Policy, Slots, ToBudget, as_policy
from .sampler import InfoBatchSampler
from .visits import Tables, VisitLog
from .worth import VarianceRatio

VERSION = 2
"""int: Version of the states that are written. No other one is read."""


class Session:
    """What a training with InfoBatch is: sampler, clock, log of visits and
    tables, and the plans drawn from them.

    In a loop of your own, put :attr:`sampler` into the data loader, and
    differentiate what :meth:`mean` makes of the losses of a batch:

        >>> session = mmib.Session(dataset, Neyman(ratio=0.6), epochs=90)
        >>> loader = DataLoader(dataset, 64, sampler=session.sampler)
        >>> for epoch in range(session.epoch, 90):
        >>>     for images, labels in loader:
        >>>         logits = model(images)
        >>>         losses = F.cross_entropy(logits, labels, reduction='none')
        >>>         session.mean(losses, logits).backward()

    Each iterator of the loader is an epoch, shorter by what is pruned. The
    training covers as many passes as ``epochs`` says. :class:`InfoBatchHook`
    has a session too, with sampler and clock of its Runner.

    Args:
        dataset (Sized): The data set.
        policy (Policy or Callable, optional): Draws the plans. If None,
            ``Neyman(ratio=0.6)``. Defaults to None.
        epochs (int, optional): Passes over the data. Defaults to None, where
            a clock is given.
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
            training, and ends by itself: for loops that count iterations.
            Defaults to False.
        shuffle (bool): Whether to shuffle. Defaults to True.
        seed (int, optional): Random seed. If None, all ranks agree on a random
            one. Defaults to None.
        drop_last (bool): The argument of the data loader. Defaults to False.
        sampler (InfoBatchSampler, optional): The sampler of a Runner. Defaults
            to None.
        clock (Clock, optional): The clock of a Runner. Defaults to None.
        score (str): What the score of a visit is: ``'loss'``, or
            ``'gradient'``, the norm of the gradient. Defaults to ``'loss'``.

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
                 drop_last: bool = False,
                 sampler: Optional[InfoBatchSampler] = None,
                 clock: Optional[Clock] = None,
                 score: str = 'loss',
                 batch: Optional[BatchContext] = None) -> None:
        policy = as_policy(policy or Neyman())
        self.sampler = sampler or InfoBatchSampler(dataset, shuffle, seed)
        """InfoBatchSampler: For the data loader."""
        self.clock = clock or _clock_of(self.sampler, policy, epochs, delta,
                                        start, stream)
        self.sampler.by_epoch = isinstance(self.clock, EpochClock)
        self.batch = batch or BatchContext(not policy.prunes)
        """BatchContext: Weights and scores of the batch in training."""
        self.log = VisitLog()
        self.tables = Tables(image_numbers(dataset), ema, score)
        """Tables: What is known of each image."""
        self.planner = Planner(policy, self.clock, self.tables, self.merge,
                               self.sampler.full_pass, normalize)
        self.iteration = 0
        """int: Iterations that have begun; in a loop of one's own, the images
        of them."""
        self.lacks_norms: Optional[bool] = None
        """bool, optional: Whether losses stand in for norms, which can't be
        seen. None before the first batch."""
        self._slots: Optional[Slots] = None
        # Whether this is a loop of one's own, without a Runner.
        self._is_own = clock is None
        self._batch_size = 0
        self._drop_last = drop_last
        self._goes_on = False
        self._end = self.clock.length if self._is_own and stream else None
        if self._is_own:
            self.sampler.begins = self._begin_own_epoch
            self.sampler.connect(self.draw)

    def draw(self, start: int,
             rng: np.random.Generator) -> Optional[EpochPlan]:
        """Draw the plan that begins with a slot, or None where the stream
        ends. The sampler calls this, see :meth:`Planner.draw`."""
        self.end_batch()
        if self._end is not None and start >= self._end:
            return None
        return self.planner.draw(start, self.iteration, rng, self._end)

    def begin_epoch(self, epoch: int) -> None:
        """Draw the plan of an epoch, where epochs count, or go on with the
        plan of a checkpoint within the epoch."""
        clock, sampler = self.clock, self.sampler
        assert isinstance(clock, EpochClock)
        if sampler.is_open and clock.epoch != epoch:
            # A checkpoint that a hook has saved at the edge, before it ended.
            sampler.end_epoch()
        sampler.set_epoch(epoch)
        if not sampler.is_open:
            clock.epoch = epoch
        sampler.begin_epoch()

    def begin_batch(self, batch_size: int,
                    device: torch.device) -> List[PlanRecord]:
        """Give the losses the weights of the batch that has arrived.

        Args:
            batch_size (int): Images of this rank in the batch.
            device (torch.device): Where the training runs.

        Returns:
            list[PlanRecord]: The plans that begin with this batch.
        """
        begin, before = self.sampler.position, self.planner.current
        self._slots = self.sampler.take(batch_size)
        begun = self.planner.advance(self.sampler.position)
        of_batch = begun
        if before is not None and not (begun and begun[0].start == begin):
            of_batch = [before, *begun]
        # A loop of one's own has a clock of slots.
        self.iteration += len(self._slots) if self._is_own else 1
        self.tables.count_visits(self._slots.indices)
        if all(plan.annealing for plan in of_batch):
            self.batch.begin(None)
        else:
            self.batch.begin(to_device(self.own_slots.weights, device))
        return begun

    @property
    def own_slots(self) -> Slots:
        """Slots: The slots of this rank in the batch in training."""
        assert self._slots is not None
        return self._slots[self.sampler.rank::self.sampler.world_size]

    def end_batch(self,
                  delivered: Optional[np.ndarray] = None) -> Optional[Tensor]:
        """Note the scores of the batch, after its backward pass.

        Args:
            delivered (np.ndarray, optional): Whether the data set delivered
                the image of each slot and no other one, bool of shape (B,).
                None is all.

        Returns:
            Tensor, optional: Loss of the batch with all weights 1. None if
            nothing was to be noted, as in annealing, or no loss was called.
        """
        batch = self.batch
        if self._slots is None or batch.weights is None or (batch.scores
                                                            is None):
            return None
        scores, loss, norms = batch.scores, batch.unweighted_loss, batch.norms
        batch.begin(None)
        if self.lacks_norms is None:
            self.lacks_norms = norms is None
            if norms is None:
                _tell_of_norms(self.tables.score)
        if self.lacks_norms:
            norms = scores
        elif norms is None:
            # This batch alone has no norms, and doesn't count.
            norms = torch.full_like(scores, torch.nan)
        mask = None
        if delivered is not None and not delivered.all():
            mask = to_device(delivered, scores.device)
        self.log.record(self._slots, self.iteration, scores, norms, mask)
        self.tables.knows_scores = True
        return loss

    def merge(self) -> None:
        """Let all ranks know all visits so far, in one collective."""
        visits = self.log.merge(self.planner.checksum)
        if visits is not None:
            self.tables.add(visits)

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
        self.end_batch()
        size = len(losses)
        if losses.dim() != 1:
            raise Refusal(
                f'`losses` have the shape {tuple(losses.shape)}, and need one '
                "number for each sample: compute them with `reduction='none'`,"
                ' and take the mean over what belongs to a sample.')
        # The batch before may have been the short one of another epoch.
        if self.sampler.awaits_batch or not self._batch_size:
            self._batch_size = size
        due = self.sampler.batch_length(self._batch_size)
        if size != due:
            raise Refusal(
                f'`Session.mean` got {size} losses where {due} are due: call '
                'it once for each batch, with the losses of the whole batch, '
                'in the order in which the data loader delivers the batches. '
                'Only the last batch of an epoch may be smaller.')
        self.begin_batch(size, losses.device)
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

    def _begin_own_epoch(self) -> None:
        """Begin the epoch of a new iterator of the loader."""
        self.end_batch()
        clock, sampler = self.clock, self.sampler
        assert isinstance(clock, EpochClock)
        epoch = clock.epoch
        # An iterator of which no batch was trained on is none.
        if sampler.is_open and not (self._goes_on or sampler.awaits_batch):
            left = sampler.num_waiting // sampler.world_size
            if 0 < self._batch_size <= left:
                print_log(
                    f'InfoBatch: epoch {epoch + 1} ended with {left} images '
                    'of which no loss was seen. If the loop was not left '
                    'early: hand the losses of each whole batch to '
                    '`Session.mean`.',
                    'current',
                    level=logging.WARNING)
            sampler.end_epoch()
            epoch += 1
        self._goes_on = False
        if epoch >= clock.length:
            raise Refusal(f'The {clock.length} `epochs` of the Session are '
                          'over: give it more, or end the loop before.')
        self.begin_epoch(epoch)

    @property
    def epoch(self) -> int:
        """int: Epochs of a loop of one's own that are over."""
        assert isinstance(self.clock, EpochClock)
        # With `drop_last` the loader leaves what doesn't fill a batch.
        left = self.sampler.num_waiting // self.sampler.world_size
        is_over = self.sampler.is_open and (left == 0 or self._drop_last
                                            and left < self._batch_size)
        return self.clock.epoch + is_over

    @property
    def progress(self) -> float:
        """float: How much of the training is over, in [0, 1], for schedules.
        """
        position, current = self.sampler.position, self.planner.current
        if not isinstance(self.clock, EpochClock):
            return position / self.clock.length
        covered = 0. if current is None else current.covered_until(position)
        return covered / self.clock.length

    def state_dict(self, merge: bool = True) -> Dict[str, Any]:
        """Everything that the rest of the training follows from, as tensors
        and plain Python values. Call this on all ranks, as it merges what they
        have seen.

        Args:
            merge (bool): Whether to merge. If not, all ranks have merged
                before, and one alone may call this. Defaults to True.
        """
        if merge:
            self.end_batch()
            self.merge()
        return dict(
            version=VERSION,
            sampler=self.sampler.state_dict(),
            tables=self.tables.state_dict(),
            clock=self.clock.state_dict(),
            planner=self.planner.state_dict(),
            iteration=self.iteration,
            saved_iters=self.planner.saved_iters(self.sampler.position,
                                                 self.iteration),
            batch_size=self._batch_size,
            lacks_norms=self.lacks_norms)

    def load_state_dict(self,
                        state_dict: Dict[str, Any],
                        iteration: Optional[int] = None) -> List[str]:
        """Go on where :meth:`state_dict` was called, on any number of ranks.
        The open plan is kept; the policy of this session draws the next ones.

        Args:
            state_dict (dict): What :meth:`state_dict` returned.
            iteration (int, optional): Iterations of the training until then.
                If None, those of the state. Defaults to None.

        Returns:
            list[str]: What has changed since then, for the log.

        Raises:
            Refusal: If the state is damaged, of other data, or of another
                version of mmib.
        """
        reason = why_not(self, state_dict)
        if reason is not None:
            raise Refusal(f'The session can\'t go on: {reason}.')
        try:
            sampler, clock, planner = self.sampler, self.clock, self.planner
            sampler.load_state_dict(state_dict['sampler'])
            changes = self.tables.load_state_dict(state_dict['tables'])
            self.iteration = (
                state_dict['iteration'] if iteration is None else iteration)
            changes += clock.load_state_dict(state_dict['clock'])
            clock.go_on(self.iteration, sampler.position)
            of_planner = state_dict['planner']
            changes += planner.load_state_dict(of_planner, sampler.position,
                                               self.iteration,
                                               state_dict['saved_iters'])
            if not planner.is_same_policy(of_planner):
                # Its tiers say nothing to another policy.
                self.tables.forget_sums()
                sampler.forget_tiers()
            self.lacks_norms = state_dict['lacks_norms']
            # Whether an epoch is over depends on the batches until then.
            self._batch_size = state_dict['batch_size']
            if isinstance(clock, EpochClock):
                self._goes_on = sampler.is_open and self.epoch == clock.epoch
            if self._goes_on or self._end is not None:
                self._batch_size = 0
        except Refusal:
            raise
        except (LookupError, TypeError, ValueError, AttributeError,
                RuntimeError) as error:
            raise damaged('infobatch',
                          f'can\'t be read ({error!r})') from error
        return changes

    @property
    def worth(self) -> VarianceRatio:
        """VarianceRatio: Mean V of the plans so far, see :mod:`mmib.worth`:
        below 1 the choice of images can save steps. NaN before two plans that
        prune."""
        return self.planner.mean_ratio.mean()

    def start_afresh(self,
                     iteration: int,
                     epoch: int,
                     batch_size: int,
                     saved_iters: float = 0.) -> None:
        """Begin within a training that went on without scores until now.

        Args:
            iteration (int): Iterations of the training until then.
            epoch (int): Epochs until then, where epochs count.
            batch_size (int): Images of a rank in an iteration.
            saved_iters (float): Iterations saved until then. Defaults to 0.
        """
        clock = self.clock
        self.iteration = iteration
        if isinstance(clock, EpochClock):
            position = epoch * clock.pass_length
            clock.epoch = epoch
        else:
            position = iteration * batch_size * self.sampler.world_size
        clock.fresh_from = position
        self.sampler.restart(position)
        clock.go_on(iteration, position)
        self.planner.start_afresh(position, iteration, saved_iters)


def why_not(session: Session, state_dict: Dict[str, Any]) -> Optional[str]:
    """Why a state isn't one of the training of a session, or None.

    Raises:
        Refusal: If the state is damaged, or of another version of mmib.
    """
    version = state_dict.get('version')
    if version != VERSION:
        raise Refusal(
            f'`infobatch` in the checkpoint is of version {version}, and '
            f'this mmib reads version {VERSION}: go on with the mmib that '
            'wrote the checkpoint, or delete the key `infobatch` from the '
            'checkpoint, and scores start at 1 again.')
    try:
        unit = state_dict['clock']['unit']
        before = state_dict['sampler']['size'], len(
            state_dict['tables']['scores'])
        score = state_dict['tables']['score']
    except (LookupError, TypeError) as error:
        raise damaged('infobatch', f'can\'t be read ({error!r})') from error
    if unit != session.clock.unit:
        return f'the checkpoint is of a training that counts {unit}s'
    now = session.sampler.pass_length, len(session.tables.scores)
    if before != now:
        was, has = (f'{images} images' +
                    (f', {slots} with repeats' if slots > images else '')
                    for slots, images in (before, now))
        return (f'the checkpoint is of {was}, and '
                f'`train_dataloader.dataset` has {has}')
    if score != session.tables.score:
        return (f'the scores in the checkpoint are "{score}", and those of'
                f' this training are "{session.tables.score}"')
    return None


def _clock_of(sampler: InfoBatchSampler, policy: Policy, epochs: Optional[int],
              delta: float, start: float, stream: bool) -> Clock:
    """The clock of a loop of one's own, which counts slots."""
    if not isinstance(epochs, int) or epochs < 2:
        raise Refusal('`epochs` of a Session must be 2 or more, as nothing can'
                      f' be pruned in the first pass, but got {epochs!r}.')
    if not 0 <= start < 1 or not 0 <= delta <= 1 or 0 < delta <= start:
        raise Refusal('`delta` of a Session must be in [0, 1], and `start` in '
                      '[0, 1) and less than `delta`, but got '
                      f'`delta={delta}` and `start={start}`.')
    sampler.by_epoch = not stream
    size = sampler.pass_length
    if not stream:
        return EpochClock(size, 1, size, epochs, delta, start)
    ratio = policy.ratio if isinstance(policy,
                                       ToBudget) else policy.default_ratio
    length = round(ratio * epochs * size)
    length -= length % sampler.world_size
    return IterationClock(
        size, 1, length, delta, start, first_pass=sampler.num_indices)


def _tell_of_norms(score: str) -> None:
    """Warn that losses stand in for the norms of gradients."""
    if score == 'gradient':
        raise Refusal(
            'The score of an image is the norm of the gradient at the '
            "predictions in this model, which can't be seen here: train "
            'without InfoBatchHook.')
    print_log(
        "InfoBatch: the gradient at the predictions can't be seen in this "
        'model, so what the choice of images is worth is told by the losses.',
        'current',
        level=logging.WARNING)
