# Copyright (c) mmib contributors. All rights reserved.
"""What pruning will make of a schedule, before the first step."""
from typing import List, NamedTuple, Optional

from ..clock import Clock
from ..pruning import Policy


class Forecast(NamedTuple):
    """What is known of a training that begins.

    Args:
        policy (str): The policy that draws the plans.
        until (str): When annealing begins.
        note (str): What the policy says of the schedule, if anything.
        iters (float): Iterations of the training. Where epochs count and the
            share isn't known, iterations of the baseline.
        share (float, optional): Kept share of the plans that prune, 1 if no
            plan does. None where the share depends on the losses, and then
            the next three are None too.
        mean_weight (float, optional): Mean weight of these plans.
        full_iters (float, optional): Iterations of the baseline that cover as
            many passes.
        passes (float, optional): These passes. None where the number of
            images isn't known.
    """

    policy: str
    until: str
    note: str
    iters: float
    share: Optional[float] = None
    mean_weight: Optional[float] = None
    full_iters: Optional[float] = None
    passes: Optional[float] = None

    @property
    def lines(self) -> List[str]:
        """list[str]: Sentences on when a training prunes, how much, and what
        comes of that."""
        return [
            line for line in (self.when, self.how_much, self.covers) if line
        ]

    @property
    def when(self) -> str:
        """str: A sentence on when the training prunes."""
        if self.share == 1:
            return f'{self.policy} prunes nothing.'
        return f'{self.policy} prunes until {self.until}.'

    @property
    def how_much(self) -> str:
        """str: A sentence on how much the training prunes."""
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
        if self.passes is None:
            share = self.iters / self.full_iters
            return (f'It runs about {100 * share:.0f} % of the iterations '
                    'that the baseline needs for as many passes.')
        saved = self.full_iters - self.iters
        text = (f'It runs {self.iters:.0f} iterations and covers '
                f'{self.passes:.1f} passes over the data')
        if saved < 0.5:
            return f'{text}.'
        return (f'{text}, for which the baseline needs '
                f'{self.full_iters:.0f} iterations: {saved:.0f} saved.')


def forecast(policy: Policy,
             clock: Clock,
             normalize: bool = False,
             knows_images: bool = True) -> Forecast:
    """Forecast a training in which nothing was trained on yet.

    Args:
        policy (Policy): Draws the plans that prune.
        clock (Clock): Length of the training.
        normalize (bool): Whether the mean weight of a plan is 1. Defaults to
            False.
        knows_images (bool): Whether the clock has the slots of a pass. If not,
            a pass and an iteration of the clock have one slot. Defaults to
            True.
    """
    known = Forecast(
        repr(policy), f'{clock.unit} {clock.annealing_at} of {clock.length}',
        policy.note_on_schedule(clock.schedule_iters), clock.schedule_iters)
    share: Optional[float] = 1.
    if not clock.prunes_nothing:
        share = policy.expected_share(clock.first_progress(policy))
    if share is None:
        return known
    iters, full_iters, passes = clock.outcome(share)
    return known._replace(
        iters=iters,
        share=share,
        mean_weight=1 / share if policy.rescale and not normalize else 1.,
        full_iters=full_iters,
        passes=passes if knows_images else None)
