# Copyright (c) mmib contributors. All rights reserved.
"""Trainings that count epochs: each epoch is a virtual epoch, with the
validation, the checkpoints and the learning rate that it has in the baseline.
"""
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from .. import compat
from ..accounting import Accounting
from ..planner import Planner
from .accounting import EpochAccounting
from .sampler import InfoBatchEpochSampler


def account_for(runner: Runner, delta: float, start: float) -> Accounting:
    """The accounts of a training, which counts iterations or epochs.

    Args:
        runner (Runner): The runner of the training process.
        delta (float): Fraction of it after which nothing is pruned.
        start (float): Fraction of it before which nothing is pruned.
    """
    loader = runner.train_dataloader
    sampler = loader.sampler
    slots_per_iter = loader.batch_size * sampler.world_size
    if isinstance(sampler, InfoBatchEpochSampler):
        return EpochAccounting(sampler.pass_length, slots_per_iter,
                               len(loader), runner.max_epochs, delta, start,
                               runner.max_iters // max(runner.max_epochs, 1),
                               runner.epoch)
    return Accounting(sampler.pass_length, slots_per_iter, runner.max_iters,
                      delta, start)


def slots_ahead(loader: DataLoader, slots_per_iter: int) -> int:
    """Slots that may be in flight when a plan is drawn.

    Args:
        loader (DataLoader): The data loader of the training.
        slots_per_iter (int): Slots of an iteration, of all ranks.
    """
    # Nothing of an epoch is asked for before it begins.
    if isinstance(loader.sampler, InfoBatchEpochSampler):
        return 0
    return loader.num_workers * (loader.prefetch_factor or 0) * slots_per_iter


def connect(runner: Runner, planner: Planner,
            sampler: InfoBatchEpochSampler) -> None:
    """Let what steps by iteration follow the progress of the training.

    Args:
        runner (Runner): The runner of the training process.
        planner (Planner): Knows how far the training is.
        sampler (InfoBatchEpochSampler): Knows how far the epoch is.
    """
    accounting = planner.accounting
    assert isinstance(accounting, EpochAccounting)
    compat.follow_progress(runner,
                           lambda: accounting.steps_due(sampler.position))


def begin_epoch(runner: Runner, planner: Planner,
                sampler: InfoBatchEpochSampler) -> None:
    """Draw the plan of the epoch that begins, or go on with that of a
    checkpoint within it.

    Args:
        runner (Runner): The runner of the training process.
        planner (Planner): Draws the plan.
        sampler (InfoBatchEpochSampler): Gets it.
    """
    accounting, loader = planner.accounting, runner.train_dataloader
    assert isinstance(accounting, EpochAccounting)
    if sampler.is_open and accounting.epoch != runner.epoch:
        # A checkpoint that a hook has saved at the edge, before it ended.
        sampler.end_epoch()
    # DistSamplerSeedHook may act later, by a `priority` of InfoBatchHook.
    sampler.set_epoch(runner.epoch)
    is_new = not sampler.is_open
    if is_new:
        accounting.begin_epoch(runner.epoch, runner.iter, sampler.position)
    sampler.begin_epoch()
    # With `drop_last` the loader leaves what doesn't fill a batch.
    iters = len(loader)
    if is_new and iters == 0:
        runner.logger.warning(
            f'InfoBatch: nothing is trained on in epoch {runner.epoch + 1}, '
            f'as its plan has {len(sampler) * sampler.world_size} images, an '
            f'iteration {accounting.slots_per_iter}, and `drop_last` leaves '
            'them: lower `train_dataloader.batch_size`, remove '
            '`train_dataloader.drop_last`, or let the `policy` of '
            'InfoBatchHook in `custom_hooks` keep more.')
    accounting.expect(
        sampler.position,
        min(iters * accounting.slots_per_iter,
            len(sampler) * sampler.world_size))
    compat.expect_iters(
        runner,
        runner.iter + iters + accounting.iters_left(_next_share(planner)),
        is_last=runner.epoch + 1 == runner.max_epochs)


def _next_share(planner: Planner) -> float:
    """Kept share to expect of the next plans that prune."""
    epoch, accounting = planner.newest, planner.accounting
    if epoch is not None and epoch.size < accounting.pass_length:
        return epoch.size / accounting.pass_length
    share = planner.policy.expected_share(
        accounting.first_progress(planner.first_pruned))
    return 1. if share is None else share


__all__ = [
    'EpochAccounting', 'InfoBatchEpochSampler', 'account_for', 'begin_epoch',
    'connect', 'slots_ahead'
]
