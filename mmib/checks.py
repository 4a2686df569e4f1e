# Copyright (c) mmib contributors. All rights reserved.
"""Configs with which pruning could not work stop before the first step."""
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import BatchSampler, DataLoader

from .sampler import InfoBatchSampler


def check_loop(runner: Runner) -> None:
    """Check that the training counts iterations.

    Args:
        runner (Runner): The runner of the training process.

    Raises:
        ValueError: If the training loop isn't ``IterBasedTrainLoop``.
    """
    if not isinstance(runner.train_loop, IterBasedTrainLoop):
        raise ValueError(
            'InfoBatchHook needs iteration-based training: set '
            "`train_cfg = dict(type='IterBasedTrainLoop', max_iters=...)`, in "
            'a config that inherits another one with `_delete_=True`, '
            f'instead of {type(runner.train_loop).__name__}.')


def check_hooks(runner: Runner, hook: Hook) -> None:
    """Check that no second hook of the same kind takes part, and that
    checkpoints are written after the hook has acted.

    Args:
        runner (Runner): The runner of the training process.
        hook (Hook): The hook that asks.

    Raises:
        ValueError: If the runner has another one, or a CheckpointHook before
            it.
    """
    if sum(type(other) is type(hook) for other in runner.hooks) > 1:
        raise ValueError(
            'keep one InfoBatchHook in `custom_hooks`: two would draw '
            'different plans for the same sampler.')
    before = runner.hooks[:runner.hooks.index(hook)]
    if any(isinstance(other, CheckpointHook) for other in before):
        raise ValueError(
            'checkpoints would lack the scores of their last batch, as '
            'CheckpointHook acts before InfoBatchHook: remove `priority` from '
            'InfoBatchHook in `custom_hooks` and from '
            '`default_hooks.checkpoint`.')


def check_loader(loader: DataLoader) -> None:
    """Check that the batches arrive as the sampler issues them.

    Args:
        loader (DataLoader): Data loader of the training.

    Raises:
        ValueError: If another sampler, a batch sampler or ``in_order=False``
            breaks the order.
    """
    # A batch sampler takes the place of the sampler, so it is named first.
    batch_sampler = type(loader.batch_sampler)
    if batch_sampler is not BatchSampler:
        raise ValueError(
            'InfoBatchHook matches weights to images by the order of the '
            f'indices, which {batch_sampler.__name__} may change: remove '
            '`train_dataloader.batch_sampler`.')
    if not isinstance(loader.sampler, InfoBatchSampler):
        raise ValueError(
            'InfoBatchHook needs InfoBatchSampler: set '
            "`train_dataloader.sampler.type = 'InfoBatchSampler'` instead of "
            f'{type(loader.sampler).__name__}.')
    if not getattr(loader, 'in_order', True):
        raise ValueError(
            'InfoBatchHook matches weights to images by the order of the '
            'batches: remove `in_order=False` from `train_dataloader`.')


def check_length(max_iters: int, slots_per_iter: int,
                 num_samples: int) -> None:
    """Check that the training is two passes over the data or more.

    Nothing can be left out of the first one.

    Args:
        max_iters (int): Iterations of the training.
        slots_per_iter (int): Images in an iteration, of all ranks.
        num_samples (int): Images in a full pass.

    Raises:
        ValueError: If it is less.
    """
    passes = max_iters * slots_per_iter / num_samples
    if passes < 2:
        raise ValueError(
            f'`train_cfg.max_iters = {max_iters}` with {slots_per_iter} '
            f'images in an iteration is {passes:.2f} passes over '
            f'{num_samples} images. InfoBatch needs two, as nothing can be '
            'left out of the first one: train for at least '
            f'{-(-2 * num_samples // slots_per_iter)} iterations, or remove '
            'InfoBatchHook and InfoBatchSampler.')
