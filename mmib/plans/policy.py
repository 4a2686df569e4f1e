# Copyright (c) mmib contributors. All rights reserved.
"""The base class of policies, and what a policy knows about a run."""
import copy
import inspect
import re
from dataclasses import replace
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

import numpy as np

from ..errors import Refusal
from .plan import EpochPlan, checked


class Progress(NamedTuple):
    """The progress of a run when a plan is drawn, in slots.

    Args:
        spent (float): Slots that the run has spent before the plan.
        covered (float): Slots of the passes until then if nothing was pruned.
            A pruned epoch counts as a pass.
        annealing (float): Slots of annealing.
        length (float): Slots of the whole run; by epochs, slots of the
            baseline.
        of_baseline (bool): Whether ``length`` is the length of the baseline,
            and not of the shorter run. Defaults to False.
        norms (tuple[np.ndarray, np.ndarray], optional): For each tier, the
            mean squared norm of its images over the visits since scores were
            last read, NaN for a tier without visits, and the standard error of
            this mean, float64 of shape (T,). None if no scores are read for
            this plan. Defaults to None.
    """

    spent: float
    covered: float
    annealing: float
    length: float
    of_baseline: bool = False
    norms: Optional[Tuple[np.ndarray, np.ndarray]] = None

    def kept_share(self, ratio: float) -> float:
        """Return the share of the images to keep from here on, in [0, 1], so
        that the run makes as many passes as the baseline, in ``ratio`` times
        the slots of the baseline."""
        own = self.length * (ratio if self.of_baseline else 1)
        baseline = self.length / (1 if self.of_baseline else ratio)
        left = own - self.annealing - self.spent
        to_cover = baseline - self.annealing - self.covered
        if to_cover <= left:
            return 1.
        return max(left, 0.) / max(to_cover, 1e-9)


class Policy:
    """Chooses by the scores which images an epoch trains on.

    Derive a policy of your own from this class, and implement
    :meth:`__call__`. Keep each argument of ``__init__`` in an attribute of the
    same name. What changes from plan to plan belongs in :meth:`state_dict`.

    Examples:
        >>> class KeepHalf(Policy):
        >>>     def __call__(self, scores, rng):
        >>>         indices = rng.permutation(len(scores))[::2]
        >>>         weight = len(scores) / len(indices)
        >>>         return EpochPlan(
        >>>             indices, np.full(len(indices), weight, np.float32))
    """

    rescale = True
    """bool: Whether weights make up for the pruned images, for the forecast
    and the log. If not, all weights are 1."""
    prunes = True
    """bool: Whether plans leave images out. If not, the run trains like the
    baseline, and keeps scores."""
    default_ratio = 0.6
    """float: Steps of the run over steps of the baseline, in (0, 1],
    for a config that is converted without a ratio, and for a Session with
    ``stream=True``."""

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        """Draw the plan of an epoch.

        Args:
            scores (np.ndarray): Score of each image, float32 of shape (N,).
            rng (np.random.Generator): Source of every random choice. All
                ranks must draw the same plan.

        Returns:
            EpochPlan: The plan, in random order.
        """
        raise NotImplementedError

    def expected_share(self, progress: Progress) -> Optional[float]:
        """Return the kept share to forecast, or None if the share depends on
        the losses.

        Args:
            progress (Progress): The progress before the first plan that
                prunes.
        """
        return None

    def begin_plan(self, progress: Progress) -> None:
        """Receive the progress of the run before the next plan is drawn."""

    def state_dict(self) -> Dict[str, Any]:
        """Return arrays and plain Python values that the next plans depend on,
        besides the scores."""
        return {}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Resume where :meth:`state_dict` was called."""

    def __repr__(self) -> str:
        arguments = []
        for name, parameter in inspect.signature(
                type(self)).parameters.items():
            value = getattr(self, name, parameter.default)
            # A switch such as `rescale` is shown only if it isn't the default.
            if (parameter.default is not value
                    or not isinstance(value, (bool, type(None)))):
                arguments.append(f'{name}={value}')
        return _without_addresses(
            f'{type(self).__name__}({", ".join(arguments)})')


class FunctionPolicy(Policy):
    """A policy that calls a function.

    Args:
        function (Callable): ``function(scores, rng) -> EpochPlan``.

    Raises:
        Refusal: If ``function`` has a state, which checkpoints would lose.
    """

    def __init__(self, function: Callable) -> None:
        if hasattr(function, 'state_dict'):
            raise Refusal(
                f'{type(function).__name__} has a `state_dict` and is not a '
                '`mmib.pruning.Policy`: derive it from that class, so that '
                'its state is kept in checkpoints.')
        self.function = function

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        return self.function(scores, rng)

    def __deepcopy__(self, memo: dict) -> 'FunctionPolicy':
        # A copy of a bound method would call a copy of its object.
        return self

    def __repr__(self) -> str:
        return _without_addresses(repr(self.function))


def _without_addresses(text: str) -> str:
    """Return a description without what differs between processes."""
    return re.sub(' at 0x[0-9a-f]+', '', text)


def as_policy(policy: Union[Policy, Callable]) -> Policy:
    """Return a policy as it is, and a function as a policy.

    Raises:
        Refusal: If ``policy`` is neither.
    """
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, type) or not callable(policy):
        raise Refusal(
            '`policy` must be a policy of `mmib.pruning`, such as Neyman(ratio'
            '=0.6), a function, or in a config a dict such as dict(type='
            f"'Neyman'), but got {policy!r}.")
    return FunctionPolicy(policy)


def draw_plan(policy: Policy,
              scores: np.ndarray,
              progress: Progress,
              rng: np.random.Generator,
              tail: Optional[Callable[[int], int]] = None) -> EpochPlan:
    """Let a policy draw the plan of an epoch.

    Args:
        policy (Policy): The policy.
        scores (np.ndarray): Score of each image, float32 of shape (N,).
        progress (Progress): The progress of the run.
        rng (np.random.Generator): Source of every random choice.
        tail (Callable, optional): ``tail(n)`` returns how many of the ``n``
            slots of a plan that prunes to leave out, see
            :meth:`EpochPlan.without_tail`. Defaults to None, for none.

    Returns:
        EpochPlan: The checked plan. The slots of a biased plan have tier 0,
        which excludes their visits from V and from what a policy learns.

    Raises:
        Refusal: If the plan can't be trained on.
    """
    policy.begin_plan(progress)
    # The next plans may be drawn from the same scores, so a policy that sorts
    # the scores in place must fail.
    scores = scores.view()
    scores.flags.writeable = False
    plan = _checked_plan(policy, policy(scores, rng), len(scores))
    is_unbiased = plan.is_unbiased(len(scores))
    count = tail(len(plan)) if tail and not plan.is_full else 0
    if count:
        plan = plan.without_tail(count, rng)
    if is_unbiased:
        return plan
    return replace(plan, tier_of_slot=np.zeros_like(plan.tier_of_slot))


def try_policy(policy: Policy, pass_length: int, progress: Progress) -> None:
    """Let a copy of a policy draw a plan before the run, so that a mistake of
    the policy shows before the first epoch. The scores are made up, so a plan
    without an image is no mistake. A function that may keep something outside
    of itself, such as a counter, isn't called.

    Args:
        policy (Policy): The policy.
        pass_length (int): Number of scores.
        progress (Progress): The progress of the first plan that prunes.

    Raises:
        Refusal: If the plan has a wrong type or shape.
    """
    if isinstance(policy, FunctionPolicy):
        if not inspect.isfunction(policy.function):
            return
        if policy.function.__closure__ is not None:
            return
    scores = np.linspace(0.5, 1.5, pass_length, dtype=np.float32)
    try:
        policy = copy.deepcopy(policy)
        policy.begin_plan(progress)
        plan = policy(scores, np.random.default_rng(0))
    # The policy of a user may need what a loop learns in its first epoch.
    except Exception:
        return
    if not isinstance(plan, EpochPlan) or np.size(plan.indices):
        _checked_plan(policy, plan, pass_length)


def _checked_plan(policy: Policy, plan: Any, pass_length: int) -> EpochPlan:
    try:
        return checked(plan, pass_length)
    except Refusal as error:
        raise Refusal(
            f'The plan of {policy!r} can\'t be trained on: {error}. Change '
            'the policy.') from None


def check_argument(name: str, value: Any, fits: bool, says: str) -> None:
    """Raise a Refusal that names the argument of a policy, unless the value
    fits."""
    if not fits:
        raise Refusal(f'`{name}` {says}, but got {value!r}: change it in the '
                      'policy.')


def check_ratio(ratio: float, name: str = 'ratio') -> None:
    """Raise a Refusal unless a share to prune is in [0, 1)."""
    check_argument(name, ratio, 0 <= ratio < 1,
                   'is a share of images to prune and must be in [0, 1)')


def is_count(number: Any) -> bool:
    """Return whether a value is a positive integer."""
    return type(number) is int and number > 0
