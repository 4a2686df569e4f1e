# Copyright (c) mmib contributors. All rights reserved.
"""Refusals of runs that can't be pruned, before the first step. The conversion
of configs uses the same refusals."""
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, Mapping

import torch
from mmengine._strategy import SingleDeviceStrategy
from mmengine.dist import all_gather, get_dist_info
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import BatchSampler

from ...errors import Refusal
from ...run.run import Run
from ..data.delivery import DeliveryCheck
from ..sampler import BASELINES
from .iterations import Iterations

# Arguments with which a sampler has shares: of datasets, images or classes.
_SHARES = ('source_ratio', 'dataset_ratio', 'dataset_size', 'weights',
           'num_sample_class')
# What is said of a sampler that InfoBatch doesn't know.
OWN_CHOICE = (', whose own choice of images, such as shares of classes, would '
              'be lost')


def needs_known_loop(instead_of: str) -> Refusal:
    """Return the refusal of an unknown training loop."""
    return Refusal(
        'InfoBatch knows the training loops of MMEngine: set `train_cfg = '
        "dict(type='EpochBasedTrainLoop', max_epochs=...)` or `dict(type="
        "'IterBasedTrainLoop', max_iters=...)`, in a config that inherits "
        f'another one with `_delete_=True`, instead of {instead_of}.')


def no_batch_sampler() -> Refusal:
    """Return the refusal of a batch sampler."""
    return Refusal(
        'InfoBatch matches weights to images by the order of the indices, '
        'which a batch sampler may change: remove '
        '`train_dataloader.batch_sampler`, and set '
        "`train_dataloader.sampler = dict(type='InfiniteSampler')` in a "
        "config to convert, or dict(type='InfoBatchSampler') by hand.")


def check_shares(name: str, arguments: Mapping[str, Any]) -> None:
    """Check that a sampler doesn't ask for some images more often than for
    others.

    Args:
        name (str): Class of the sampler.
        arguments (Mapping): Its arguments, or its attributes.
    """
    shares = [f'`{key}`' for key in _SHARES if arguments.get(key) is not None]
    if shares or name == 'ClassAwareSampler':
        by = f' by {" and ".join(shares)}' if shares else ''
        raise Refusal(
            f'{name} asks for some images more often than for others{by}, and '
            'InfoBatch for each image once in a pass, so these shares would '
            'be lost: train without InfoBatch; or, in a config to convert, '
            'let a RepeatDataset repeat what must come more often, and set '
            "`train_dataloader.sampler = dict(type='InfiniteSampler')`, by "
            "epochs 'DefaultSampler'.")


def check_stack() -> None:
    """Check that OneDL's and OpenMMLab's packages, which have the same
    folders, aren't mixed."""

    def installed(prefix: str) -> list:
        found = []
        for name in ('mmengine', 'mmcv', 'mmsegmentation', 'mmpretrain'):
            with suppress(PackageNotFoundError):
                distribution(prefix + name)
                found.append(prefix + name)
        return found

    onedl, openmmlab = installed('onedl-'), installed('')
    if onedl and openmmlab:
        raise Refusal(
            f'OneDL\'s {", ".join(onedl)} and OpenMMLab\'s '
            f'{", ".join(openmmlab)} are installed in one environment, where '
            'they overwrite the files of each other: run `pip uninstall -y '
            f'{" ".join(openmmlab + onedl)}`, and install one of the two '
            'stacks, such as `pip install onedl-mmengine onedl-mmcv '
            'onedl-mmsegmentation`.')


def check_training(runner: Runner, hook: Hook) -> None:
    """Check that a run can be pruned by its InfoBatchHook."""
    check_stack()
    if hook.has_begun:
        raise Refusal(
            'InfoBatchHook has trained already: build a new Runner with '
            '`resume=True` to go on from the last checkpoint.')
    loop = runner.train_loop
    if not isinstance(loop, (IterBasedTrainLoop, EpochBasedTrainLoop)):
        raise needs_known_loop(type(loop).__name__)
    # DDPStrategy and FSDPStrategy derive from SingleDeviceStrategy. Others
    # call no hooks when they save and load checkpoints.
    strategy = getattr(runner, 'strategy', None)
    if not isinstance(strategy, (SingleDeviceStrategy, type(None))):
        raise Refusal(
            f'Checkpoints of {type(strategy).__name__} would lack the scores, '
            'because it calls no hooks when it saves and loads them, and a '
            "resumed run would start afresh: set `strategy = dict(type='"
            "DDPStrategy')` or 'FSDPStrategy' with `optim_wrapper.type = "
            "'OptimWrapper'`, or train without InfoBatchHook.")
    if sum(type(other) is type(hook) for other in runner.hooks) > 1:
        raise Refusal(
            'Keep one InfoBatchHook in `custom_hooks`: two would draw '
            'different plans for the same sampler.')
    loader = runner.train_dataloader
    # A batch sampler takes the place of the sampler, so it is named first.
    if type(loader.batch_sampler) is not BatchSampler:
        raise no_batch_sampler()
    if type(loader.sampler) is not DATA_SAMPLERS.get('InfoBatchSampler'):
        name = type(loader.sampler).__name__
        check_shares(name, vars(loader.sampler))
        raise Refusal(
            'InfoBatchHook needs InfoBatchSampler: set '
            "`train_dataloader.sampler.type = 'InfoBatchSampler'` instead of "
            f'{name}{"" if name in BASELINES else OWN_CHOICE}.')
    if not getattr(loader, 'in_order', True):
        raise Refusal(
            'InfoBatchHook matches weights to images by the order of the '
            'batches: remove `in_order=False` from `train_dataloader`.')


def check_ranks(run: Run, delivery: DeliveryCheck) -> None:
    """Check that all ranks have the same images: each reads the folder where
    it runs."""
    if get_dist_info()[1] == 1:
        return
    own = torch.tensor(
        [run.schedule.pass_length,
         len(run.table.scores), delivery.checksum])
    if any(not torch.equal(other, own) for other in all_gather(own)):
        raise Refusal(
            'The ranks have read different images, or the same images in '
            'another order: `train_dataloader.dataset` must be the same on all'
            ' machines.')


def check_length(iterations: Iterations, prunes: bool = True) -> None:
    """Check that a run has iterations, and two passes over the data if it
    prunes: nothing can be pruned in the first pass."""
    size, batch = iterations.schedule.pass_length, iterations.slots_per_iter
    length = iterations.length
    if iterations.schedule.by_epoch:
        if prunes and length < 2:
            raise Refusal(
                f'`train_cfg.max_epochs` is {length}, and InfoBatch '
                'needs 2 or more, because nothing can be pruned in the first '
                'epoch: train for longer, or remove InfoBatchHook and '
                'InfoBatchSampler. To try a config in a short time, take a '
                'few images: `train_dataloader.dataset.indices=64`.')
        if iterations.iters_per_epoch == 0:
            raise Refusal(
                f'An iteration has {batch} images, the dataset {size}, and '
                '`drop_last` leaves them all: lower '
                '`train_dataloader.batch_size`, or remove '
                '`train_dataloader.drop_last`.')
    elif prunes and length * batch < 2 * size:
        raise Refusal(
            f'`train_cfg.max_iters = {length}` with {batch} images '
            f'in an iteration is {length * batch / size:.2f} passes '
            f'over {size} images. InfoBatch needs two passes, because nothing '
            'can be pruned in the first one: train for at least '
            f'{-(-2 * size // batch)} iterations, by a larger --ratio where '
            'conversion has shortened the schedule, or remove InfoBatchHook '
            'and InfoBatchSampler. To try a config in a few iterations, take '
            'a few images: `train_dataloader.dataset.indices=64`.')


def check_batch(data_batch: Any, batch_size: int) -> None:
    """Check that a batch has as many images as the loader was asked for."""
    # Inputs may be a dict with a tensor for each modality. A model that isn't
    # of a library may take anything whose parts have an entry for each sample.
    parts = [data_batch] if hasattr(data_batch, 'ndim') else data_batch
    if isinstance(data_batch, Mapping):
        parts = [
            data_batch.get('data_samples'),
            data_batch.get('inputs'), *data_batch.values()
        ]
    part = next(filter(_has_entries, parts), ())
    while isinstance(part, Mapping):
        part = next(filter(_has_entries, part.values()), ())
    if len(part) != batch_size:
        raise Refusal(
            f'A batch has {len(part)} images where {batch_size} were asked '
            'for, so InfoBatch does not know which images these are: check '
            '`train_dataloader.collate_fn`.')


def _has_entries(part: Any) -> bool:
    # A tensor without dimensions has no length.
    return hasattr(part, '__len__') and getattr(part, 'ndim', 1) > 0
