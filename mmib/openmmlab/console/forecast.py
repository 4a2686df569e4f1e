# Copyright (c) mmib contributors. All rights reserved.
"""What pruning will make of a schedule, before the first step."""
import math
from typing import TYPE_CHECKING, List, NamedTuple, Optional

from mmengine.config import Config

from ...pruning import Policy
from ...schedule import Schedule
from ..config.parts import length_of
from ..runner.checks import check_length
from ..runner.mean_weight import decide_mean_weight

if TYPE_CHECKING:
    from ..hook import InfoBatchHook


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
             schedule: Schedule,
             normalize: bool = False,
             knows_images: bool = True) -> Forecast:
    """Forecast a run that hasn't begun.

    Args:
        policy (Policy): Draws the plans that prune.
        schedule (Schedule): Length of the run.
        normalize (bool): Whether the mean weight of a plan is 1. Defaults to
            False.
        knows_images (bool): Whether the schedule has the slots of a pass. If
            not, a pass and an iteration of the schedule have one slot.
            Defaults to True.
    """
    if not policy.prunes:
        return Forecast(
            [f'{policy!r} prunes nothing: the run is the baseline.'])
    share: Optional[float] = 1.
    if not schedule.prunes_nothing:
        share = policy.expected_share(schedule.first_progress())
    lines = [
        f'{policy!r} prunes until {schedule.unit} {schedule.annealing_at} of '
        f'{schedule.length}.'
    ]
    if share is None:
        return Forecast([*lines, 'How much it keeps depends on the losses.'])
    iters, full_iters, passes = schedule.outcome(share)
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
        needed = '' if saved < 0.5 else (
            f', for which the baseline needs {full_iters:.0f} iterations: '
            f'{about}{saved:.0f} saved')
        lines.append(f'It runs {about}{iters:.0f} iterations and covers '
                     f'{passes:.1f} passes over the data{needed}.')
    else:
        lines.append(
            f'It runs about {100 * iters / full_iters:.0f} % of the iterations'
            ' that the baseline needs for as many passes.')
    return Forecast(lines, share, mean_weight, iters, full_iters)


def forecast_of(cfg: Config,
                hook: 'InfoBatchHook',
                num_images: Optional[int] = None,
                gpus: int = 1,
                repeats: int = 1) -> Forecast:
    """Forecast the run of a config, with or without InfoBatch.

    Args:
        cfg (Config): The config.
        hook (InfoBatchHook): The hook of the run.
        num_images (int, optional): Images of a pass. None where the data isn't
            read. Defaults to None.
        gpus (int): GPUs, or other ranks. Defaults to 1.
        repeats (int): How often a ``RepeatDataset`` has each image. Defaults
            to 1.

    Raises:
        Refusal: If the run is too short for these images.
    """
    mean_weight = decide_mean_weight(hook.normalize,
                                     cfg.get('optim_wrapper') or {})
    if num_images is None:
        schedule = schedule_of(cfg, hook, 1, batch_size=1)
    else:
        batch_size = cfg.train_dataloader.batch_size
        schedule = schedule_of(cfg, hook, num_images, batch_size, gpus,
                               repeats)
        check_length(schedule, hook.policy.prunes)
    return forecast(hook.policy, schedule, mean_weight.is_one, num_images
                    is not None)


def schedule_of(cfg: Config,
                hook: 'InfoBatchHook',
                num_images: int,
                batch_size: int,
                gpus: int = 1,
                repeats: int = 1) -> Schedule:
    """Return the schedule of a run that isn't built. The other arguments are
    those of :func:`forecast_of`."""
    unit, length = length_of(cfg)
    # All ranks have as many slots, and each leaves its own last ones.
    slots = -(-num_images // gpus)
    if not cfg.train_dataloader.get('drop_last'):
        slots += batch_size - 1
    return Schedule(
        num_images,
        batch_size * gpus,
        length,
        hook.delta,
        hook.start,
        iters_per_epoch=slots // batch_size if unit == 'epoch' else None,
        first_pass=repeats * num_images)
