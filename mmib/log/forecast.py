# Copyright (c) mmib contributors. All rights reserved.
"""What pruning will make of a schedule, before the first step."""
from typing import NamedTuple, Optional

from ..clock import Clock
from ..pruning import Policy


class Forecast(NamedTuple):
    """What is known of a training that begins.

    Args:
        policy (str): What draws the plans.
        until (str): When annealing begins.
        iters (float): Iterations of the training, or where epochs count and
            the share isn't known, of the baseline.
        share (float, optional): Kept share of the plans that prune, 1 if none
            does. None where it depends on the losses, as do the next two.
        mean_weight (float, optional): Mean weight of these plans.
        full_iters (float, optional): Iterations of the baseline that cover as
            many passes.
        passes (float, optional): These passes.
    """

    policy: str
    until: str
    iters: float
    share: Optional[float] = None
    mean_weight: Optional[float] = None
    full_iters: Optional[float] = None
    passes: Optional[float] = None

    @property
    def when(self) -> str:
        """str: A sentence on when it prunes."""
        if self.share == 1:
            return f'{self.policy} prunes nothing.'
        return f'{self.policy} prunes until {self.until}.'

    @property
    def how_much(self) -> str:
        """str: A sentence on how much it prunes."""
        if self.share is None:
            return 'How much it keeps depends on the losses.'
        if self.share == 1:
            return ''
        return (f'It keeps about {self.share:.3f} of the images, with a mean '
                f'weight of {self.mean_weight:.2f}.')

    @property
    def covers(self) -> str:
        """str: A sentence on the passes and the iterations of the training,
        empty where these depend on the losses."""
        if self.full_iters is None:
            return ''
        saved = self.full_iters - self.iters
        text = (f'It runs {self.iters:.0f} iterations and covers '
                f'{self.passes:.1f} passes over the data')
        if saved < 0.5:
            return f'{text}.'
        return (f'{text}, for which the baseline needs '
                f'{self.full_iters:.0f} iterations: {saved:.0f} saved.')


def forecast(policy: Policy,
             clock: Clock,
             normalize: bool = False) -> Forecast:
    """Forecast a training in which nothing was trained on yet.

    Where the number of images isn't known, take a clock with one slot for a
    pass and for an iteration.

    Args:
        policy (Policy): Draws the plans that prune.
        clock (Clock): Length of the training.
        normalize (bool): Whether the mean weight of a plan is 1. Defaults to
            False.
    """
    name = repr(policy)
    until = f'{clock.unit} {clock.annealing_at} of {clock.length}'
    share: Optional[float] = 1.
    if not clock.prunes_nothing:
        share = policy.expected_share(clock.first_progress(policy))
    if share is None:
        return Forecast(name, until, clock.schedule_iters)
    mean_weight = 1 / share if policy.rescale and not normalize else 1.
    iters, full_iters, passes = clock.outcome(share)
    return Forecast(name, until, iters, share, mean_weight, full_iters, passes)
