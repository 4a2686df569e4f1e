# Copyright (c) mmib contributors. All rights reserved.
"""The base class of policies, and what a policy is told."""
import inspect
from typing import Any, Callable, Dict, NamedTuple, Optional, Union

import numpy as np

from ..errors import TypeRefusal, ValueRefusal
from .plan import EpochPlan


class TierNorms(NamedTuple):
    """Norms of the gradients of the images in each tier of a plan.

    Args:
        mean_squares (np.ndarray): Mean squared norm of each tier, float64 of
            shape (T,). NaN for a tier without visits.
        errors (np.ndarray): Standard errors of these means, of shape (T,).
    """

    mean_squares: np.ndarray
    errors: np.ndarray


class Progress(NamedTuple):
    """What is left of a training when a plan is drawn.

    Args:
        slots_left (float): Slots that the training has until annealing.
        full_slots (float): Slots that full passes would take to cover what
            the training still has to cover until annealing.
        norms (TierNorms, optional): Norms that followed the last plan. None
            where no scores were read since then. Defaults to None.
    """

    slots_left: float
    full_slots: float
    norms: Optional[TierNorms] = None


class Policy:
    """Decides by the scores which images a virtual epoch trains on.

    A policy of your own derives from this class and implements
    :meth:`__call__`. Each argument of its ``__init__`` is an attribute of the
    same name. What changes from plan to plan belongs into :meth:`state_dict`.

    Examples:
        >>> class KeepHalf(Policy):
        >>>     def __call__(self, scores, rng):
        >>>         indices = rng.permutation(len(scores))[::2]
        >>>         weight = len(scores) / len(indices)
        >>>         return EpochPlan(
        >>>             indices, np.full(len(indices), weight, np.float32))
    """

    rescale = True
    """bool: Whether weights make up for the pruned images. If not, all
    weights are 1."""
    prunes = True
    """bool: Whether plans leave images out. If not, the training is the
    baseline, and only scores."""
    budget = 1.
    """float: Iterations of the training over those of the baseline, in
    (0, 1]."""
    full_iters: Optional[int] = None
    """int, optional: Iterations of the baseline, by which older configs tell
    the budget."""

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        """Draw the plan of a virtual epoch.

        Args:
            scores (np.ndarray): Score of each image, float32 of shape (N,).
            rng (np.random.Generator): Source of every random choice. All
                ranks must draw the same plan.

        Returns:
            EpochPlan: The plan, in random order.
        """
        raise NotImplementedError

    def note_on_schedule(self, max_iters: int) -> str:
        """A warning before the first step of a training with ``max_iters``
        iterations, or ''."""
        return ''

    def expected_share(self, progress: Progress) -> Optional[float]:
        """The kept share to forecast, or None where the losses decide.

        Args:
            progress (Progress): Where the first plan that prunes begins.
        """
        return None

    def begin_plan(self, progress: Progress) -> None:
        """Be told where in the training the next plan begins."""

    def state_dict(self) -> Dict[str, Any]:
        """Arrays and plain Python values that the next plans follow from,
        besides the scores."""
        return {}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Go on from a state that :meth:`state_dict` returned."""

    def __repr__(self) -> str:
        arguments = []
        for name, parameter in inspect.signature(
                type(self)).parameters.items():
            value = getattr(self, name, parameter.default)
            # A switch such as `rescale` is told only where it was changed.
            if (parameter.default is not value
                    or not isinstance(value, (bool, type(None)))):
                arguments.append(f'{name}={value}')
        return f'{type(self).__name__}({", ".join(arguments)})'


class FunctionPolicy(Policy):
    """A plain function as a policy.

    Args:
        function (Callable): ``function(scores, rng) -> EpochPlan``.

    Raises:
        TypeError: If ``function`` has a state, which checkpoints would lose.
    """

    def __init__(self, function: Callable) -> None:
        if hasattr(function, 'state_dict'):
            raise TypeRefusal(
                f'{type(function).__name__} has a `state_dict` and is no '
                '`mmib.pruning.Policy`: derive it from that class, so that '
                'its state is kept in checkpoints.')
        self.function = function

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        return self.function(scores, rng)

    def __repr__(self) -> str:
        # Without the address of an object.
        return repr(self.function).split(' at 0x')[0]


def as_policy(policy: Union[Policy, Callable]) -> Policy:
    """Wrap a plain function in a policy. A policy stays as it is."""
    return policy if isinstance(policy, Policy) else FunctionPolicy(policy)


def check_argument(name: str, value: Any, fits: bool, says: str) -> None:
    """Raise a ValueError that names an argument of a policy, unless its value
    fits."""
    if not fits:
        raise ValueRefusal(
            f'`{name}` {says}, but got {value!r}: change it in the `policy` of'
            ' InfoBatchHook in `custom_hooks`.')


def check_ratio(ratio: float, name: str = 'ratio') -> None:
    """Raise a ValueError unless a share to prune is in [0, 1)."""
    check_argument(name, ratio, 0 <= ratio < 1,
                   'is the share of images to prune and must be in [0, 1)')


def is_count(number: Any) -> bool:
    """Whether something is a positive integer."""
    return type(number) is int and number > 0
