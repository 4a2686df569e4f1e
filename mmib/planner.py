# Copyright (c) mmib contributors. All rights reserved.
"""The plans of a training, one virtual epoch after the other."""
import zlib
from collections import deque
from typing import (Any, Callable, Deque, Dict, Iterator, List, NamedTuple,
                    Optional, Sequence, Tuple)

import numpy as np
import torch

from .pruning import EpochPlan, Progress, ScoreTable, Tier


class VirtualEpoch(NamedTuple):
    """What is known of a plan after its slots are gone.

    Args:
        start (int): Number of its first slot in the stream of all ranks.
        covered (float): Virtual epochs before it.
        size (int): Its slots, before annealing cut it short.
        threshold (float): That of its plan, 0 if nothing was left out.
        tiers (Sequence[Tier]): Its tiers, by increasing score.
        mean_score (float): Mean of all scores when it was drawn.
        non_finite (int): Losses until then that weren't finite.
        note (str): What the policy says of it.
        logged (bool): Whether it begins long enough after the last one that
            was logged, or begins annealing.
    """

    start: int
    covered: float
    size: int
    threshold: float
    tiers: Sequence[Tier]
    mean_score: float
    non_finite: int
    note: str
    logged: bool

    def covered_until(self, position: int) -> float:
        """Virtual epochs before a slot of it or its end. If annealing cuts
        it short, it counts with the part that was issued."""
        return self.covered + (position - self.start) / self.size


class Origin(NamedTuple):
    """From where on an iteration has as many slots as now.

    It is the start of the training, until one is resumed with another batch
    size or on another number of ranks.

    Args:
        iteration (int): Iterations before it.
        position (int): Slots before it.
        covered (float): Virtual epochs before it.
        full_equivalent (float): Iterations that stock training needs for
            these.
    """

    iteration: int = 0
    position: int = 0
    covered: float = 0.
    full_equivalent: float = 0.


class Planner:
    """Draws the plan of each virtual epoch, and keeps account of them.

    Args:
        policy (Callable): Draws the plans that leave images out.
        scores (ScoreTable): Score of each image.
        num_samples (int): Slots of a full pass.
        images (np.ndarray, optional): Number of the image of each index, of
            shape (num_samples,), where some repeat. Defaults to None.
        slots_per_iter (int): Slots of an iteration, of all ranks.
        max_iters (int): Iterations of the training.
        annealing_iter (int): Iteration from which on nothing is left out.
        lookahead (int): Slots that may be in flight when a plan is drawn.
        observers (Sequence[Callable]): Each is called with the virtual epoch
            and the plan (None is a full pass) when a plan was drawn. Defaults
            to ().
    """

    def __init__(self,
                 policy: Callable,
                 scores: ScoreTable,
                 num_samples: int,
                 images: Optional[np.ndarray],
                 slots_per_iter: int,
                 max_iters: int,
                 annealing_iter: int,
                 lookahead: int,
                 observers: Sequence[Callable] = ()) -> None:
        self.policy = policy
        self.scores = scores
        self.num_samples = num_samples
        self.images = images
        self.slots_per_iter = slots_per_iter
        self.max_iters = max_iters
        self.annealing_iter = annealing_iter
        self.lookahead = lookahead
        self.observers = observers
        self.origin = Origin()
        self.epoch: Optional[VirtualEpoch] = None
        """VirtualEpoch, optional: The one in training."""
        self.num_epochs = 0
        """int: Virtual epochs that have begun."""
        self._next_epochs: Deque[VirtualEpoch] = deque()
        # Nothing is left out before each image was asked for once.
        self._full_until = num_samples
        self._pruned_until = 0
        self._logged_start = -lookahead
        self.plan_scores: Optional[np.ndarray] = None
        """np.ndarray, optional: Score of each index when the last plan that
        leaves images out was drawn, float32 of shape (num_samples,)."""
        self._mean_score = 1.
        self._non_finite = 0
        self._checksum = 0

    def __call__(self, start: int,
                 rng: np.random.Generator) -> Optional[EpochPlan]:
        """Draw the plan of the next virtual epoch. The sampler calls it.

        It waits for the scores of all ranks, in one collective. Those of the
        batches in flight aren't there yet. A plan that follows another one
        within the lookahead of the data loader is drawn from the same scores,
        without waiting: it can't know any score of the last one, so it isn't
        worth it, nor a line of log, unless annealing begins with it.

        Args:
            start (int): Number of the plan's first slot in the stream.
            rng (np.random.Generator): Source of every random choice.

        Returns:
            EpochPlan, optional: The plan, or None for a full pass.

        Raises:
            ValueError: If the policy leaves out every image.
        """
        last = self.newest
        covered = (last.covered_until(start) if last else self.origin.covered)
        logged = start - self._logged_start >= self.lookahead or (
            last is not None and last.start < self.annealing_start <= start)
        if logged:
            self._logged_start = start
        plan, note = None, ''
        if (start < self.annealing_start and start >= self._full_until
                and not self.scores.empty):
            if logged or self.plan_scores is None:
                self._read_scores()
            plan = self._ask_policy(start, covered, rng)
            note = plan.note
        if plan is None or plan.is_full:
            tiers = (Tier(self.num_samples, self.num_samples), )
            size, threshold, plan = self.num_samples, 0., None
        else:
            # A policy may have numpy's numbers, checkpoints plain ones.
            tiers = tuple(Tier(int(n), int(kept)) for n, kept in plan.tiers)
            size, threshold = len(plan), float(plan.threshold)
            plan = plan[:self.annealing_start - start]
            self._pruned_until = start + len(plan)
            # Plans are in random order, so their beginnings tell enough.
            self._checksum = zlib.crc32(plan.indices[:1024].tobytes(),
                                        self._checksum)
        self._next_epochs.append(
            VirtualEpoch(start, covered, size, threshold, tiers,
                         self._mean_score, self._non_finite, note, logged))
        for observe in self.observers:
            observe(self.newest, plan)
        return plan

    def _ask_policy(self, start: int, covered: float,
                    rng: np.random.Generator) -> EpochPlan:
        if hasattr(self.policy, 'progress'):
            self.policy.progress = Progress(
                slots_per_iter=self.slots_per_iter,
                max_iters=self.max_iters,
                slots_left=self.annealing_start - start,
                annealing_slots=(self.max_iters - self.annealing_iter) *
                self.slots_per_iter,
                full_equivalent=self._full_equivalent(covered))
        plan = self.policy(self.plan_scores, rng)
        if len(plan) == 0:
            raise ValueError(
                f'The policy {self.policy!r} left out every image: '
                'change it at InfoBatchHook in `custom_hooks`.')
        return plan

    @property
    def newest(self) -> Optional[VirtualEpoch]:
        """VirtualEpoch, optional: The one whose plan was drawn last."""
        return self._next_epochs[-1] if self._next_epochs else self.epoch

    @property
    def annealing_start(self) -> int:
        """int: Slots before annealing."""
        return self.origin.position + self.slots_per_iter * (
            self.annealing_iter - self.origin.iteration)

    @property
    def leaves_nothing_out(self) -> bool:
        """bool: Whether annealing begins before the first full pass ends."""
        return self.annealing_start <= self._full_until

    def enter(
        self, position: int
    ) -> Iterator[Tuple[Optional[VirtualEpoch], VirtualEpoch]]:
        """Go on to the virtual epochs that have begun.

        Args:
            position (int): Slots that were taken.

        Yields:
            tuple[VirtualEpoch, optional, VirtualEpoch]: The last one, and the
            one that begins.
        """
        while self._next_epochs and self._next_epochs[0].start < position:
            last, self.epoch = self.epoch, self._next_epochs.popleft()
            self.num_epochs += 1
            yield last, self.epoch

    def saved_iters(self, epoch: VirtualEpoch, position: int) -> float:
        """Iterations that stock training needs more for the same virtual
        epochs.

        Args:
            epoch (VirtualEpoch): The virtual epoch at the position.
            position (int): Slots of the training until then.
        """
        return self._full_equivalent(
            epoch.covered_until(position)) - self._iteration_at(position)

    def _iteration_at(self, position: int) -> float:
        """Iterations of the training until a slot."""
        return self.origin.iteration + (
            position - self.origin.position) / self.slots_per_iter

    def _full_equivalent(self, covered: float) -> float:
        """Iterations that stock training needs for so many virtual epochs."""
        return self.origin.full_equivalent + (
            covered -
            self.origin.covered) * self.num_samples / self.slots_per_iter

    def merge_scores(self) -> None:
        """Make the scores of all ranks equal.

        Raises:
            RuntimeError: If ranks drew different plans. This is seen where
                they are equally long; else the ranks call collectives that
                don't match, and the process group fails.
        """
        if not self.scores.merge(self._checksum):
            raise RuntimeError(
                'The ranks drew different plans. A policy must take every '
                'random choice from its argument `rng`: check the `policy` of '
                f'InfoBatchHook in `custom_hooks`, {self.policy!r}.')

    def _read_scores(self) -> None:
        """Wait for the scores of all ranks."""
        self.merge_scores()
        scores = self.scores.numpy()
        self.plan_scores = (
            scores if self.images is None else scores[self.images])
        self._mean_score = float(self.plan_scores.mean())
        self._non_finite = self.scores.num_non_finite()

    def state_dict(self, position: int) -> Dict[str, Any]:
        """Everything that the accounts and the next plans follow from,
        besides the scores.

        Args:
            position (int): Slots that were taken.

        Returns:
            dict: Tensors and plain Python values.
        """
        epochs = [self.epoch, *self._next_epochs]
        covered = self.epoch.covered_until(position)
        plan_scores = self.plan_scores
        if plan_scores is not None:
            plan_scores = torch.from_numpy(plan_scores)
        state_dict = dict(
            policy=_name(self.policy),
            policy_type=_type_name(self.policy),
            slots_per_iter=self.slots_per_iter,
            annealing_iter=self.annealing_iter,
            full_equivalent=self._full_equivalent(covered),
            origin=tuple(self.origin),
            epochs=[
                dict(epoch._asdict(), tiers=[tuple(t) for t in epoch.tiers])
                for epoch in epochs
            ],
            num_epochs=self.num_epochs,
            full_until=self._full_until,
            pruned_until=self._pruned_until,
            logged_start=self._logged_start,
            plan_scores=plan_scores,
            mean_score=self._mean_score,
            non_finite=self._non_finite)
        if hasattr(self.policy, 'state_dict'):
            state_dict['policy_state'] = self.policy.state_dict()
        return state_dict

    def load_state_dict(self, state_dict: Dict[str, Any], iteration: int,
                        position: int) -> List[str]:
        """Go on where :meth:`state_dict` was called.

        With another batch size or number of ranks, iterations that lie behind
        keep what they stood for: the full equivalent goes on from its value.
        Where annealing would now begin within a plan that leaves images out,
        it begins after it.

        Args:
            state_dict (dict): What it returned.
            iteration (int): Iterations of the training until then.
            position (int): Slots that were taken.

        Returns:
            list[str]: What has changed since then, for the log.
        """
        self.epoch, *next_epochs = [
            VirtualEpoch(
                **dict(epoch, tiers=tuple(Tier(*t) for t in epoch['tiers'])))
            for epoch in state_dict['epochs']
        ]
        self._next_epochs = deque(next_epochs)
        self.num_epochs = state_dict['num_epochs']
        self._full_until = state_dict['full_until']
        self._pruned_until = state_dict['pruned_until']
        self._logged_start = state_dict['logged_start']
        plan_scores = state_dict['plan_scores']
        self.plan_scores = (None
                            if plan_scores is None else plan_scores.numpy())
        self._mean_score = state_dict['mean_score']
        self._non_finite = state_dict['non_finite']

        changes = []
        self.origin = Origin(*state_dict['origin'])
        if state_dict['slots_per_iter'] != self.slots_per_iter:
            changes.append(
                f'an iteration has {self.slots_per_iter} images instead of '
                f'{state_dict["slots_per_iter"]}')
        # After a validation FlexibleRunner saves one iteration too many.
        if changes or self._iteration_at(position) != iteration:
            self.origin = Origin(iteration, position,
                                 self.epoch.covered_until(position),
                                 state_dict['full_equivalent'])
        after_plan = self.origin.iteration - (
            self.origin.position - self._pruned_until) // self.slots_per_iter
        self.annealing_iter = max(self.annealing_iter, after_plan)
        if state_dict['annealing_iter'] != self.annealing_iter:
            changes.append(
                f'annealing begins at iteration {self.annealing_iter} instead '
                f'of {state_dict["annealing_iter"]}')
        if (state_dict['policy_type'] == _type_name(self.policy)
                and 'policy_state' in state_dict):
            self.policy.load_state_dict(state_dict['policy_state'])
        if state_dict['policy'] != _name(self.policy):
            changes.append(f'the next plans are those of {self.policy!r} '
                           f'instead of {state_dict["policy"]}')
        return changes

    def begin(self, iteration: int, position: int,
              full_equivalent: float) -> None:
        """Begin within a training that went on without scores until now.

        Args:
            iteration (int): Iterations of the training until then.
            position (int): Slots of full passes until then.
            full_equivalent (float): Iterations that stock training needs for
                what was trained on until then.
        """
        passes, rest = divmod(position, self.num_samples)
        self.origin = Origin(iteration, position, position / self.num_samples,
                             full_equivalent)
        # The sampler goes on with the rest of this pass.
        self.epoch = VirtualEpoch(
            position - rest,
            float(passes),
            self.num_samples,
            threshold=0.,
            tiers=(Tier(self.num_samples, self.num_samples), ),
            mean_score=1.,
            non_finite=0,
            note='',
            logged=False)
        self._full_until = position + self.num_samples


def _name(policy: Callable) -> str:
    """What a policy is, without the address of an object."""
    return repr(policy).split(' at 0x')[0]


def _type_name(policy: Callable) -> str:
    return f'{type(policy).__module__}.{type(policy).__qualname__}'
