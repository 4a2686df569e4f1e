# Copyright (c) mmib contributors. All rights reserved.
"""A run: the stream of slots, the plans, the tables of images, and the state
that checkpoints keep."""
import copy
import zlib
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from . import planner
from .errors import Refusal, damaged
from .explain import Explanation, explain
from .ledger import Ledger
from .passes import FullPasses
from .plan_record import PlanRecord
from .planner import Memory
from .plans import OpenPlans
from .pruning import EpochPlan, Policy, Tier
from .schedule import PlanStart, Schedule, StepSize
from .states import (VERSION, mismatch, to_arrays, to_current, to_tensors,
                     what_changed)
from .visits import Merged, Tables, VisitLog
from .worth import MeanRatio, VarianceRatio

_LARGEST = np.iinfo(np.int32).max
# What follows if the norms of gradients can't be seen, from the beginning or
# from now on.
_BY_LOSSES = ('V, what the choice of images is worth, is estimated from the '
              'losses')
_NO_MORE = 'V, what the choice of images is worth, is estimated no more'


class Run:
    """One training with InfoBatch, from its first to its last step.

    A run holds the parts and passes data between them. The sampler or loader
    calls :meth:`next_plan` when too few slots are left. Each step adds its
    visits to :attr:`log`. When a plan needs the scores, :meth:`merge` moves
    the visits from the log to :attr:`tables`.

    :class:`~mmib.openmmlab.InfoBatchHook` and :class:`~mmib.session.Session`
    each have a run.

    Args:
        images (np.ndarray): Number of the image of each dataset index, from 0,
            int64. An image that the dataset repeats has several indices.
        policy (Policy): Draws the plans.
        schedule (Schedule): How long the run is.
        warn (Callable): Shows a sentence to the user.
        shuffle (bool): Whether to shuffle. If not, plans in random order are
            sorted into the order of the dataset. Defaults to True.
        seed (int, optional): Random seed. None until :meth:`set_seed` is
            called. Defaults to None.
        ema (float): Share of the old score in the new one at each visit except
            the first, in [0, 1). Defaults to 0.
        normalize (bool): Whether the weights of a plan are divided by their
            mean. Defaults to False.
        score (str): What the score of a visit is: ``'loss'``, or
            ``'gradient'``, the norm of the gradient. Defaults to ``'loss'``.
        lockstep (bool): Whether every rank trains on each of its batches, as
            in MMEngine's loops. If not, a rank may skip batches, so the ranks
            exchange their positions and the slots that they trained on.
            Defaults to False.
        observers (Sequence[Callable]): Each is called as ``observe(record,
            plan)`` with every plan, before the plan is sorted and dealt.
            Defaults to none.
    """

    def __init__(
            self,
            images: np.ndarray,
            policy: Policy,
            schedule: Schedule,
            warn: Callable[[str], None],
            shuffle: bool = True,
            seed: Optional[int] = None,
            ema: float = 0.,
            normalize: bool = False,
            score: str = 'loss',
            lockstep: bool = False,
            observers: Sequence[Callable] = (),
    ) -> None:
        self.policy, self.schedule = _own(policy), schedule
        self.normalize = normalize
        self.ledger = Ledger()
        """Ledger: The stream of slots, and the position in it."""
        self.log = VisitLog()
        """VisitLog: The visits since the last merge."""
        self.tables = Tables(images, ema, score)
        """Tables: The record of each image."""
        self.memory = Memory()
        """Memory: What is kept from the newest plan for the next."""
        self.iteration = 0
        """int: Iterations that have begun; in a Session, the position."""
        self.epoch = -1
        """int: The epoch of the newest plan, from 0. -1 before the first."""
        self.lacks_norms: Optional[bool] = None
        """bool, optional: Whether losses stand in for norms, because norms
        can't be seen. None until this is known."""
        self.rank, self.world_size = 0, 1
        self.warn, self._shuffle = warn, shuffle
        self._lockstep = lockstep
        self._observers = observers
        self.plans = OpenPlans(schedule)
        """OpenPlans: The plan in training, and those drawn after it."""
        self.checksum = 0
        """int: CRC-32 of all plans that pruned."""
        # The end of each step since the last merge, with the iterations until
        # then; and the first slot of the newest step.
        self._steps: List[tuple] = []
        self._step_begin = 0
        self._has_warned = False  # Whether a policy's note was shown.
        self._has_said_other_term = False
        self.seed: Optional[int]
        self.set_seed(0 if seed is None else seed)
        self.seed = seed

    # Ranks and randomness ----------------------------------------------------

    def set_seed(self, seed: int) -> None:
        """Seed the random numbers of full passes and plans."""
        self.seed = seed
        self._passes = FullPasses(len(self.tables.images), self._shuffle, seed)
        self._rng = np.random.default_rng(seed)

    def set_rank(self, rank: int, world_size: int) -> None:
        """Set the rank and the number of ranks."""
        self.rank, self.world_size = rank, world_size

    # Plans -------------------------------------------------------------------

    def next_plan(self,
                  epoch: int = 0,
                  step: Optional[StepSize] = None) -> bool:
        """Draw the next plan, and append its slots to the ledger. This is the
        only event that draws a plan.

        Args:
            epoch (int): The epoch of the plan, from 0, if the run counts
                epochs. Defaults to 0.
            step (StepSize, optional): The steps of the epoch. None if the run
                counts iterations. Defaults to None.

        Returns:
            bool: Whether there is another plan. If not, the stream has ended.
        """
        schedule, first_slot = self.schedule, self.ledger.end
        if schedule.end is not None and first_slot >= schedule.end:
            return False
        start = PlanStart(first_slot, epoch=epoch)
        reads = planner.reads_scores(schedule, self.memory, start)
        # Before the first plan there is nothing to merge. In annealing, merges
        # take the visits that were in flight when annealing began, and free
        # old slots. A Session logs its visits in annealing too.
        if self.plans.newest and (reads or schedule.is_annealing(start)):
            self.merge(decides_norms=reads)
        # A merge may move the position and, with it, the count of iterations.
        start = start._replace(iteration=self.iteration)
        plan, record, self.memory = planner.draw(self.policy, schedule,
                                                 self.tables, self.memory,
                                                 start, reads,
                                                 self.plans.newest, self._rng,
                                                 step, self.normalize)
        if reads and schedule.may_prune(start):
            self.tables.forget_sums()
        limit, mean_weight = schedule.most_slots(start), 1.
        if plan is None:
            plan = EpochPlan.full(self._full_pass(epoch, limit))
            self.memory = self.memory._replace(kept=None)
        else:
            is_kept = self._mask(plan.indices)
            self.tables.count_pruned(~is_kept)
            self.memory = self.memory._replace(kept=np.packbits(is_kept))
            mean_weight, plan = plan.mean_weight, plan.cut(limit)
            for column in (plan.indices, plan.weights):
                self.checksum = zlib.crc32(
                    np.ascontiguousarray(column).data, self.checksum)
        self._show_note(record)
        for observe in self._observers:
            observe(record, plan)
        if plan.is_shuffled and not self._shuffle:
            plan = plan.sorted()
        self.ledger.deal(plan, mean_weight)
        self.plans.add(record)
        self.epoch = epoch
        return True

    def _show_note(self, record: PlanRecord) -> None:
        """Warn if two plans in a row have a note. The first plan that prunes
        is drawn from few scores, and later plans correct it."""
        before = self.plans.newest
        if before and before.note and record.note and not self._has_warned:
            self._has_warned = True
            self.warn(record.note)

    def _mask(self, indices: np.ndarray) -> np.ndarray:
        """Return whether each index of a pass is among ``indices``, bool."""
        mask = np.zeros(self.schedule.pass_length, bool)
        mask[indices] = True
        return mask

    def _full_pass(self, epoch: int, limit: Optional[int]) -> np.ndarray:
        if self.schedule.by_epoch:
            return self._passes.of_epoch(epoch)
        return self._passes.next(self.schedule.pass_length, limit)

    def prepare_rest(self, step: StepSize) -> None:
        """Prepare the rest of the open plan for the steps of this run. Slots
        are left out if the last step would be too small, as after a resume in
        steps of another size, and repeated until all ranks have equally many.
        """
        newest, begin = self.plans.newest, self.ledger.position
        prunes = False
        if newest is not None:
            pass_length = self.schedule.pass_length
            # Without the slots that were repeated for other ranks.
            own = max(newest.first_slot + newest.kept - begin, 0)
            # A user's policy may prune and have as many slots as a full pass.
            prunes = self.memory.kept is not None or newest.kept != pass_length
            tail = step.tail(own, pass_length) if prunes else 0
            padded = own + -own % self.world_size
            if tail or self.ledger.end != begin + padded:
                self.ledger.end_at(begin + own)
            if tail:
                self._cut_rest(tail, newest)
        left = self.ledger.end - begin
        missing = -left % self.world_size if left else 0
        # As the baseline repeats the first indices of a pass. A plan may be in
        # the order of the dataset, so another plan repeats random slots.
        again = np.resize(np.arange(left), missing)
        if prunes and missing:
            # Not of the plans' generator, which ranks of another number share.
            assert self.seed is not None
            rng = np.random.default_rng([self.seed, begin])
            again = rng.choice(left, missing, replace=missing > left)
        self.ledger.repeat(again)
        left += missing
        if newest and begin == newest.first_slot and (step.drop_last
                                                      and left < step.slots):
            self.warn(
                f'nothing is trained on in epoch {self.epoch + 1}, because '
                f'its plan has {left} images, a step has {step.slots}, and '
                '`drop_last` leaves them out: lower `batch_size`, remove '
                '`drop_last`, or let the policy keep more images.')

    def _cut_rest(self, tail: int, record: PlanRecord) -> None:
        """Leave out ``tail`` random slots of the rest of a plan."""
        indices = self.ledger.rest().indices
        size, kept = len(indices), len(indices) - tail
        rows = np.sort(self._rng.permutation(size)[:kept])
        # As in `EpochPlan.without_tail`. With `normalize`, the mean stays 1.
        scale = size / kept if record.mean_weight != 1 else 1.
        self.ledger.thin_rest(rows, scale)
        # The counts of the tiers stay those of the plan as it was drawn.
        self.plans.replace_newest(
            record._replace(
                kept=record.kept - tail,
                mean_weight=round(record.mean_weight * scale, 6),
                tiers=tuple(tier.scaled(scale) for tier in record.tiers)))
        # A user's policy may draw an image twice.
        is_cut = self._mask(indices) & ~self._mask(indices[rows])
        self.tables.count_pruned(is_cut)
        if self.memory.kept is not None:
            self.memory = self.memory._replace(kept=self.memory.kept
                                               & ~np.packbits(is_cut))

    def give_up_rest(self) -> None:
        """Give up the rest of the open plan."""
        if self._lockstep:
            self.ledger.go_to(self.ledger.end)
        else:
            # The rest may span several plans, and `advance` closes those that
            # are over.
            self.advance(self.ledger.end)

    # Progress ----------------------------------------------------------------

    def advance(self, position: int) -> List[PlanRecord]:
        """Move the position to the end of the newest batch that was trained
        on. Return the plans that have begun since the position before."""
        before = self.ledger.position
        if position <= before:
            return []
        self.ledger.go_to(position)
        self._step_begin = before
        if self._lockstep:
            self.iteration += -(-(position - before) //
                                self.schedule.slots_per_iter)
            self._steps.append((position, self.iteration))
        else:
            self.iteration = position
        return self.plans.advance(before, position)

    def saved_iters(self) -> float:
        """Return the iterations saved so far, compared with the baseline."""
        return self.plans.saved_iters(self.ledger.position, self.iteration)

    @property
    def has_ended(self) -> bool:
        """bool: Whether the stream has fewer slots left than there are ranks.
        """
        end = self.schedule.end
        return end is not None and end - self.ledger.position < self.world_size

    @property
    def worth(self) -> VarianceRatio:
        """VarianceRatio: Mean V of the run until the last merge, see
        :mod:`mmib.worth`. NaN before V is known."""
        return self.memory.mean_ratio.add(self.tables.sums).mean()

    def expected_share(self) -> float:
        """Return the kept share to expect from the next plans that prune."""
        newest, pass_length = self.plans.newest, self.schedule.pass_length
        if newest is not None and newest.kept < pass_length:
            return newest.kept / pass_length
        share = self.policy.expected_share(self.schedule.first_progress())
        return 1. if share is None else share

    def explain(self, index: int) -> Optional[Explanation]:
        """Explain why the newest plan keeps or leaves out the image of an
        index, or return None before the first plan. Call this method on all
        ranks."""
        self.merge()
        newest = self.plans.newest
        if newest is None:
            return None
        size = self.schedule.pass_length
        if not 0 <= index < size:
            raise Refusal(f'There is no image {index}: the dataset has the '
                          f'indices 0 to {size - 1}.')
        return explain(index, int(self.tables.images[index]), newest, size,
                       self.memory.scores, self.memory.kept, vars(self.tables))

    # Visits ------------------------------------------------------------------

    def count_visits(self, begin: int) -> None:
        """Count all slots from ``begin`` to the position as visits. In
        lockstep, every rank knows that all of these slots were trained on."""
        numbers = np.arange(begin, self.ledger.position)
        self.tables.count_visits(self.ledger.at(numbers).indices)

    def merge(self, decides_norms: bool = False) -> None:
        """Add the visits of all ranks to the tables, and forget old slots.
        Call this method on all ranks.

        Args:
            decides_norms (bool): Whether to conclude that norms can't be seen
                if none is known by now. Defaults to False.
        """
        if not self._lockstep or len(self.log):
            merged = self.log.merge(self.ledger.first, self.ledger.position,
                                    self.checksum, self.rank, self.world_size)
            self.advance(merged.position)
            for numbers in (merged.numbers, merged.unscored):
                self.tables.count_visits(self.ledger.at(numbers).indices)
            # In lockstep, a batch is logged after its backward pass.
            self._look_for_norms(merged, decides_norms or self._lockstep)
            before, norms = self.tables.non_finite, merged.norms
            if self.lacks_norms:
                # A negative loss is no norm.
                is_norm = (merged.scores >= 0).all()
                norms = merged.scores if is_norm else np.full_like(
                    norms, np.nan)
            self.tables.add(
                self.ledger.at(merged.numbers),
                self._iterations_of(merged.numbers), merged.scores, norms)
            if not self.lacks_norms:
                self.tables.add_late(
                    self.ledger.at(merged.late_numbers), merged.late_norms)
            total = self.tables.non_finite
            if total > before:
                # The text differs each time, because MMEngine drops a warning
                # that repeats.
                self.warn(f'{total - before} scores of images were NaN or '
                          f'infinite, {total} so far; these images keep the '
                          'score they had before.')
        self.ledger.forget(self._oldest)
        del self._steps[:-1]

    def _look_for_norms(self, merged: Merged, decides: bool) -> None:
        """Find out whether losses must stand in for norms, and warn if so.
        With ``decides``, norms that are unknown by now can't be seen."""
        if not np.isnan(merged.norms).all():
            self.lacks_norms = False
        elif decides and self.lacks_norms is None and len(merged.numbers):
            self.lacks_norms = True
            if not self.log.has_other_term:
                hint = '' if self._lockstep else (
                    ' For a better estimate, give `weigh` the tensor that the '
                    'losses were computed from, not a part or a copy of it.')
                self.warn('the gradient at the predictions cannot be seen, so '
                          f'{_BY_LOSSES}.{hint}')
        if self.log.has_other_term and not self._has_said_other_term:
            self._has_said_other_term = True
            self.warn(
                'another term than the losses uses the predictions, so their '
                'gradient is not the gradient of the losses, and '
                f'{_BY_LOSSES if self.lacks_norms else _NO_MORE}. Give the '
                'losses and `weigh` a view of the predictions, and the other '
                'term the predictions: `own = logits.view_as(logits)`.')

    @property
    def _oldest(self) -> int:
        """int: Slots before this one can be forgotten. In lockstep, this is
        the first slot of the newest batch. In a Session, this is the first
        slot of the plan in training, because a loop may weigh older batches,
        and ranks may have skipped different batches."""
        current = self.plans.current
        if self._lockstep or current is None:
            return self._step_begin
        return current.first_slot

    def _iterations_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the iteration of the visit of each slot, from 1, int32."""
        if not self._lockstep:
            # A step has no number that all ranks share, because ranks may have
            # skipped different batches.
            return np.minimum(numbers + 1, _LARGEST).astype(np.int32)
        ends, iterations = np.array(self._steps).T
        # Both increase, so search for the few ends among the many numbers.
        bounds = np.searchsorted(numbers, ends)
        return np.repeat(
            iterations.astype(np.int32), np.diff(bounds, prepend=0))

    # State -------------------------------------------------------------------

    def state_dict(self, merge: bool = True) -> Dict[str, Any]:
        """Return everything that determines the rest of the run, as tensors
        and plain Python values. Call this method on all ranks.

        Args:
            merge (bool): Whether to merge first. If not, all ranks must have
                merged before, and a single rank may call the method. Defaults
                to True.
        """
        if merge:
            self.merge()
        memory = self.memory._asdict()
        return dict(
            version=VERSION,
            seed=self.seed,
            ledger=self.ledger.state_dict(),
            passes=self._passes.state_dict(),
            rng=self._rng.bit_generator.state,
            iteration=self.iteration,
            epoch=self.epoch,
            schedule=self.schedule.state_dict(),
            plans=[plan.to_dict() for plan in self.plans],
            plans_checksum=self.checksum,
            saved_iters=self.saved_iters(),
            memory=dict(
                memory,
                scores=to_tensors(self.memory.scores),
                kept=to_tensors(self.memory.kept),
                mean_ratio=tuple(self.memory.mean_ratio)),
            policy=repr(self.policy),
            policy_type=_type_name(self.policy),
            policy_state=to_tensors(self.policy.state_dict()),
            normalize=self.normalize,
            lacks_norms=self.lacks_norms,
            tables=self.tables.state_dict())

    def load_state_dict(self, state_dict: Dict[str, Any]) -> List[str]:
        """Resume where :meth:`state_dict` was called, on any number of ranks.
        The open plans go on, and the policy of this run draws the next plans.
        What this run has done before is discarded.

        Args:
            state_dict (dict): The state.

        Returns:
            list[str]: What has changed since the state was written.

        Raises:
            Refusal: If the state is damaged, of an unknown version, or of a
                run with another number of images, unit or kind of score.
        """
        state, own = to_current(state_dict), self.state_dict(merge=False)
        reason = mismatch(state, own)
        if reason is not None:
            raise Refusal(f'The run can\'t go on: {reason}.')
        is_same_policy = state['policy'] == repr(self.policy)
        policy = self.policy
        if state['policy_type'] == _type_name(policy):
            policy = _resumed(policy, to_arrays(state['policy_state']))
        # Nothing was written until here, so a refused state changes nothing.
        self.policy = policy
        # With a new ledger, slots that were dealt before are refused.
        self.ledger, self.log = Ledger(), VisitLog()
        self.ledger.load_state_dict(state['ledger'])
        self.set_seed(state['seed'])
        self._passes.load_state_dict(state['passes'])
        self._rng.bit_generator.state = state['rng']
        self._steps.clear()
        self._step_begin = self.ledger.position
        self.epoch = state['epoch']
        self.schedule.load_state_dict(state['schedule'])
        self.plans = OpenPlans(self.schedule,
                               map(PlanRecord.from_dict, state['plans']))
        self.checksum = state['plans_checksum']
        memory = state['memory']
        self.memory = Memory(**dict(
            memory,
            scores=to_arrays(memory['scores']),
            kept=to_arrays(memory['kept']),
            mean_ratio=MeanRatio(*memory['mean_ratio'])))
        self.lacks_norms = state['lacks_norms']
        self.tables.load_state_dict(state['tables'])
        if self.schedule.end is not None:
            # This run may be shorter than the one before.
            self.ledger.end_at(self.schedule.end)
        if not is_same_policy:
            # The tiers of the old policy mean nothing to the new policy.
            self.tables.forget_sums()
            self.ledger.forget_tiers()
        self.count_from(state['iteration'], state['saved_iters'])
        return what_changed(state, own)

    def count_from(self,
                   iteration: int,
                   saved_iters: Optional[float] = None) -> None:
        """Set how many iterations the run has made. A Runner may have another
        count than the checkpoint, and iterations have another size if the
        batch size has changed.

        Args:
            iteration (int): Iterations until now.
            saved_iters (float, optional): Iterations saved until now. If None,
                this number stays. Defaults to None.
        """
        if saved_iters is None:
            saved_iters = self.saved_iters()
        self.iteration = iteration
        self.schedule.count_from(iteration, self.ledger.position)
        self.plans.recount(self.ledger.position, iteration, saved_iters)

    def start_afresh(self,
                     position: int,
                     iteration: int,
                     epoch: int = -1,
                     saved_iters: float = 0.) -> None:
        """Go on from the middle of a training without scores. Call this method
        on a new run, in which all scores are 1.

        Args:
            position (int): Slots of the training so far.
            iteration (int): Iterations so far.
            epoch (int): The last epoch that is over, from 0. -1 if none is
                over. Defaults to -1.
            saved_iters (float): Iterations saved so far. Defaults to 0.
        """
        assert self.seed is not None
        self.set_seed(self.seed)
        self.ledger, self.epoch = Ledger(position), epoch
        self.iteration, self._step_begin = iteration, position
        # By epochs, the position counts full passes in the place of the epochs
        # before, which may have been pruned.
        whole = iteration + saved_iters
        share = saved_iters / whole if self.schedule.by_epoch and whole else 0.
        self.schedule.start_afresh(position, share * position)
        self.schedule.count_from(iteration, position)
        size = self.schedule.pass_length
        if not self.schedule.by_epoch:
            self._passes.skip(position, size)
        # The stream goes on with the rest of a full pass.
        first_slot = position - position % size
        self.plans = OpenPlans(self.schedule, [
            PlanRecord(
                kept=size,
                tiers=(Tier(size, size), ),
                covered=float(first_slot // size),
                epoch=first_slot // size,
                first_slot=first_slot,
                iter=iteration,
                saved_iters=saved_iters,
                logged=False)
        ])


def _own(policy: Policy) -> Policy:
    """Return a copy of a policy, so that what the policy learns in one run
    stays in this run."""
    try:
        return copy.deepcopy(policy)
    except Exception as error:
        raise Refusal(
            f'{type(policy).__name__} cannot be copied for this run ({error}):'
            ' let the policy open files, locks and generators when it draws a '
            'plan, and not before.') from error


def _resumed(policy: Policy, state: Dict[str, Any]) -> Policy:
    """Return a copy of a policy that goes on from a state."""
    policy = _own(policy)
    try:
        policy.load_state_dict(state)
    # A user's policy may raise anything.
    except Exception as error:
        raise damaged('policy_state',
                      f'is not a state of {policy!r} ({error!r})') from error
    return policy


def _type_name(policy: Policy) -> str:
    return f'{type(policy).__module__}.{type(policy).__qualname__}'
