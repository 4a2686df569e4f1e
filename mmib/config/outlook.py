# Copyright (c) mmib contributors. All rights reserved.
"""What is to be expected of a config, before anything is built from it."""
from typing import Optional

from mmengine.config import Config
from mmengine.registry import HOOKS

from ..clock import Clock, EpochClock, IterationClock
from ..hook import InfoBatchHook
from ..log.forecast import Forecast, forecast
from .parts import infobatch_hooks, length_of, type_name
from .step_size import decide, optimizers_of


def summary(before: Config, after: Config) -> str:
    """What a conversion makes of a training, in a few sentences.

    Args:
        before (Config): The config of the baseline.
        after (Config): The converted config.

    Returns:
        str: The sentences. Empty for a config without InfoBatchHook.
    """
    hooks = infobatch_hooks(after)
    if not hooks:
        return ''
    text = ' '.join(forecast_of(after, HOOKS.build(hooks[0])).lines)
    (unit, full_length), (_, length) = length_of(before), length_of(after)
    if length < full_length:
        text += f' It saves {full_length - length} of {full_length} {unit}s.'
    elif unit == 'iteration':
        text += ('\nWarning: the training is as long as before and makes more '
                 'passes. Lower the ratio to save iterations.')
    batch_sampler = before.train_dataloader.get('batch_sampler') or {}
    if type_name(batch_sampler) == 'AspectRatioBatchSampler':
        text += (
            '\nWarning: `AspectRatioBatchSampler` is dropped: a batch may '
            'have upright and wide images, which are padded to one size, so '
            'that an iteration takes longer.')
    return text


def forecast_of(cfg: Config,
                hook: InfoBatchHook,
                num_images: Optional[int] = None,
                gpus: int = 1) -> Forecast:
    """Forecast the training of a config.

    Args:
        cfg (Config): A config with or without InfoBatch.
        hook (InfoBatchHook): The hook of the training.
        num_images (int, optional): Images in a pass. None where the data isn't
            read. Defaults to None.
        gpus (int): GPUs, or other ranks, that train. Defaults to 1.

    Raises:
        ValueError: If the training is too short for these images.
    """
    normalize = decide(hook.normalize,
                       optimizers_of(cfg.get('optim_wrapper') or {})).is_one
    if num_images is None:
        return forecast(hook.policy, clock_of(cfg, hook), normalize, False)
    clock = clock_of(cfg, hook, num_images, cfg.train_dataloader.batch_size,
                     gpus)
    clock.check_length()
    return forecast(hook.policy, clock, normalize)


def clock_of(cfg: Config,
             hook: InfoBatchHook,
             pass_length: int = 1,
             batch_size: int = 1,
             gpus: int = 1) -> Clock:
    """The clock of a training that isn't built, with the arguments of
    :func:`forecast_of`."""
    unit, length = length_of(cfg)
    slots_per_iter = batch_size * gpus
    if unit == 'iteration':
        return IterationClock(pass_length, slots_per_iter, length, hook.delta,
                              hook.start)
    # All ranks have as many slots, and each leaves its own last ones.
    slots = -(-pass_length // gpus)
    if not cfg.train_dataloader.get('drop_last'):
        slots += batch_size - 1
    return EpochClock(pass_length, slots_per_iter, slots // batch_size, length,
                      hook.delta, hook.start)
