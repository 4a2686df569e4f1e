# Copyright (c) mmib contributors. All rights reserved.
"""What is to be expected of a config, before anything is built from it."""
from typing import Optional

from mmengine.config import Config

from ...schedule import EpochSchedule, IterationSchedule, Schedule
from ..console.forecast import Forecast, forecast
from ..hook import InfoBatchHook
from ..runner.checks import check_length
from ..runner.step_size import decide
from .parts import length_of


def forecast_of(cfg: Config,
                hook: InfoBatchHook,
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
    mean_weight = decide(hook.normalize, cfg.get('optim_wrapper') or {})
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
                hook: InfoBatchHook,
                num_images: int,
                batch_size: int,
                gpus: int = 1,
                repeats: int = 1) -> Schedule:
    """Return the schedule of a run that isn't built. The other arguments are
    those of :func:`forecast_of`."""
    unit, length = length_of(cfg)
    slots_per_iter = batch_size * gpus
    if unit == 'iteration':
        return IterationSchedule(
            num_images,
            slots_per_iter,
            length,
            hook.delta,
            hook.start,
            first_pass=repeats * num_images)
    # All ranks have as many slots, and each leaves its own last ones.
    slots = -(-num_images // gpus)
    if not cfg.train_dataloader.get('drop_last'):
        slots += batch_size - 1
    return EpochSchedule(num_images, slots_per_iter, slots // batch_size,
                         length, hook.delta, hook.start)
