# Copyright (c) mmib contributors. All rights reserved.
"""When a plan is drawn, and from what."""
import math
import sys
import zlib
from collections import deque
from dataclasses import replace
from typing import (Any, Callable, Deque, Dict, Iterator, List, Optional,
                    Sequence)

import numpy as np
import torch
from mmengine.utils import apply_to

from .clock import Clock
from .errors import RuntimeRefusal
from .log.counts import ImageCounts
from .plan_record import PlanRecord
from .pruning import (EpochPlan, Policy, Progress, ScoreHistogram, Tier,
                      check_plan)
from .state import damaged
from .visits import VisitCounter, VisitSums
from .worth import MeanRatio


class Planner:
    """Draws the plan of each virtual epoch.

    Args:
        policy (Policy): Draws the plans that prune.
        visits (VisitCounter): Scores, and what followed the last plan.
        counts (ImageCounts): What plans have left out.
        clock (Clock): How far the training is.
        observers (Sequence[Callable]): Each is called with the record and the
            plan (None is a full pass) when a plan was drawn. Defaults to ().
        normalize (bool): Whether the mean weight of a plan is 1. Defaults to
            False.
    """

    def __init__(self,
                 policy: Policy,
                 visits: VisitCounter,
                 counts: ImageCounts,
                 clock: Clock,
                 observers: Sequence[Callable] = (),
                 normalize: bool = False) -> None:
        self.policy = policy
        self.visits = visits
        self.counts = counts
        self.clock = clock
        self.normalize = normalize
        self.observers = observers
        self.current: Optional[PlanRecord] = None
        """PlanRecord, optional: The plan in training."""
        # Plans that were drawn and haven't begun.
        self._next: Deque[PlanRecord] = deque()
        self._pruned_until = 0
        # The first slot of the last plan with a line of log, and of the one
        # for which scores were last read. The first plan has a line.
        self._logged_start = -sys.maxsize
        self._read_start = 0
        self.plan_scores: Optional[np.ndarray] = None
        """np.ndarray, optional: Score of each index when the scores were last
        read for a plan, float32 of shape (pass_length,)."""
        self._mean_score = 1.
        self._non_finite = 0
        self._checksum = 0
        self.mean_ratio = MeanRatio()
        """MeanRatio: V of the training until scores were last read."""

    def __call__(self, start: int,
                 rng: np.random.Generator) -> Optional[EpochPlan]:
        """Draw the plan of the next virtual epoch. The sampler calls this.

        The scores of all ranks are read in one collective. Batches in flight
        have no new scores yet. A plan that soon follows another one
        (:attr:`Clock.min_gap`) could know few newer scores: such a plan
        is drawn from the same scores without waiting, and has no line of log.

        Args:
            start (int): Number of the plan's first slot in the stream.
            rng (np.random.Generator): Source of every random choice.

        Returns:
            EpochPlan, optional: The plan, or None for a full pass.
        """
        clock, last = self.clock, self.newest
        covered = clock.covered(last, start)
        plan, sums = None, None
        if (not clock.is_annealing(start) and start >= clock.first_pruned
                and not self.visits.scores.empty):
            if (self.plan_scores is None
                    or start - self._read_start >= clock.min_gap):
                sums = self._read_scores(start)
            progress = clock.progress(start, covered, self.policy)
            if sums:
                progress = progress._replace(norms=sums.norms)
            plan = self._ask_policy(progress, rng)
        record = self._record(start, covered, last, plan, sums)
        self._next.append(record)
        if plan is not None:
            plan = None if plan.is_full else self._expect(plan, record)
        for observe in self.observers:
            observe(record, plan)
        return plan

    def _read_scores(self, start: int) -> VisitSums:
        sums = self.read_sums()
        self.plan_scores = self.visits.scores.numpy()
        self._mean_score = float(self.plan_scores.mean())
        self._read_start = start
        return sums

    def _ask_policy(self, progress: Progress,
                    rng: np.random.Generator) -> EpochPlan:
        self.policy.begin_plan(progress)
        # The next plans are drawn from the same scores, so a policy that
        # sorts them in place must fail.
        scores = self.plan_scores.view()
        scores.flags.writeable = False
        plan = self.policy(scores, rng)
        try:
            check_plan(plan, self.clock.pass_length)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f'The policy {self.policy!r} draws no plan to train on: '
                f'{error}. Change it at InfoBatchHook in `custom_hooks`.'
            ) from None
        if not plan.is_unbiased(self.clock.pass_length):
            # V says nothing of a biased plan.
            plan = replace(plan, tier_of_slot=np.zeros_like(plan.tier_of_slot))
        if self.normalize:
            plan = replace(plan, weights=plan.weights / plan.weights.mean())
        return plan

    def _record(self, start: int, covered: float, last: Optional[PlanRecord],
                plan: Optional[EpochPlan],
                sums: Optional[VisitSums]) -> PlanRecord:
        """What is known of a plan that begins with a slot."""
        clock = self.clock
        begins_annealing = (
            clock.is_annealing(start) and last is not None
            and not clock.is_annealing(last.start))
        logged = (
            begins_annealing or start - self._logged_start >= clock.min_gap)
        if logged:
            self._logged_start = start
        size = clock.pass_length
        record = PlanRecord(
            kept=size,
            tiers=(Tier(size, size), ),
            covered=covered,
            epoch=last.epoch + 1 if last else 1,
            start=start,
            mean_score=self._mean_score,
            variance_ratio=sums.ratio if sums else None,
            mean_ratio=self.mean_ratio.mean(),
            reliability=sums.reliability if sums else None,
            non_finite=self._non_finite,
            note=plan.note or '' if plan else '',
            logged=logged)
        if plan is not None and not plan.is_full:
            # A policy may have numpy's numbers, checkpoints plain ones.
            threshold = float(plan.threshold)
            record = record._replace(
                kept=len(plan),
                tiers=tuple(Tier(int(n), int(kept)) for n, kept in plan.tiers),
                # JSON knows no infinite one.
                threshold=threshold if math.isfinite(threshold) else 0.,
                mean_weight=self._mean_weight(size / len(plan)),
                histogram=(ScoreHistogram.of(self.plan_scores, plan)
                           if logged else None))
        return clock.place(record)

    def _mean_weight(self, of_method: float) -> float:
        return of_method if self.policy.rescale and not self.normalize else 1.

    def _expect(self, plan: EpochPlan, record: PlanRecord) -> EpochPlan:
        """Make ready for the visits of a plan that prunes, and cut it short
        where annealing begins."""
        self.counts.prune(plan.indices)
        # The next plan begins with annealing.
        plan = plan[:self.clock.annealing_start - record.start]
        self.visits.expect(len(record.tiers))
        self._pruned_until = record.start + len(plan)
        # Plans are in random order, so their beginnings tell enough.
        self._checksum = zlib.crc32(plan.indices[:1024].tobytes(),
                                    self._checksum)
        return plan

    def read_sums(self) -> VisitSums:
        """Wait for what all ranks have recorded since the last plan."""
        self.merge_scores()
        self._non_finite = self.visits.scores.num_non_finite()
        sums = self.visits.take()
        if sums.ratio is not None:
            self.mean_ratio = self.mean_ratio.add(sums.ratio, sums.count)
        return sums

    def merge_scores(self) -> None:
        """Make the scores of all ranks equal.

        Raises:
            RuntimeError: If ranks drew different plans. This is seen where
                they are equally long; else the ranks call collectives that
                don't match, and the process group fails.
        """
        if not self.visits.merge(self._checksum):
            raise RuntimeRefusal(
                'The ranks drew different plans. A policy must take every '
                'random choice from its argument `rng`: check the `policy` of '
                f'InfoBatchHook in `custom_hooks`, {self.policy!r}.')

    @property
    def newest(self) -> Optional[PlanRecord]:
        """PlanRecord, optional: The plan that was drawn last."""
        return self._next[-1] if self._next else self.current

    @property
    def next_share(self) -> float:
        """float: Kept share to expect of the next plans that prune."""
        newest, pass_length = self.newest, self.clock.pass_length
        if newest is not None and newest.kept < pass_length:
            return newest.kept / pass_length
        share = self.policy.expected_share(
            self.clock.first_progress(self.policy))
        return 1. if share is None else share

    def advance(self, position: int) -> Iterator[PlanRecord]:
        """Go on to the plans that have begun after ``position`` slots, and
        yield each."""
        while self._next and self._next[0].start < position:
            self.current = self._next.popleft()
            yield self.current

    def saved_iters(self, position: int) -> float:
        """Iterations that the baseline needs more for the same virtual
        epochs, at a slot of the plan in training."""
        return self.clock.saved_iters(self.current, position)

    def state_dict(self, position: int) -> Dict[str, Any]:
        """Everything but the scores that the next plans follow from, after
        ``position`` slots: tensors and plain Python values."""
        return dict(
            clock=self.clock.state_dict(self.current.covered_until(position)),
            plans=[plan.to_dict() for plan in (self.current, *self._next)],
            normalize=self.normalize,
            policy=repr(self.policy),
            policy_type=_type_name(self.policy),
            policy_state=_to_tensors(self.policy.state_dict()),
            pruned_until=self._pruned_until,
            logged_start=self._logged_start,
            read_start=self._read_start,
            plan_scores=_to_tensors(self.plan_scores),
            mean_score=self._mean_score,
            non_finite=self._non_finite,
            visits=self.visits.state_dict(),
            mean_ratio=tuple(self.mean_ratio))

    def load_state_dict(self, state_dict: Dict[str, Any], iteration: int,
                        position: int) -> List[str]:
        """Go on where :meth:`state_dict` was called. The open plan is kept;
        the policy in the config draws the next ones.

        Args:
            state_dict (dict): What :meth:`state_dict` returned.
            iteration (int): Iterations of the training until then.
            position (int): Slots that were taken.

        Returns:
            list[str]: What has changed since then, for the log.
        """
        self.current, *later = map(PlanRecord.from_dict, state_dict['plans'])
        self._pruned_until = state_dict['pruned_until']
        self._logged_start = state_dict['logged_start']
        self._read_start = state_dict['read_start']
        self.plan_scores = _to_arrays(state_dict['plan_scores'])
        self._mean_score = state_dict['mean_score']
        self._non_finite = state_dict['non_finite']
        self.visits.load_state_dict(state_dict['visits'],
                                    self.is_same_policy(state_dict))
        self.mean_ratio = MeanRatio(*state_dict['mean_ratio'])
        changes = self.clock.load_state_dict(
            state_dict['clock'], iteration, position,
            self.current.covered_until(position), self._pruned_until)
        self._next = deque(map(self.clock.place, later))
        if state_dict['policy_type'] == _type_name(self.policy):
            self._load_policy(_to_arrays(state_dict['policy_state']))
        if not self.is_same_policy(state_dict):
            changes.append(f'the next plans are drawn by {self.policy!r} '
                           f'instead of {state_dict["policy"]}')
        if state_dict['normalize'] != self.normalize:
            changes.append('from the next plan on the mean weight is ' +
                           ('1' if self.normalize else '1 / kept share'))
        return changes

    def _load_policy(self, state: Dict[str, Any]) -> None:
        try:
            self.policy.load_state_dict(state)
        # A policy may be anyone's.
        except Exception as error:
            raise damaged('infobatch.planner.policy_state',
                          f'is none of {self.policy!r} ({error!r})') from error

    def is_same_policy(self, state_dict: Dict[str, Any]) -> bool:
        """Whether :meth:`state_dict` was called with the same policy."""
        return state_dict['policy'] == repr(self.policy)

    def begin(self, iteration: int, position: int,
              full_equivalent: float) -> None:
        """Begin within a training that went on without scores until now, see
        :meth:`Clock.begin`."""
        self.clock.begin(iteration, position, full_equivalent)
        size = self.clock.pass_length
        passes, rest = divmod(position, size)
        # The sampler goes on with the rest of this pass.
        self.current = PlanRecord(
            kept=size,
            tiers=(Tier(size, size), ),
            covered=float(passes),
            epoch=0,
            start=position - rest,
            logged=False)


def _type_name(policy: Policy) -> str:
    return f'{type(policy).__module__}.{type(policy).__qualname__}'


def _to_tensors(state: Any) -> Any:
    return apply_to(state, lambda value: isinstance(value, np.ndarray),
                    torch.from_numpy)


def _to_arrays(state: Any) -> Any:

    def to_array(tensor: torch.Tensor) -> Any:
        try:
            return tensor.numpy()
        except (TypeError, RuntimeError):  # As of bfloat16.
            return tensor

    return apply_to(state, torch.is_tensor, to_array)
