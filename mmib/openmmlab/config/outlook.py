# Copyright (c) mmib contributors. All rights reserved.
"""What is to be expected of a config, before anything is built from it."""
from typing import Optional, Tuple

from mmengine.config import Config

from ...schedule import Schedule
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
    """Forecast the training of a config, with or without InfoBatch, on some
    GPUs, or other ranks. ``num_images`` are those of a pass, None where the
    data isn't read, and ``repeats`` how often a ``RepeatDataset`` has them.

    Raises:
        Refusal: If the training is too short for these images.
    """
    mean_weight = decide(hook.normalize, cfg.get('optim_wrapper') or {})
    schedule = _schedule(cfg, hook, num_images, gpus, repeats)
    if num_images is not None:
        check_length(schedule, hook.policy.prunes)
    return forecast(hook.policy, schedule, mean_weight.is_one, num_images
                    is not None)


def iterations_of(cfg: Config,
                  hook: InfoBatchHook,
                  share: float,
                  num_images: Optional[int] = None,
                  gpus: int = 1,
                  repeats: int = 1) -> Tuple[float, float, float]:
    """Forecast the iterations of a training whose pruning plans keep
    ``share``, those of the baseline for as many passes, and these passes. With
    the other arguments of :func:`forecast_of`. Where the data isn't read, all
    are in proportion."""
    return _schedule(cfg, hook, num_images, gpus, repeats).outcome(share)


def _schedule(cfg: Config, hook: InfoBatchHook, num_images: Optional[int],
              gpus: int, repeats: int) -> Schedule:
    if num_images is None:
        return schedule_of_config(cfg, hook)
    batch_size = cfg.train_dataloader.batch_size
    return schedule_of_config(cfg, hook, num_images, batch_size, gpus, repeats)


def schedule_of_config(cfg: Config,
                       hook: InfoBatchHook,
                       pass_length: int = 1,
                       batch_size: int = 1,
                       gpus: int = 1,
                       repeats: int = 1) -> Schedule:
    """The schedule of a training that isn't built, with the arguments of
    :func:`forecast_of`."""
    unit, length = length_of(cfg)
    slots_per_iter = batch_size * gpus
    if unit == 'iteration':
        return Schedule(
            pass_length,
            slots_per_iter,
            length,
            hook.delta,
            hook.start,
            first_pass=repeats * pass_length)
    # All ranks have as many slots, and each leaves its own last ones.
    slots = -(-pass_length // gpus)
    if not cfg.train_dataloader.get('drop_last'):
        slots += batch_size - 1
    return Schedule(
        pass_length,
        slots_per_iter,
        length,
        hook.delta,
        hook.start,
        iters_per_epoch=slots // batch_size)
