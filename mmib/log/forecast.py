# Copyright (c) mmib contributors. All rights reserved.
"""What pruning will make of a schedule, before the first step."""
from typing import NamedTuple, Optional

from ..accounting import Accounting
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
    """

    policy: str
    until: str
    iters: float
    share: Optional[float] = None
    mean_weight: Optional[float] = None
    full_iters: Optional[float] = None

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

    def covers(self, accounting: Accounting) -> str:
        """A sentence on the passes that it covers, empty where that depends
        on the losses.

        Args:
            accounting (Accounting): Length of the training and of a pass.
        """
        if self.full_iters is None:
            return ''
        if accounting.unit == 'epoch':
            if self.share == 1:
                return f'It will take about {self.iters:.0f} iterations.'
            return (f'It will take about {self.iters:.0f} iterations instead '
                    f'of {self.full_iters:.0f}: '
                    f'{self.full_iters - self.iters:.0f} saved.')
        passes = (
            self.full_iters * accounting.slots_per_iter /
            accounting.pass_length)
        if self.share == 1:
            return f'It will cover {passes:.1f} passes over the data.'
        return (f'It will cover {passes:.1f} passes over the data, for which '
                f'the baseline needs {self.full_iters:.0f} iterations: '
                f'{self.full_iters - self.iters:.0f} saved.')


def forecast(policy: Policy,
             accounting: Accounting,
             first_pruned: int,
             normalize: bool = False) -> Forecast:
    """Forecast a training in which nothing was trained on yet.

    Where the number of images isn't known, take an accounting with one slot
    for a pass and for an iteration: only the first pass, which is full, is
    then left out.

    Args:
        policy (Policy): Draws the plans that prune.
        accounting (Accounting): Length of the training.
        first_pruned (int): Slots before the first of these plans.
        normalize (bool): Whether the mean weight of a plan is 1. Defaults to
            False.
    """
    name = repr(policy)
    until = (f'{accounting.unit} {accounting.annealing_at} of '
             f'{accounting.length}')
    if accounting.prunes_nothing(first_pruned):
        share = 1.
    else:
        share = policy.expected_share(accounting.first_progress(first_pruned))
    if share is None:
        return Forecast(name, until, accounting.max_iters)
    mean_weight = 1 / share if policy.rescale and not normalize else 1.
    iters, full_iters = accounting.outcome(share, first_pruned)
    return Forecast(name, until, iters, share, mean_weight, full_iters)
