# Copyright (c) mmib contributors. All rights reserved.
"""When a plan is drawn, and from what."""
import math
import sys
import zlib
from collections import deque
from dataclasses import replace
from typing import (Any, Callable, Deque, Dict, Iterator, List, Optional,
                    Sequence, Tuple)

import numpy as np
import torch
from mmengine.utils import apply_to

from .accounting import Accounting, VirtualEpoch
from .log.counts import ImageCounts
from .pruning import (EpochPlan, Policy, Progress, ScoreHistogram, Tier,
                      check_plan)
from .pruning.form import check_form, damaged
from .state import to_arrays
from .visits import VisitCounter, VisitSums
from .worth import MeanRatio


class Planner:
    """Draws the plan of each virtual epoch.

    Args:
        policy (Policy): Draws the plans that prune.
        visits (VisitCounter): Scores, and what followed the last plan.
        counts (ImageCounts): What plans have left out.
        accounting (Accounting): How far the training is.
        lookahead (int): Slots that may be in flight when a plan is drawn.
        observers (Sequence[Callable]): Each is called with the virtual epoch
            and the plan (None is a full pass) when a plan was drawn. Defaults
            to ().
        normalize (bool): Whether the mean weight of a plan is 1. Defaults to
            False.
    """

    def __init__(self,
                 policy: Policy,
                 visits: VisitCounter,
                 counts: ImageCounts,
                 accounting: Accounting,
                 lookahead: int,
                 observers: Sequence[Callable] = (),
                 normalize: bool = False) -> None:
        self.policy = policy
        self.scores = visits.scores
        self.visits = visits
        self.counts = counts
        self.accounting = accounting
        self.lookahead = lookahead
        self.normalize = normalize
        self.observers = observers
        self.epoch: Optional[VirtualEpoch] = None
        """VirtualEpoch, optional: The one in training."""
        self.num_epochs = 0
        """int: Virtual epochs that have begun."""
        self._next_epochs: Deque[VirtualEpoch] = deque()
        # Nothing is pruned before each image was asked for once.
        self._full_until = accounting.pass_length
        self._pruned_until = 0
        # Where the last plan begins that has a line of log, and the one for
        # which the scores were read. The first plan has a line.
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
        """Draw the plan of the next virtual epoch. The sampler calls it.

        It waits for the scores of all ranks, in one collective. Those of the
        batches in flight aren't there yet. A plan that follows another one
        within the lookahead of the data loader can know no score of the last
        one, and one within a thousandth of the training few: it is drawn from
        the same scores, without waiting. Nor does it get a line of log,
        unless annealing begins with it.

        Args:
            start (int): Number of the plan's first slot in the stream.
            rng (np.random.Generator): Source of every random choice.

        Returns:
            EpochPlan, optional: The plan, or None for a full pass.

        Raises:
            TypeError: If the policy returns no plan.
            ValueError: If the plan can't be trained on.
        """
        last, accounting = self.newest, self.accounting
        covered = accounting.covered(last, start)
        is_annealing = accounting.is_annealing(start)
        begins_annealing = (
            is_annealing and last is not None
            and not accounting.is_annealing(last.start))
        logged = begins_annealing or self._is_far_from(self._logged_start,
                                                       start)
        if logged:
            self._logged_start = start

        plan, note, visits, histogram = None, '', None, None
        mean_weight = 1.
        if (not is_annealing and start >= self.first_pruned
                and not self.scores.empty):
            if (self.plan_scores is None
                    or self._is_far_from(self._read_start, start)):
                visits = self.read_visits()
                self.plan_scores = self.scores.numpy()
                self._mean_score = float(self.plan_scores.mean())
                self._read_start = start
            plan = self._ask_policy(
                accounting.progress(start, covered, self.first_pruned,
                                    visits.norms if visits else None), rng)
            note = plan.note or ''
        if plan is None or plan.is_full:
            size, threshold, plan = accounting.pass_length, 0., None
            tiers = (Tier(size, size), )
        else:
            # A policy may have numpy's numbers, checkpoints plain ones.
            tiers = tuple(Tier(int(n), int(kept)) for n, kept in plan.tiers)
            size, threshold = len(plan), float(plan.threshold)
            if not math.isfinite(threshold):  # JSON knows no such number.
                threshold = 0.
            if not self.normalize:
                mean_weight = accounting.pass_length / size
            self.counts.prune(plan.indices)
            if logged:
                histogram = ScoreHistogram.of(self.plan_scores, plan)
            # The next plan begins with annealing.
            plan = plan[:accounting.annealing_start - start]
            self.visits.expect(len(tiers))
            self._pruned_until = start + len(plan)
            # Plans are in random order, so their beginnings tell enough.
            self._checksum = zlib.crc32(plan.indices[:1024].tobytes(),
                                        self._checksum)
        epoch = VirtualEpoch(start, covered, size, threshold, tiers,
                             self._mean_score, self._non_finite, note, logged,
                             visits.ratio if visits else None,
                             visits.reliability if visits else None, histogram,
                             mean_weight)
        self._next_epochs.append(epoch)
        for observe in self.observers:
            observe(epoch, plan)
        return plan

    def _is_far_from(self, last_start: int, start: int) -> bool:
        """Whether a plan begins long enough after another one to be worth a
        line of log, or a wait for new scores."""
        accounting = self.accounting
        least = accounting.max_iters // 1000 * accounting.slots_per_iter
        return start - last_start >= max(self.lookahead, least)

    def _ask_policy(self, progress: Progress,
                    rng: np.random.Generator) -> EpochPlan:
        self.policy.begin_plan(progress)
        # The next plans are drawn from the same scores, so a policy that
        # sorts them in place must fail.
        scores = self.plan_scores.view()
        scores.flags.writeable = False
        plan = self.policy(scores, rng)
        try:
            check_plan(plan, self.accounting.pass_length)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f'The policy {self.policy!r} draws no plan to train on: '
                f'{error}. Change it at InfoBatchHook in `custom_hooks`.'
            ) from None
        if not plan.is_unbiased(self.accounting.pass_length):
            # V says nothing of it.
            plan = replace(plan, tier_of_slot=np.zeros_like(plan.tier_of_slot))
        if self.normalize:
            plan = replace(plan, weights=plan.weights / plan.weights.mean())
        return plan

    def read_visits(self) -> VisitSums:
        """Wait for what all ranks have recorded since the last plan."""
        self.merge_scores()
        self._non_finite = self.scores.num_non_finite()
        visits = self.visits.take()
        if visits.ratio is not None:
            self.mean_ratio = self.mean_ratio.add(visits.ratio, visits.count)
        return visits

    def merge_scores(self) -> None:
        """Make the scores of all ranks equal.

        Raises:
            RuntimeError: If ranks drew different plans. This is seen where
                they are equally long; else the ranks call collectives that
                don't match, and the process group fails.
        """
        if not self.visits.merge(self._checksum):
            raise RuntimeError(
                'The ranks drew different plans. A policy must take every '
                'random choice from its argument `rng`: check the `policy` of '
                f'InfoBatchHook in `custom_hooks`, {self.policy!r}.')

    @property
    def newest(self) -> Optional[VirtualEpoch]:
        """VirtualEpoch, optional: The one whose plan was drawn last."""
        return self._next_epochs[-1] if self._next_epochs else self.epoch

    @property
    def mean_weight(self) -> float:
        """float: Mean weight of the plan in training."""
        return self.epoch.mean_weight

    @property
    def prunes_nothing(self) -> bool:
        """bool: Whether annealing begins before the first full pass ends."""
        return self.accounting.prunes_nothing(self.first_pruned)

    @property
    def first_pruned(self) -> int:
        """int: From which slot on a plan may prune."""
        return max(self._full_until, self.accounting.pruning_start)

    def advance(
        self, position: int
    ) -> Iterator[Tuple[Optional[VirtualEpoch], VirtualEpoch]]:
        """Go on to the virtual epochs that have begun.

        Args:
            position (int): Slots that were taken.

        Yields:
            tuple[VirtualEpoch, optional, VirtualEpoch]: The one before, and
            the one that begins.
        """
        while self._next_epochs and self._next_epochs[0].start < position:
            last, self.epoch = self.epoch, self._next_epochs.popleft()
            self.num_epochs += 1
            yield last, self.epoch

    def saved_iters(self, position: int) -> float:
        """Iterations that the baseline needs more for the same virtual
        epochs, at a slot of the one in training."""
        return self.accounting.saved_iters(self.epoch, position)

    def state_dict(self, position: int) -> Dict[str, Any]:
        """Everything that the accounts and the next plans follow from,
        besides the scores.

        Args:
            position (int): Slots that were taken.

        Returns:
            dict: Tensors and plain Python values.
        """
        return dict(
            **self.accounting.state_dict(self.epoch.covered_until(position)),
            normalize=self.normalize,
            policy=repr(self.policy),
            policy_type=_type_name(self.policy),
            policy_state=_to_tensors(self.policy.state_dict()),
            epochs=[
                epoch.state_dict()
                for epoch in (self.epoch, *self._next_epochs)
            ],
            num_epochs=self.num_epochs,
            full_until=self._full_until,
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
        the next ones are those of the policy in the config.

        Args:
            state_dict (dict): What it returned.
            iteration (int): Iterations of the training until then.
            position (int): Slots that were taken.

        Returns:
            list[str]: What has changed since then, for the log.
        """
        self.epoch, *next_epochs = map(VirtualEpoch.from_state,
                                       state_dict['epochs'])
        self._next_epochs = deque(next_epochs)
        self.num_epochs = state_dict['num_epochs']
        self._full_until = state_dict['full_until']
        self._pruned_until = state_dict['pruned_until']
        self._logged_start = state_dict['logged_start']
        # They were one in version 0.1.0.
        self._read_start = state_dict.get('read_start', self._logged_start)
        self.plan_scores = to_arrays(state_dict['plan_scores'])
        self._mean_score = state_dict['mean_score']
        self._non_finite = state_dict['non_finite']
        # Version 0.1.0 didn't have these two.
        self.visits.load_state_dict(
            state_dict.get('visits'), self.is_same_policy(state_dict))
        self.mean_ratio = MeanRatio(*state_dict.get('mean_ratio', ()))
        changes = self.accounting.load_state_dict(
            state_dict, iteration, position,
            self.epoch.covered_until(position), self._pruned_until)
        if (state_dict['policy_type'] == _type_name(self.policy)
                and 'policy_state' in state_dict):
            self._load_policy(to_arrays(state_dict['policy_state']))
        if not self.is_same_policy(state_dict):
            changes.append(f'the next plans are those of {self.policy!r} '
                           f'instead of {state_dict["policy"]}')
        if state_dict['normalize'] != self.normalize:
            changes.append('from the next plan on the mean weight is ' +
                           ('1' if self.normalize else 'that of the method'))
        return changes

    def _load_policy(self, state: Dict[str, Any]) -> None:
        where = 'infobatch.planner.policy_state'
        check_form(state, self.policy.state_form(), where,
                   {'indices of a pass': self.accounting.pass_length})
        try:
            self.policy.load_state_dict(state)
        # A policy may be anyone's.
        except Exception as error:
            raise damaged(where,
                          f'is none of {self.policy!r} ({error!r})') from error

    def is_same_policy(self, state_dict: Dict[str, Any]) -> bool:
        """Whether :meth:`state_dict` was called with the same policy."""
        return state_dict['policy'] == repr(self.policy)

    def begin(self, iteration: int, position: int,
              full_equivalent: float) -> None:
        """Begin within a training that went on without scores until now.

        Args:
            iteration (int): Iterations of the training until then.
            position (int): Slots of full passes until then.
            full_equivalent (float): Iterations of the baseline that cover as
                many passes as what was trained on until then.
        """
        self.accounting.begin(iteration, position, full_equivalent)
        pass_length = self.accounting.pass_length
        passes, rest = divmod(position, pass_length)
        # The sampler goes on with the rest of this pass.
        tiers = (Tier(pass_length, pass_length), )
        self.epoch = VirtualEpoch(position - rest, float(passes), pass_length,
                                  0., tiers, 1., 0, '', False)
        self._full_until = position + pass_length


def _type_name(policy: Policy) -> str:
    return f'{type(policy).__module__}.{type(policy).__qualname__}'


def _to_tensors(state: Any) -> Any:
    return apply_to(state, lambda value: isinstance(value, np.ndarray),
                    torch.from_numpy)
