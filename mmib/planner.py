# Copyright (c) mmib contributors. All rights reserved.
"""When a plan is drawn, and from what."""
import math
import zlib
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from mmengine.utils import apply_to

from .clock import Clock
from .errors import damaged
from .plan_record import PlanRecord
from .pruning import EpochPlan, Policy, ScoreHistogram, Tier, draw_plan
from .visits import Tables, norms_of, ratio_of, reliability_of
from .worth import MeanRatio


class Planner:
    """Draws the plan of each virtual epoch, and keeps the records of plans.

    Args:
        policy (Policy): Draws the plans that prune.
        clock (Clock): How far the training is.
        tables (Tables): What is known of the images.
        merge (Callable): Lets the tables of all ranks know all visits.
        full_pass (Callable): ``full_pass(limit)`` returns the indices of the
            next full pass.
        normalize (bool): Whether the mean weight of a plan is 1. Defaults to
            False.
    """

    def __init__(self,
                 policy: Policy,
                 clock: Clock,
                 tables: Tables,
                 merge: Callable[[], None],
                 full_pass: Callable[[Optional[int]], np.ndarray],
                 normalize: bool = False) -> None:
        self.policy = policy
        self.normalize = normalize
        self.observers: Sequence[Callable] = ()
        """Sequence[Callable]: See :attr:`InfoBatchHook.plan_observers`."""
        self.current: Optional[PlanRecord] = None
        """PlanRecord, optional: The plan in training."""
        self.scores: Optional[np.ndarray] = None
        """np.ndarray, optional: Score of each index when the scores were last
        read for a plan, float32 of shape (pass_length,)."""
        self.mean_ratio = MeanRatio()
        """MeanRatio: V of the training until scores were last read."""
        self.checksum = 0
        """int: Of the plans that pruned until now, of 32 bits."""
        self._clock, self._tables = clock, tables
        self._merge, self._full_pass = merge, full_pass
        # Plans that were drawn and haven't begun.
        self._next: Deque[PlanRecord] = deque()
        # The first slot of the last plan with a line of log, and of that for
        # which scores were read.
        self._logged_start = -math.inf  # The first plan has a line.
        self._read_start = 0
        self._mean_score = 1.

    def draw(self, start: int, iteration: int,
             rng: np.random.Generator) -> EpochPlan:
        """Draw the plan of the next virtual epoch.

        The scores of all ranks are read in one collective. Batches in flight
        have no new scores yet. A plan that soon follows another one
        (:attr:`Clock.min_gap`) could know few newer scores: such a plan is
        drawn from the same scores without waiting, and has no line of log.

        Args:
            start (int): Number of the plan's first slot in the stream.
            iteration (int): Iterations of the training until now.
            rng (np.random.Generator): Source of every random choice.
        """
        clock, last = self._clock, self.newest
        saved_iters = 0. if last is None else (
            last.saved_iters + clock.gain(last, start, iteration))
        annealing = clock.place(start) >= clock.first_annealing
        plan: Optional[EpochPlan] = None
        learned: Dict[str, Any] = {}
        if not annealing:
            plan, learned = self._ask_policy(start, saved_iters, rng)
        begins_annealing = annealing and last and not last.annealing
        logged = bool(begins_annealing
                      or start - self._logged_start >= clock.min_gap)
        if logged:
            self._logged_start = start
        record = PlanRecord(
            kept=clock.pass_length,
            tiers=(Tier(clock.pass_length, clock.pass_length), ),
            covered=last.covered_until(start) if last else start /
            clock.pass_length,
            epoch=last.epoch + 1 if last else 1,
            start=start,
            iter=clock.iteration_at(start, iteration),
            saved_iters=saved_iters,
            mean_score=self._mean_score,
            mean_ratio=self.mean_ratio.mean(),
            non_finite=self._tables.non_finite,
            note=plan.note if plan else '',
            logged=logged,
            annealing=annealing,
            **learned)
        # The plan after this one begins with annealing.
        limit = None if annealing else clock.until_annealing(start)
        if limit is None and clock.end is not None:
            limit = clock.end - start
        if plan is None or plan.is_full:
            plan = EpochPlan.full(self._full_pass(limit))
        else:
            record = self._record_pruned(record, plan)
            plan = plan.cut(limit)
            self.checksum = zlib.crc32(
                np.ascontiguousarray(plan.indices).data, self.checksum)
        self._next.append(record)
        for observe in self.observers:
            observe(record, plan)
        return plan

    def _ask_policy(
        self, start: int, saved_iters: float, rng: np.random.Generator
    ) -> Tuple[Optional[EpochPlan], Dict[str, Any]]:
        """The plan of the policy, None where nothing may be pruned yet, and
        what is recorded of the visits since scores were read."""
        clock = self._clock
        is_due = start - self._read_start >= clock.min_gap
        may_prune = clock.place(start) >= clock.first_pruned
        if not (may_prune and self._tables.knows_scores):
            if is_due:
                # So that the log doesn't grow over many passes.
                self._merge()
            return None, {}
        progress, learned = clock.progress(start, saved_iters), {}
        if is_due or self.scores is None:
            self._read_start = start
            self._merge()
            sums, pairs = self.read_sums()
            progress = progress._replace(norms=norms_of(sums))
            learned = dict(
                variance_ratio=ratio_of(sums),
                reliability=reliability_of(pairs))
            self.scores = self._tables.by_index(clock.pass_length)
            self._mean_score = float(self.scores.mean())
        plan = draw_plan(self.policy, self.scores, progress, rng)
        if self.normalize and not plan.is_full:
            plan = plan.normalized()
        return plan, learned

    def _record_pruned(self, record: PlanRecord,
                       plan: EpochPlan) -> PlanRecord:
        """The record of a plan that prunes, whose images it counts."""
        self._tables.count_pruned(plan.indices, self._clock.pass_length)
        histogram = None
        if record.logged and self.scores is not None:
            histogram = ScoreHistogram.of(self.scores, plan)
        # JSON knows no infinite threshold.
        return record._replace(
            kept=len(plan),
            tiers=plan.tiers,
            threshold=plan.threshold if math.isfinite(plan.threshold) else 0.,
            mean_weight=round(plan.mean_weight, 6),
            histogram=histogram)

    def read_sums(self) -> Tuple[np.ndarray, np.ndarray]:
        """The sums over the visits since they were read, see
        :class:`Tables`, as of the last merge."""
        sums, pairs = self._tables.read_sums()
        self.mean_ratio = self.mean_ratio.add(sums)
        return sums, pairs

    def advance(self, position: int) -> List[PlanRecord]:
        """Go on to the plans that have begun after ``position`` slots."""
        begun = []
        while self._next and self._next[0].start < position:
            begun.append(self._next.popleft())
        if begun:
            self.current = begun[-1]
        return begun

    @property
    def newest(self) -> Optional[PlanRecord]:
        """PlanRecord, optional: The plan that was drawn last."""
        return self._next[-1] if self._next else self.current

    @property
    def next_share(self) -> float:
        """float: Kept share to expect of the next plans that prune."""
        newest, pass_length = self.newest, self._clock.pass_length
        if newest is not None and newest.kept < pass_length:
            return newest.kept / pass_length
        share = self.policy.expected_share(self._clock.first_progress())
        return 1. if share is None else share

    def saved_iters(self, position: int, iteration: int) -> float:
        """Iterations that the baseline needs more for the same virtual epochs,
        at a slot of the plan in training."""
        if self.current is None:
            return 0.
        return self.current.saved_iters + self._clock.gain(
            self.current, position, iteration)

    def state_dict(self) -> Dict[str, Any]:
        """Everything but the scores that the next plans follow from: tensors
        and plain Python values."""
        plans = [*filter(None, [self.current]), *self._next]
        return dict(
            plans=[plan.to_dict() for plan in plans],
            normalize=self.normalize,
            policy=repr(self.policy),
            policy_type=_type_name(self.policy),
            policy_state=_to_tensors(self.policy.state_dict()),
            starts=(self._logged_start, self._read_start),
            scores=_to_tensors(self.scores),
            mean_score=self._mean_score,
            mean_ratio=tuple(self.mean_ratio),
            checksum=self.checksum)

    def load_state_dict(self, state_dict: Dict[str, Any], position: int,
                        iteration: int, saved_iters: float) -> List[str]:
        """Go on where :meth:`state_dict` was called. The open plan is kept;
        the policy that is there now draws the next ones.

        Args:
            state_dict (dict): What :meth:`state_dict` returned.
            position (int): Slots that were taken.
            iteration (int): Iterations of the training until then.
            saved_iters (float): Iterations saved until then.

        Returns:
            list[str]: What has changed since then, for the log.
        """
        self._logged_start, self._read_start = state_dict['starts']
        self.scores = _to_arrays(state_dict['scores'])
        self._mean_score = state_dict['mean_score']
        self.mean_ratio = MeanRatio(*state_dict['mean_ratio'])
        self.checksum = state_dict['checksum']
        self.current = None
        self._next.clear()
        self._load_plans(state_dict['plans'], position, iteration, saved_iters)
        if state_dict['policy_type'] == _type_name(self.policy):
            self._load_policy(_to_arrays(state_dict['policy_state']))
        changes = []
        if not self.is_same_policy(state_dict):
            changes.append(f'the next plans are drawn by {self.policy!r} '
                           f'instead of {state_dict["policy"]}')
        if state_dict['normalize'] != self.normalize:
            changes.append('from the next plan on the mean weight is ' +
                           ('1' if self.normalize else '1 / kept share'))
        return changes

    def _load_plans(self, plans: List[dict], position: int, iteration: int,
                    saved_iters: float) -> None:
        if not plans:  # Before the first batch.
            return
        self.current, *later = map(PlanRecord.from_dict, plans)
        # With another batch size iterations are other ones from here on.
        missing = saved_iters - self.saved_iters(position, iteration)
        self.current = last = self.current._replace(
            saved_iters=self.current.saved_iters + missing)
        for plan in later:
            last = plan._replace(
                iter=self._clock.iteration_at(plan.start, iteration),
                saved_iters=last.saved_iters +
                self._clock.gain(last, plan.start, iteration))
            self._next.append(last)

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

    def start_afresh(self, position: int, iteration: int,
                     saved_iters: float) -> None:
        """Begin within a training that went on without scores until now."""
        # The sampler goes on with the rest of this pass.
        size = self._clock.pass_length
        start = position - position % size
        self.current = PlanRecord(
            kept=size,
            tiers=(Tier(size, size), ),
            covered=float(start // size),
            epoch=0,
            start=start,
            iter=iteration,
            saved_iters=saved_iters,
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
