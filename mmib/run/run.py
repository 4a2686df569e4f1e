# Copyright (c) mmib contributors. All rights reserved.
"""A run: the stream of slots, the table of images, and the state that
checkpoints keep."""
import copy
import zlib
from dataclasses import replace
from numbers import Integral
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

import numpy as np

from ..errors import Refusal, damaged
from ..plans import EpochPlan, Policy, try_policy
from ..ranks import World
from ..scores.log import Merged, VisitLog
from ..scores.table import ImageTable
from ..scores.worth import MeanRatio, VarianceRatio
from ..stream.baseline import BaselineOrder
from ..stream.schedule import Place, Schedule, StepSize
from ..stream.stream import Rest, Stream
from .draw import Reading, draw, next_reading, reads_scores, record_of
from .explain import Explanation, explain
from .record import PlanRecord
from .states import (VERSION, check_values, mismatch, to_arrays, to_current,
                     to_tensors, what_changed)

_LARGEST = np.iinfo(np.int32).max
# What follows if the norms of gradients can't be seen, from the beginning or
# from now on.
_BY_LOSSES = ('V, what the choice of images is worth, is estimated from the '
              'losses')
_NEGATIVE = (
    'V, what the choice of images is worth, is not known: the losses, '
    'which would stand in for norms, are negative')
_NO_MORE = 'V, what the choice of images is worth, is estimated no more'


class Run:
    """One training with InfoBatch, from its first to its last step.

    A run holds the parts and passes data between them. The sampler or loader
    calls :meth:`next_plan` when too few slots are left. Each step adds its
    visits to :attr:`log`. When a plan needs the scores, :meth:`merge` moves
    the visits from the log to :attr:`table`.

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
        seed (int, optional): Random seed. If None, :meth:`set_ranks` sets the
            seed. Defaults to None.
        ema (float): Share of the old score in the new one at each visit except
            the first, in [0, 1). Defaults to 0.
        normalize (bool, optional): Whether the weights of a plan are divided
            by their mean. None, which counts as False, lets a state decide
            that is loaded. Defaults to False.
        score (str): What the score of a visit is: ``'loss'``, or
            ``'gradient'``, the norm of the gradient. Defaults to ``'loss'``.
        visited_at (Callable, optional): ``visited_at(numbers)`` returns when
            each slot is visited, from 1, integers of shape (K,). If None, the
            slots until the visit. Defaults to None.
        every_rank_trains (bool): Whether every rank trains on each of its
            batches, as in MMEngine's loops. If not, a rank may skip batches,
            so the ranks exchange their positions and the slots that they
            trained on. Defaults to False.
        observers (Sequence[Callable]): Each is called as ``observe(record,
            plan)`` with every plan, before the plan is sorted and dealt.
            Defaults to none.
        with_histograms (bool): Whether the records of plans have histograms,
            which the report of an MMEngine run shows. Defaults to False.
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
        normalize: Optional[bool] = False,
        score: str = 'loss',
        visited_at: Optional[Callable[[np.ndarray], np.ndarray]] = None,
        every_rank_trains: bool = False,
        observers: Sequence[Callable] = (),
        with_histograms: bool = False,
    ) -> None:
        self.policy, self.schedule = _own(policy), schedule
        if policy.prunes and not schedule.prunes_nothing:
            try_policy(self.policy, schedule.pass_length,
                       schedule.first_progress())
        self.normalize = normalize
        self.stream = Stream(schedule.pass_length)
        """Stream: The slots of all plans, and the position."""
        self.log = VisitLog()
        """VisitLog: The visits since the last merge."""
        self.table = ImageTable(images, ema, score)
        """ImageTable: The record of each image."""
        self.reading = Reading()
        """Reading: The scores as they were last read."""
        self.lacks_norms: Optional[bool] = None
        """bool, optional: Whether losses stand in for norms, because norms
        can't be seen. None until this is known."""
        self.checksum = 0
        """int: CRC-32 of all plans that pruned."""
        self.warn, self._observers = warn, observers
        self._with_histograms = with_histograms
        self._visited_at = visited_at or _slots_until
        self._every_rank_trains = every_rank_trains
        self._said: Set[str] = set()  # Warnings that are shown once.
        self.world = World()
        """World: The ranks."""
        self.baseline = BaselineOrder(len(images), shuffle, seed or 0)
        """BaselineOrder: The order of full passes."""
        self.seed = seed
        self._rng = np.random.default_rng(seed or 0)

    def set_ranks(self, world: World, seed: Optional[int] = None) -> None:
        """Set the ranks and, unless None, the random seed. Ranks that have no
        seed agree on one when they are known."""
        self.world = world
        if seed is not None:
            self.seed = seed
            self.baseline = self.baseline.reseeded(seed)
            self._rng = np.random.default_rng(seed)

    # Plans -------------------------------------------------------------------

    def next_plan(self, step: Optional[StepSize] = None) -> bool:
        """Draw the next plan, and append its slots to the stream. This is the
        only event that draws a plan.

        Args:
            step (StepSize, optional): The steps of the epoch. None if the run
                isn't by epochs. Defaults to None.

        Returns:
            bool: Whether there is another plan. If not, the stream has ended.
        """
        schedule, stream = self.schedule, self.stream
        end = schedule.stream_end
        if end is not None and stream.end >= end:
            return False
        place, newest = stream.end_place, stream.newest
        self._read_scores(place)
        # After a start afresh, there is no plan to count from.
        before = (
            newest.record.epoch if newest else int(place.covered //
                                                   schedule.pass_length))
        plan = draw(self.policy, schedule, self.reading, place, step,
                    self._rng, bool(self.normalize))
        record = record_of(
            plan,
            schedule,
            self.reading,
            place,
            first_slot=stream.end,
            epoch=before + 1,
            is_first_of_annealing=newest is not None and not newest.annealing
            and schedule.is_annealing(schedule.clock(place)),
            with_histogram=self._with_histograms)
        if record.logged:
            self.reading = self.reading._replace(logged_at=place.spent)
        # The first plan that prunes is drawn from few scores, and later plans
        # correct it.
        if newest and newest.record.note and record.note:
            self._warn_once('note', record.note)
        self._deal(plan, record, place)
        return True

    def _read_scores(self, place: Place) -> None:
        """Read the scores, if they are read for a plan at this place."""
        schedule, now = self.schedule, self.schedule.clock(place)
        reads = reads_scores(schedule, self.reading, place)
        # In annealing merge too: the log may still have visits of the last
        # plan that prunes, and old slots can go.
        if self.stream.newest and (reads or schedule.is_annealing(now)):
            self.merge(decides_norms=reads)
        self.reading = next_reading(self.reading, self.table, schedule, place,
                                    reads)
        if self.reading.mean_squares is not None:
            self.table.forget_sums()

    def _deal(self, plan: EpochPlan, record: PlanRecord, place: Place) -> None:
        """Append the slots of a plan to the stream."""
        schedule, limit = self.schedule, self.schedule.room(place)
        keeps, mean_weight = None, 1.
        if plan.is_full:
            indices = (
                self.baseline.of_epoch(self.epoch) if schedule.by_epoch else
                self.baseline.next(schedule.pass_length, limit))
            plan = EpochPlan.full(indices)
        else:
            is_kept = np.zeros(schedule.pass_length, bool)
            is_kept[plan.indices] = True
            self.table.count_pruned(~is_kept)
            keeps, mean_weight = np.packbits(is_kept), plan.mean_weight
            plan = plan.cut(limit)
            for column in (plan.indices, plan.weights):
                self.checksum = zlib.crc32(
                    np.ascontiguousarray(column).data, self.checksum)
        for observe in self._observers:
            observe(record, plan)
        if plan.is_shuffled and not self.baseline.shuffle:
            plan = plan.sorted()
        self.log.begin_plan()
        self.stream.deal(plan, record.kept, mean_weight, record.annealing,
                         keeps, record)

    def _warn_once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self.warn(text)

    def rest_for(self, step: StepSize) -> Rest:
        """Return the rest of the open plan in steps of a size, see
        :meth:`Stream.rest_for`. The run stays as it is."""
        assert self.seed is not None
        newest = self.stream.newest
        rest = self.stream.rest_for(step, self._rng, self.world, self.seed)
        stream = rest.stream
        if newest is not None and rest.left_out is not None:
            cut = stream.plans[-1]
            record = newest.record.cut(cut.kept, rest.scale)
            stream.plans[-1] = replace(cut, record=record)
        if (newest is not None and stream.position == newest.first_slot
                and step.drop_last and stream.left < step.slots):
            self.warn(
                f'nothing is trained on in epoch {self.epoch}, because '
                f'its plan has {stream.left} images, a step has {step.slots}, '
                'and `drop_last` leaves them out: lower `batch_size`, remove '
                '`drop_last`, or let the policy keep more images.')
        return rest

    def go_on_with(self, rest: Rest) -> None:
        """Train on a rest of the open plan in the place of the slots that are
        left."""
        # The position and the log may have moved on since.
        rest.stream.advance(self.stream.position)
        self.stream, self._rng = rest.stream, rest.rng
        if rest.left_out is not None:
            self.table.count_pruned(rest.left_out)

    # Progress ----------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """int: The epoch of the newest plan of a run by epochs, from 1. Before
        the first plan, how many epochs are over."""
        covered = self.stream.end_place.covered
        return round(covered / self.schedule.pass_length)

    @property
    def kept_share(self) -> float:
        """float: Share of the images that the plan in training keeps."""
        plan = self.stream.current
        return plan.kept / self.schedule.pass_length if plan else 1.

    @property
    def worth(self) -> VarianceRatio:
        """VarianceRatio: Mean V of the run until the last merge, see
        :mod:`mmib.worth`. NaN before V is known."""
        return self.reading.mean_ratio.add(self.table.sums).mean()

    def explain(self, index: int) -> Optional[Explanation]:
        """Explain why the newest plan keeps or leaves out the image of an
        index, or return None before the first plan. Call this method on all
        ranks."""
        size = self.schedule.pass_length
        if not isinstance(index, Integral) or not 0 <= index < size:
            raise Refusal(f'There is no image {index}: the dataset has the '
                          f'indices 0 to {size - 1}.')
        self.merge()
        newest = self.stream.newest
        if newest is None:
            return None
        return explain(index, int(self.table.images[index]),
                       newest.record, size, self.reading.scores, newest.keeps,
                       vars(self.table))

    # Visits ------------------------------------------------------------------

    def merge(self, decides_norms: bool = False) -> None:
        """Add the visits of all ranks to the table, and forget old plans.
        Call this method on all ranks. A plan that reads scores, a state and an
        explanation need the visits.

        Args:
            decides_norms (bool): Whether to conclude that norms can't be seen
                if none is known by now. Defaults to False.
        """
        stream, table = self.stream, self.table
        # Where every rank trains on each batch, all ranks have visits or none
        # has, and annealing needs no collective.
        if not self._every_rank_trains or len(self.log):
            merged = self.log.merge(stream.known_from, stream.position,
                                    self.checksum, self.world)
            stream.advance(merged.position)
            table.count_visits(stream.at(merged.unscored).indices)
            # In MMEngine, a batch is logged after its backward pass.
            self._look_for_norms(merged, decides_norms
                                 or self._every_rank_trains)
            self._add(merged)
        stream.forget_trained()

    def _add(self, merged: Merged) -> None:
        """Add the scores and norms of visits to the table."""
        stream, table = self.stream, self.table
        before = table.non_finite
        # Negative losses are no norms.
        is_negative = bool(self.lacks_norms and (merged.scores < 0).any())
        if is_negative:
            self._warn_once('negative', f'{_NEGATIVE}.')
        for numbers, scores, norms in merged.blocks():
            if self.lacks_norms:
                norms = np.full_like(norms, np.nan) if is_negative else scores
            slots = stream.at(numbers)
            visited_at = np.minimum(self._visited_at(numbers), _LARGEST)
            table.add(slots, visited_at.astype(np.int32), scores, norms)
        if not self.lacks_norms and len(merged.late_numbers):
            table.add_late(stream.at(merged.late_numbers), merged.late_norms)
        total = table.non_finite
        if total > before:
            # The text differs each time, because MMEngine drops a warning
            # that repeats.
            self.warn(f'{total - before} scores of images were NaN or '
                      f'infinite, {total} so far; these images keep the '
                      'score they had before.')

    def _look_for_norms(self, merged: Merged, decides: bool) -> None:
        """Find out whether losses must stand in for norms, and warn if so.
        With ``decides``, norms that are unknown by now can't be seen."""
        has_other_term = self.log.has_other_term
        if not (np.isnan(merged.norms).all()
                and np.isnan(merged.late_norms).all()):
            self.lacks_norms = False
        elif decides and self.lacks_norms is None and len(merged.numbers):
            self.lacks_norms = True
            text = _BY_LOSSES
            if (merged.scores < 0).any():
                self._said.add('negative')
                text = _NEGATIVE
            hint = '' if self._every_rank_trains else (
                ' For a better estimate, give `weigh` the tensor that the '
                'losses were computed from, not a part or a copy of it.')
            if not has_other_term:
                self.warn('the gradient at the predictions cannot be seen, so '
                          f'{text}.{hint}')
        if has_other_term and self.lacks_norms is not None:
            self._warn_once(
                'other term',
                'another term than the losses uses the predictions, so their '
                'gradient is not the gradient of the losses, and '
                f'{_BY_LOSSES if self.lacks_norms else _NO_MORE}. Give the '
                'losses and `weigh` a view of the predictions, and the other '
                'term the predictions: `own = logits.view_as(logits)`.')

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
        reading, stream = self.reading, self.stream.state_dict()
        records = [plan.record.to_dict() for plan in self.stream.plans]
        return dict(
            version=VERSION,
            seed=self.seed,
            stream=stream,
            # Of the plans in the state of the stream.
            records=records[len(records) - len(stream['plans']):],
            baseline=self.baseline.state_dict(),
            rng=self._rng.bit_generator.state,
            schedule=self.schedule.state_dict(),
            plans_checksum=self.checksum,
            # What else a reading has belongs to the newest plan alone.
            reading=dict(
                scores=to_tensors(reading.scores),
                mean_score=reading.mean_score,
                mean_ratio=tuple(reading.mean_ratio),
                read_at=reading.read_at,
                logged_at=reading.logged_at),
            policy=repr(self.policy),
            policy_type=_type_name(self.policy),
            policy_state=to_tensors(self.policy.state_dict()),
            normalize=bool(self.normalize),
            lacks_norms=self.lacks_norms,
            tables=self.table.state_dict())

    def load_state_dict(
            self,
            state_dict: Dict[str, Any],
            length_changes: Optional[Sequence[str]] = None) -> List[str]:
        """Resume where :meth:`state_dict` was called, on any number of ranks.
        The open plans go on, and the policy of this run draws the next plans.
        The progress of this run is discarded. If the state is of another type
        of policy, the policy of this run keeps what it has learned.

        Args:
            state_dict (dict): The state.
            length_changes (Sequence[str], optional): Sentences on what has
                changed in the length of the run. If None, they count passes.
                Defaults to None.

        Returns:
            list[str]: What has changed since the state was written.

        Raises:
            Refusal: If the state is damaged, of an unknown version, or of a
                run with another number of images, another kind of score, or
                another way of counting.
        """
        state, own = to_current(state_dict), self.state_dict(merge=False)
        reason = mismatch(state, own)
        if reason is not None:
            raise Refusal(f'The run can\'t go on: {reason}.')
        check_values(state, len(self.table.images))
        baseline, rng = self.baseline.reseeded(
            state['seed']), np.random.default_rng()
        try:
            baseline.load_state_dict(state['baseline'])
            rng.bit_generator.state = state['rng']
        # torch and numpy check the states of their generators.
        except Exception as error:
            raise damaged('rng', f'is no state of a generator ({error})') \
                from error
        try:
            records = [*map(PlanRecord.from_dict, state['records'])]
        # A tier or a ratio may have too many values.
        except (TypeError, ValueError, KeyError) as error:
            raise damaged('records', f'are no plans ({error})') from error
        stream = Stream(self.schedule.pass_length)
        stream.load_state_dict(state['stream'], records)
        reading = state['reading']
        reading = Reading(**dict(
            reading,
            scores=to_arrays(reading['scores']),
            mean_ratio=MeanRatio(*reading['mean_ratio'])))
        policy, name = self.policy, _type_name(self.policy)
        if state['policy_type'] == name:
            policy = _resumed(policy, to_arrays(state['policy_state']))
        # Nothing was written until here, so a refused state changes nothing.
        is_same_policy = state['policy'] == repr(self.policy)
        self.policy, self.baseline, self._rng = policy, baseline, rng
        self.seed, self.log = state['seed'], VisitLog()
        self.stream, self.reading = stream, reading
        self.schedule.load_state_dict(state['schedule'])
        self.checksum = state['plans_checksum']
        self.lacks_norms = state['lacks_norms']
        self.table.load_state_dict(state['tables'])
        if self.schedule.stream_end is not None:
            # This run may be shorter than the one before.
            self.stream.drop_from(self.schedule.stream_end)
        if not is_same_policy:
            # The tiers of the old policy mean nothing to the new policy.
            self.table.forget_sums()
            self.stream.forget_tiers()
        if self.normalize is None:
            self.normalize = own['normalize'] = state['normalize']
        return what_changed(state, own, length_changes)

    def start_afresh(self, position: int, unspent: float = 0.) -> None:
        """Go on from the middle of a training without scores. Call this method
        on a new run, in which all scores are 1.

        Args:
            position (int): Slots of the training so far; by epochs slots of as
                many full passes.
            unspent (float): How many of these slots were pruned. Defaults to
                0.
        """
        self.stream = Stream(self.schedule.pass_length,
                             Place(position, position))
        self.schedule.fresh_from = position
        self.schedule.zero = Place(unspent, 0)
        if not self.schedule.by_epoch:
            # The stream goes on with the rest of a full pass.
            self.baseline.skip(position, self.schedule.pass_length)


def _slots_until(numbers: np.ndarray) -> np.ndarray:
    """Return the slots until the visit of each slot, from 1."""
    return numbers + 1


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
