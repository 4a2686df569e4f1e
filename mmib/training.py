# Copyright (c) mmib contributors. All rights reserved.
"""A training with InfoBatch: its batches, its plans, its state.

The words: a policy draws a plan. Its slots are dealt or issued to the data
loader, and taken with the batch that has arrived. The scores and norms of a
batch are recorded in a log, which is merged over the ranks and read for the
next plan. To advance is to go on to the plan that a batch begins.
"""
import logging
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sized

import numpy as np
import torch
from mmengine.logging import print_log
from mmengine.utils import apply_to
from torch import Tensor

from .clock import Clock, EpochClock
from .errors import Refusal, damaged
from .openmmlab.batch import BatchContext, to_device
from .openmmlab.data.datasets import image_numbers
from .openmmlab.sampler import InfoBatchSampler
from .plan_record import PlanRecord
from .planner import Planner
from .pruning import EpochPlan, Policy, Slots
from .visits import Tables, VisitLog

VERSION = 2
"""int: Version of the states that are written. No other one is read."""


class Training:
    """What a training with InfoBatch is: sampler, clock, log of visits and
    tables, and the plans drawn from them.

    :class:`InfoBatchHook` has one in MMEngine's loops, and
    :class:`~mmib.session.Session` is one for any other loop.

    Args:
        dataset (Sized): The data set.
        policy (Policy): Draws the plans.
        sampler (InfoBatchSampler): Deals the slots of the plans.
        clock (Clock): How far the training is.
        ema (float): Share of the old score in the new one at each visit but
            the first, in [0, 1). Defaults to 0.
        normalize (bool): Whether the weights of a plan are divided by their
            mean. Defaults to False.
        score (str): What the score of a visit is: ``'loss'``, or
            ``'gradient'``, the norm of the gradient. Defaults to ``'loss'``.
        batch (BatchContext, optional): Weights and scores of the batch in
            training. If None, a new one. Defaults to None.
    """

    def __init__(self,
                 dataset: Sized,
                 policy: Policy,
                 sampler: InfoBatchSampler,
                 clock: Clock,
                 ema: float = 0.,
                 normalize: bool = False,
                 score: str = 'loss',
                 batch: Optional[BatchContext] = None) -> None:
        self.sampler, self.clock = sampler, clock
        self.batch = batch or BatchContext(only_scores=not policy.prunes)
        """BatchContext: Weights and scores of the batch in training."""
        self.log = VisitLog()
        self.tables = Tables(image_numbers(dataset), ema, score)
        """Tables: What is known of each image."""
        self.planner = Planner(policy, clock, self.tables, self.merge,
                               sampler.full_pass, normalize)
        """Planner: Draws the plans, and keeps their records."""
        self.iteration = 0
        """int: Iterations that have begun."""
        self.lacks_norms: Optional[bool] = None
        """bool, optional: Whether losses stand in for norms, which can't be
        seen. None before the first batch."""
        self._slots: Optional[Slots] = None  # Of the batch in training.
        self._has_warned = False  # Of a note of plans.

    def draw(self, start: int,
             rng: np.random.Generator) -> Optional[EpochPlan]:
        """Draw the plan that begins with a slot, or None where the stream
        ends. The sampler calls this, see :meth:`Planner.draw`."""
        self.end_batch()
        if self.clock.end is not None and start >= self.clock.end:
            return None
        return self.planner.draw(start, self.iteration, rng)

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

    def batch_length(self, batch_size: int) -> int:
        """Images of this rank in the next batch, of which the data loader asks
        for ``batch_size``. The last batch of an epoch may be shorter."""
        sampler = self.sampler
        return min(batch_size, sampler.queue.num_issued // sampler.world_size)

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
        for last, plan in zip([before, *begun], begun):
            # The first plan knows too few scores, which the next ones make up.
            if last and last.note and plan.note:
                self._warn_once(plan.note)
        of_batch = begun
        if before is not None and not (begun and begun[0].start == begin):
            of_batch = [before, *begun]
        # The last batch of an epoch may be smaller.
        self.iteration += -(-len(self._slots) // self.clock.slots_per_iter)
        self.tables.count_visits(self._slots.indices)
        if all(plan.annealing for plan in of_batch):
            self.batch.begin(None)
        else:
            self.batch.begin(to_device(self.own_slots.weights, device))
        return begun

    def _warn_once(self, note: str) -> None:
        if not self._has_warned:
            print_log(f'InfoBatch: {note}', 'current', level=logging.WARNING)
        self._has_warned = True

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
        scores = self.batch.scores
        if scores is None:
            return None
        loss, norms = self.batch.unweighted_loss, self.batch.norms
        self.batch.begin(None)
        if self.lacks_norms is None:
            self.lacks_norms = norms is None
            if norms is None:
                self._check_norms()
        if self.lacks_norms:
            norms = scores
        elif norms is None:
            # This batch alone has no norms: V leaves its visits out.
            norms = torch.full_like(scores, torch.nan)
        mask = None
        if delivered is not None and not delivered.all():
            mask = to_device(delivered, scores.device)
        assert self._slots is not None
        self.log.record(self._slots, self.iteration, scores, norms, mask)
        self.tables.knows_scores = True
        return loss

    def merge(self) -> None:
        """Let all ranks know all visits so far, in one collective."""
        for visits in self.log.merge(self.planner.checksum):
            self.tables.add(visits)

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
            lacks_norms=self.lacks_norms)

    def load_state_dict(self,
                        state_dict: Dict[str, Any],
                        iteration: Optional[int] = None) -> List[str]:
        """Go on where :meth:`state_dict` was called, on any number of ranks.
        The open plan is kept; the policy that is there now draws the next
        ones.

        Args:
            state_dict (dict): What :meth:`state_dict` returned.
            iteration (int, optional): Iterations of the training until then,
                which a Runner may count in another way. If None, those of the
                state. Defaults to None.

        Returns:
            list[str]: What has changed since then, for the log.

        Raises:
            Refusal: If the state is damaged, of other data, or of another
                version of mmib.
        """
        reason = self.why_not(state_dict)
        if reason is not None:
            raise Refusal(f'The training can\'t go on: {reason}.')
        with _told_as_damaged():
            # They may have been loaded to the training device.
            state_dict = apply_to(state_dict, torch.is_tensor,
                                  lambda tensor: tensor.cpu())
            return self._load(state_dict, iteration)

    def _load(self, state_dict: Dict[str, Any],
              iteration: Optional[int]) -> List[str]:
        sampler, planner = self.sampler, self.planner
        # What was trained on since then is given up.
        self.batch.begin(None)
        self.log = VisitLog()
        sampler.load_state_dict(state_dict['sampler'])
        changes = self.tables.load_state_dict(state_dict['tables'])
        self.iteration = (
            state_dict['iteration'] if iteration is None else iteration)
        changes += self.clock.load_state_dict(state_dict['clock'])
        self.clock.go_on(self.iteration, sampler.position)
        of_planner = state_dict['planner']
        changes += planner.load_state_dict(of_planner, sampler.position,
                                           self.iteration,
                                           state_dict['saved_iters'])
        if not planner.is_same_policy(of_planner):
            # Its tiers say nothing to another policy.
            self.tables.forget_sums()
            sampler.queue.forget_tiers()
        self.lacks_norms = state_dict['lacks_norms']
        return changes

    def why_not(self, state_dict: Dict[str, Any]) -> Optional[str]:
        """Why a state isn't one of this training, or None.

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
        with _told_as_damaged():
            unit = state_dict['clock']['unit']
            score = state_dict['tables']['score']
            before = state_dict['clock']['pass_length'], len(
                state_dict['tables']['scores'])
        if unit != self.clock.unit:
            return f'the checkpoint is of a training that counts {unit}s'
        now = self.clock.pass_length, len(self.tables.scores)
        if before != now:
            was, has = (f'{images} images' +
                        (f', {slots} with repeats' if slots > images else '')
                        for slots, images in (before, now))
            return (f'the checkpoint is of {was}, and '
                    f'`train_dataloader.dataset` has {has}')
        if score != self.tables.score:
            return (f'the scores in the checkpoint are "{score}", and those of'
                    f' this training are "{self.tables.score}"')
        return None

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

    def _check_norms(self) -> None:
        """Warn that losses stand in for the norms of gradients, or refuse
        where the norms are the scores."""
        if self.tables.score == 'gradient':
            raise Refusal(
                'The score of an image is the norm of the gradient at the '
                "predictions in this model, which can't be seen here: train "
                'without InfoBatchHook.')
        print_log(
            "InfoBatch: the gradient at the predictions can't be seen in this "
            'model, so what the choice of images is worth is told by the '
            'losses.',
            'current',
            level=logging.WARNING)


@contextmanager
def _told_as_damaged() -> Iterator[None]:
    """Refuse a state that can't be read, whatever the error is."""
    try:
        yield
    except Refusal:
        raise
    except (LookupError, TypeError, ValueError, AttributeError,
            RuntimeError) as error:
        raise damaged('infobatch', f'can\'t be read ({error!r})') from error
