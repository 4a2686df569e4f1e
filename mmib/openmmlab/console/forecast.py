# Copyright (c) mmib contributors. All rights reserved.
"""What pruning will make of a schedule, before the first step."""
import math
from typing import List, NamedTuple, Optional

from ...plans import Policy
from ..runner.iterations import Iterations


class Forecast(NamedTuple):
    """What is known of a run before it begins.

    Args:
        lines (list[str]): Sentences on when the run prunes, how much, and what
            comes of that.
        share (float, optional): Kept share of the plans that prune, 1 if no
            plan does. None where the share depends on the losses, and then
            nothing else is known.
        mean_weight (float, optional): Mean weight of these plans.
        iters (float): Iterations of the run, NaN if not known. Where the data
            isn't read, only the ratio of this number and the next one counts.
        full_iters (float): Iterations of the baseline that cover as many
            passes, NaN if not known.
    """

    lines: List[str]
    share: Optional[float] = None
    mean_weight: Optional[float] = None
    iters: float = math.nan
    full_iters: float = math.nan


def forecast(policy: Policy,
             iterations: Iterations,
             normalize: bool = False,
             knows_images: bool = True) -> Forecast:
    """Forecast a run that hasn't begun.

    Args:
        policy (Policy): Draws the plans that prune.
        iterations (Iterations): Length of the run.
        normalize (bool): Whether the mean weight of a plan is 1. Defaults to
            False.
        knows_images (bool): Whether the slots of a pass are known. If not, a
            pass and an iteration have one slot.
            Defaults to True.
    """
    if not policy.prunes:
        return Forecast(
            [f'{policy!r} prunes nothing: the run is the baseline.'])
    schedule = iterations.schedule
    share: Optional[float] = 1.
    if not schedule.prunes_nothing:
        share = policy.expected_share(schedule.first_progress())
    lines = [
        f'{policy!r} prunes until {iterations.unit} '
        f'{iterations.annealing_at} of {iterations.length}.'
    ]
    if share is None:
        return Forecast([*lines, 'How much it keeps depends on the losses.'])
    iters, full_iters, passes = iterations.outcome(share)
    mean_weight = 1 / share if policy.rescale and not normalize else 1.
    if share < 1:
        lines.append(f'It keeps about {share:.3f} of the images, with a mean '
                     f'weight of {mean_weight:.2f}.')
    else:
        lines = [f'{policy!r} prunes nothing.']
    if knows_images:
        # The last iteration of an epoch may have fewer images.
        about = 'about ' if schedule.by_epoch and share < 1 else ''
        saved = full_iters - iters
        # A schedule by hand may be as long as the schedule of the baseline.
        condition = '' if schedule.by_epoch else (
            ' if the schedule was shortened, as `mmib convert` does')
        needed = '' if saved < 0.5 else (
            f', for which the baseline needs {full_iters:.0f} iterations: '
            f'{about}{saved:.0f} saved{condition}')
        lines.append(f'It runs {about}{iters:.0f} iterations and covers '
                     f'{passes:.1f} passes over the data{needed}.')
    else:
        lines.append(
            f'It runs about {100 * iters / full_iters:.0f} % of the iterations'
            ' that the baseline needs for as many passes.')
    return Forecast(lines, share, mean_weight, iters, full_iters)
