# Copyright (c) mmib contributors. All rights reserved.
"""What every policy is, and what it is told."""
import inspect
from typing import Any, Callable, Dict, NamedTuple, Optional, Union

import numpy as np

from .plan import EpochPlan

CHANGE_POLICY = 'change it in the `policy` of InfoBatchHook in `custom_hooks`.'
"""str: End of the errors of policies: which config line to change."""


class TierNorms(NamedTuple):
    """Norms of the gradients of images, by the tier of their visit.

    Args:
        mean_squares (np.ndarray): Mean squared norm over the images of each
            tier, float64 of shape (T,). NaN of a tier without visits.
        errors (np.ndarray): Standard error of each, float64 of shape (T,).
    """

    mean_squares: np.ndarray
    errors: np.ndarray


class Progress(NamedTuple):
    """What is left of a training when a plan is drawn.

    Args:
        slots_left (float): Slots that the training has until annealing, from
            the start of this plan on.
        full_slots (float): Slots that full passes would take to cover what is
            to be covered until then.
        norms (TierNorms, optional): What the visits since the last plan tell
            of its tiers. None if scores were not read since then. Defaults to
            None.
    """

    slots_left: float
    full_slots: float
    norms: Optional[TierNorms] = None


class Policy:
    """Decides which images a virtual epoch trains on, by their scores.

    A policy of your own derives from it and implements :meth:`__call__`. It
    keeps each argument of ``__init__`` as an attribute of the same name.
    What changes from plan to plan belongs into :meth:`state_dict`, so that a
    resumed training goes on with it.

    Examples:
        >>> class KeepHalf(Policy):
        >>>     def __call__(self, scores, rng):
        >>>         indices = rng.permutation(len(scores))[::2]
        >>>         weight = len(scores) / len(indices)
        >>>         return EpochPlan(
        >>>             indices, np.full(len(indices), weight, np.float32))
    """

    rescale = True
    """bool: Whether the weights of the kept images make up for the pruned
    ones. If not, they are 1."""
    budget = 1.
    """float: Iterations of the training over those of the baseline that cover
    as many passes, in (0, 1]."""
    full_iters: Optional[int] = None
    """int, optional: Iterations of the baseline, in place of the budget, in
    older configs."""

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        """Draw the plan of a virtual epoch.

        Args:
            scores (np.ndarray): Score of each image, float32 of shape (N,).
            rng (np.random.Generator): Source of every random choice: ranks
                that draw different plans stop.

        Returns:
            EpochPlan: The plan, in random order.
        """
        raise NotImplementedError

    def note_on_schedule(self, max_iters: int) -> str:
        """What the user should know before the first step.

        Args:
            max_iters (int): Iterations of the training.

        Returns:
            str: A warning. Empty by default.
        """
        return ''

    def expected_share(self, progress: Progress) -> Optional[float]:
        """The kept share to expect of the plans that prune, for a forecast.

        Args:
            progress (Progress): Where the first of them begins.

        Returns:
            float, optional: It, or None where it depends on the losses. None
            by default.
        """
        return None

    def begin_plan(self, progress: Progress) -> None:
        """Be told where in the training the next plan begins.

        Args:
            progress (Progress): Where that is.
        """

    def state_dict(self) -> Dict[str, Any]:
        """Everything that the next plans follow from, besides the scores.

        Returns:
            dict: Arrays and plain Python values. Empty by default.
        """
        return {}

    def state_form(self) -> Any:
        """What the state in a checkpoint must look like, or the training
        stops before its first step.

        Returns:
            Any: A form, see :mod:`mmib.pruning.form`. By default any dict.
        """
        return {}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was called.

        Args:
            state_dict (dict): What it returned.
        """

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
        TypeError: If it has a state, which would be lost in a checkpoint.
    """

    def __init__(self, function: Callable) -> None:
        if hasattr(function, 'state_dict'):
            raise TypeError(
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
    """Make a policy of a plain function; policies stay as they are."""
    return policy if isinstance(policy, Policy) else FunctionPolicy(policy)


def check_ratio(ratio: float, name: str) -> None:
    """Raise a ValueError unless a share to prune is in [0, 1)."""
    if not 0 <= ratio < 1:
        raise ValueError(f'`{name}` is the share of images to prune and must '
                         f'be in [0, 1), but got {ratio}: {CHANGE_POLICY}')


def is_count(number: Any) -> bool:
    """Whether something is a positive integer."""
    return type(number) is int and number > 0
