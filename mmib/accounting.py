# Copyright (c) mmib contributors. All rights reserved.
"""How far the training is: passes covered, iterations saved, and whether it
is annealing.

The stream of slots is the clock. An iteration has ``slots_per_iter`` of them,
until a training is resumed with another batch size or on another number of
ranks.
"""
from typing import List, NamedTuple, Optional, Sequence, Tuple

from .pruning import Progress, ScoreHistogram, Tier, TierNorms
from .worth import VarianceRatio


class VirtualEpoch(NamedTuple):
    """What is known of a plan after its slots are gone.

    Args:
        start (int): Number of its first slot in the stream of all ranks.
        covered (float): Virtual epochs before it.
        size (int): Its slots, before annealing cut it short.
        threshold (float): That of its plan, 0 if nothing was pruned.
        tiers (Sequence[Tier]): Its tiers, by increasing score.
        mean_score (float): Mean of all scores when it was drawn.
        non_finite (int): Losses until then that weren't finite.
        note (str): What the policy says of it.
        logged (bool): Whether it has a line in the log.
        ratio (VarianceRatio, optional): V of the visits since scores were read
            before. None where it can't be told.
        reliability (float, optional): Correlation of the score that an image
            had with its next one, over these visits. None where it can't be
            told.
        histogram (ScoreHistogram, optional): Scores of the images and of its
            slots. None of full passes, and where it isn't logged.
        mean_weight (float): Mean weight of its slots.
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
    ratio: Optional[VarianceRatio] = None
    reliability: Optional[float] = None
    histogram: Optional[ScoreHistogram] = None
    mean_weight: float = 1.

    def state_dict(self) -> dict:
        """It as plain Python values."""
        return dict(
            self._asdict(),
            tiers=[tuple(tier) for tier in self.tiers],
            ratio=self.ratio and tuple(self.ratio),
            histogram=self.histogram and tuple(self.histogram))

    @classmethod
    def from_state(cls, state: dict) -> 'VirtualEpoch':
        """Make it of :meth:`state_dict`."""
        # Version 0.1.0 had neither of them.
        ratio, histogram = state.get('ratio'), state.get('histogram')
        return cls(**dict(
            state,
            tiers=tuple(Tier(*tier) for tier in state['tiers']),
            ratio=ratio and VarianceRatio(*ratio),
            histogram=histogram and ScoreHistogram(*histogram)))

    def covered_until(self, position: int) -> float:
        """Virtual epochs before a slot of it or its end. If annealing cuts
        it short, it counts with the part that was issued."""
        # In an epoch some slots may come again, to fill a step of all ranks.
        return self.covered + min((position - self.start) / self.size, 1.)


class Origin(NamedTuple):
    """From where on an iteration has as many slots as now.

    Args:
        iteration (int): Iterations before it.
        position (int): Slots before it.
        covered (float): Virtual epochs before it.
        full_equivalent (float): Iterations of the baseline that cover as
            many.
    """

    iteration: int = 0
    position: int = 0
    covered: float = 0.
    full_equivalent: float = 0.


class Accounting:
    """Turns slots into iterations, passes and savings.

    Args:
        pass_length (int): Slots of a full pass.
        slots_per_iter (int): Slots of an iteration, of all ranks.
        max_iters (int): Iterations of the training.
        delta (float): Fraction of the iterations after which the training is
            annealing, in [0, 1].
        start (float): Fraction of the iterations before which nothing is
            pruned. Defaults to 0.
    """

    def __init__(self,
                 pass_length: int,
                 slots_per_iter: int,
                 max_iters: int,
                 delta: float,
                 start: float = 0.) -> None:
        self.pass_length = pass_length
        self.slots_per_iter = slots_per_iter
        self.max_iters = max_iters
        self.start_iter = round(start * max_iters)
        self.annealing_iter = round(delta * max_iters)
        self.origin = Origin()

    unit = 'iteration'
    """str: What the training counts."""

    @property
    def since(self) -> Origin:
        """Origin: From where on it is known what was pruned."""
        return self.origin

    @property
    def annealing_at(self) -> int:
        """int: Annealing begins after so many of :attr:`unit`."""
        return self.annealing_iter

    @property
    def length(self) -> int:
        """int: The training has so many of :attr:`unit`."""
        return self.max_iters

    def now(self, iteration: int) -> int:
        """So many of :attr:`unit` are over.

        Args:
            iteration (int): Iterations of the training until now.
        """
        return iteration

    def is_annealing(self, position: int) -> bool:
        """Whether nothing is pruned from a slot on."""
        return position >= self.annealing_start

    def prunes_nothing(self, first: int) -> bool:
        """Whether annealing begins before anything can be pruned.

        Args:
            first (int): Number of the first slot that may be pruned.
        """
        return self.is_annealing(first)

    def covered(self, last: Optional[VirtualEpoch], start: int) -> float:
        """Virtual epochs before a plan.

        Args:
            last (VirtualEpoch, optional): The one before.
            start (int): Number of the first slot.
        """
        return last.covered_until(start) if last else self.origin.covered

    @property
    def annealing_start(self) -> int:
        """int: Slots before annealing."""
        return self._slots_until(self.annealing_iter)

    @property
    def pruning_start(self) -> int:
        """int: Slots before pruning may begin."""
        return self._slots_until(self.start_iter)

    def _slots_until(self, iteration: int) -> int:
        return self.origin.position + self.slots_per_iter * (
            iteration - self.origin.iteration)

    def iteration_at(self, position: int) -> float:
        """Iterations of the training before a slot."""
        return self.origin.iteration + (
            position - self.origin.position) / self.slots_per_iter

    def full_equivalent(self, covered: float) -> float:
        """Iterations of the baseline that cover so many virtual epochs."""
        return self.origin.full_equivalent + (
            covered -
            self.origin.covered) * self.pass_length / self.slots_per_iter

    def saved_iters(self, epoch: VirtualEpoch, position: int) -> float:
        """Iterations that the baseline needs more for the same virtual
        epochs.

        Args:
            epoch (VirtualEpoch): The virtual epoch at the position.
            position (int): Slots of the training until then.
        """
        return self.full_equivalent(
            epoch.covered_until(position)) - self.iteration_at(position)

    def outcome(self, share: float, first: int) -> Tuple[float, float]:
        """What a training comes to in which nothing was trained on yet.

        Args:
            share (float): Kept share of the plans that prune.
            first (int): Number of the first slot that may be pruned.

        Returns:
            tuple[float, float]: Its iterations, and those of the baseline
            that cover as many passes.
        """
        pruned_iters = (self.annealing_start - first) / self.slots_per_iter
        return self.max_iters, self.max_iters + pruned_iters * (1 / share - 1)

    def first_progress(self, first: int) -> Progress:
        """What a policy is told of the first plan that prunes.

        Args:
            first (int): Number of its first slot.
        """
        return self.progress(first, first / self.pass_length, first)

    def progress(self,
                 start: int,
                 covered: float,
                 first: int,
                 norms: Optional[TierNorms] = None) -> Progress:
        """What a policy is told of a plan.

        Args:
            start (int): Number of the plan's first slot.
            covered (float): Virtual epochs before it.
            first (int): Number of the first slot that may be pruned.
            norms (TierNorms, optional): What visits tell of the tiers.
                Defaults to None.
        """
        pruning = max(self.annealing_start - first, 1)
        return Progress(
            slots_per_iter=self.slots_per_iter,
            max_iters=self.max_iters,
            slots_left=self.annealing_start - start,
            annealing_slots=(self.max_iters - self.annealing_iter) *
            self.slots_per_iter,
            full_equivalent=self.full_equivalent(covered),
            # In the middle of a plan, as it lasts a while.
            done=min((start + self.pass_length / 2 - first) / pruning, 1.),
            norms=norms)

    def state_dict(self, covered: float) -> dict:
        """Everything that the accounts follow from.

        Args:
            covered (float): Virtual epochs until now.

        Returns:
            dict: Plain Python values.
        """
        return dict(
            slots_per_iter=self.slots_per_iter,
            annealing_iter=self.annealing_iter,
            full_equivalent=self.full_equivalent(covered),
            origin=tuple(self.origin))

    def load_state_dict(self, state_dict: dict, iteration: int, position: int,
                        covered: float, pruned_until: int) -> List[str]:
        """Go on where :meth:`state_dict` was called.

        The batch size, the number of ranks, ``delta`` and ``max_iters`` are
        those of the config that goes on. A plan that was drawn is kept, so
        annealing begins after it.

        Args:
            state_dict (dict): What it returned.
            iteration (int): Iterations of the training until then.
            position (int): Slots that were taken.
            covered (float): Virtual epochs until then.
            pruned_until (int): Slots before the end of the last plan that
                prunes.

        Returns:
            list[str]: What has changed since then, for the log.
        """
        changes = []
        self.origin = Origin(*state_dict['origin'])
        if state_dict['slots_per_iter'] != self.slots_per_iter:
            changes.append(
                f'an iteration has {self.slots_per_iter} images instead of '
                f'{state_dict["slots_per_iter"]}')
        # After a validation FlexibleRunner saves one iteration too many.
        if changes or self.iteration_at(position) != iteration:
            self.origin = Origin(iteration, position, covered,
                                 state_dict['full_equivalent'])
        after_plan = self.origin.iteration - (
            self.origin.position - pruned_until) // self.slots_per_iter
        self.annealing_iter = max(self.annealing_iter, after_plan)
        if state_dict['annealing_iter'] != self.annealing_iter:
            changes.append(
                f'annealing begins at iteration {self.annealing_iter} instead '
                f'of {state_dict["annealing_iter"]}')
        return changes

    def begin(self, iteration: int, position: int,
              full_equivalent: float) -> None:
        """Begin within a training that went on without scores until now.

        Args:
            iteration (int): Iterations of the training until then.
            position (int): Slots of full passes until then.
            full_equivalent (float): Iterations of the baseline that cover as
                many passes as what was trained on until then.
        """
        self.origin = Origin(iteration, position, position / self.pass_length,
                             full_equivalent)
