# Copyright (c) mmib contributors. All rights reserved.
"""What the run of a config will be, before a Runner is built."""
from typing import Optional

from mmengine.config import Config

from ..console.forecast import Forecast, forecast
from ..hook import InfoBatchHook
from ..runner.checks import check_length
from ..runner.iterations import Iterations
from ..runner.mean_weight import decide_mean_weight
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
    mean_weight = decide_mean_weight(hook.normalize,
                                     cfg.get('optim_wrapper') or {})
    if num_images is None:
        iterations = iterations_of(cfg, hook, 1, batch_size=1)
    else:
        batch_size = cfg.train_dataloader.batch_size
        iterations = iterations_of(cfg, hook, num_images, batch_size, gpus,
                                   repeats)
        check_length(iterations, hook.policy.prunes)
    return forecast(hook.policy, iterations, mean_weight.is_one, num_images
                    is not None)


def iterations_of(cfg: Config,
                  hook: InfoBatchHook,
                  num_images: int,
                  batch_size: int,
                  gpus: int = 1,
                  repeats: int = 1) -> Iterations:
    """Return the length of a run that isn't built. The other arguments are
    those of :func:`forecast_of`."""
    unit, length = length_of(cfg)
    # All ranks have as many slots, and each leaves its own last ones.
    slots = -(-num_images // gpus)
    if not cfg.train_dataloader.get('drop_last'):
        slots += batch_size - 1
    return Iterations(
        num_images,
        batch_size * gpus,
        length,
        hook.delta,
        hook.start,
        iters_per_epoch=slots // batch_size if unit == 'epoch' else None,
        first_pass=repeats * num_images)
