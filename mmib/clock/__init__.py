# Copyright (c) mmib contributors. All rights reserved.
"""How far the training is, by iterations or by epochs. Others ask the
clock. Only the sampler knows too, as passes end by epochs alone.

The stream of slots is the clock. An iteration has ``slots_per_iter`` of them,
until a training is resumed with another batch size or on another number of
ranks.
"""
from mmengine.runner import EpochBasedTrainLoop, Runner

from .clock import Clock
from .epochs import EpochClock
from .iterations import IterationClock


def clock_of(runner: Runner, delta: float, start: float) -> Clock:
    """The clock of a training.

    Args:
        runner (Runner): The runner of the training process.
        delta (float): Fraction of the training after which nothing is pruned.
        start (float): Fraction of the training before which nothing is
            pruned.
    """
    loader = runner.train_dataloader
    sampler = loader.sampler
    sampler.by_epoch = isinstance(runner.train_loop, EpochBasedTrainLoop)
    slots_per_iter = loader.batch_size * sampler.world_size
    if sampler.by_epoch:
        steps_per_epoch = runner.max_iters // max(runner.max_epochs, 1)
        return EpochClock(sampler.pass_length, slots_per_iter, len(loader),
                          runner.max_epochs, delta, start, steps_per_epoch,
                          runner.epoch)
    lookahead = loader.num_workers * (loader.prefetch_factor
                                      or 0) * slots_per_iter
    return IterationClock(sampler.pass_length, slots_per_iter,
                          runner.max_iters, delta, start, lookahead)


__all__ = ['Clock', 'EpochClock', 'IterationClock', 'clock_of']
