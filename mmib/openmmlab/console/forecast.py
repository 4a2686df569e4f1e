# Copyright (c) mmib contributors. All rights reserved.
"""What pruning will make of a schedule, before the first step."""
from typing import List, NamedTuple, Optional

from ...pruning import Policy
from ...schedule import Schedule


class Forecast(NamedTuple):
    """What is known of a training that begins.

    Args:
        lines (list[str]): Sentences on when the training prunes, how much, and
            what comes of that.
        share (float, optional): Kept share of the plans that prune, 1 if no
            plan does. None where the share depends on the losses, and then
            the next two are None too.
        mean_weight (float, optional): Mean weight of these plans.
        full_iters (float, optional): Iterations of the baseline that cover as
            many passes.
    """

    lines: List[str]
    share: Optional[float] = None
    mean_weight: Optional[float] = None
    full_iters: Optional[float] = None


def forecast(policy: Policy,
             schedule: Schedule,
             normalize: bool = False,
             knows_images: bool = True) -> Forecast:
    """Forecast a training in which nothing was trained on yet.

    Args:
        policy (Policy): Draws the plans that prune.
        schedule (Schedule): Length of the training.
        normalize (bool): Whether the mean weight of a plan is 1. Defaults to
            False.
        knows_images (bool): Whether the schedule has the slots of a pass. If
            not, a pass and an iteration of the schedule have one slot.
            Defaults to True.
    """
    if not policy.prunes:
        lines = [f'{policy!r} prunes nothing: the training is the baseline.']
        return Forecast(lines)
    share: Optional[float] = 1.
    if not schedule.prunes_nothing:
        share = policy.expected_share(schedule.first_progress())
    when = (
        f'{policy!r} prunes until {schedule.unit} {schedule.annealing_at} of '
        f'{schedule.length}.')
    if share is None:
        lines = [when, 'How much it keeps depends on the losses.']
        return Forecast(lines)
    iters, full_iters, passes = schedule.outcome(share)
    mean_weight = 1 / share if policy.rescale and not normalize else 1.
    lines = [
        when, f'It keeps about {share:.3f} of the images, with a mean weight '
        f'of {mean_weight:.2f}.'
    ] if share < 1 else [f'{policy!r} prunes nothing.']
    if not knows_images:
        lines.append(
            f'It runs about {100 * iters / full_iters:.0f} % of the iterations'
            ' that the baseline needs for as many passes.')
    else:
        # The last iteration of an epoch may have fewer images.
        about = 'about ' if schedule.by_epoch and share < 1 else ''
        saved = full_iters - iters
        needed = '' if saved < 0.5 else (
            f', for which the baseline needs {full_iters:.0f} iterations: '
            f'{about}{saved:.0f} saved')
        lines.append(f'It runs {about}{iters:.0f} iterations and covers '
                     f'{passes:.1f} passes over the data{needed}.')
    return Forecast(lines, share, mean_weight, full_iters)
