# Copyright (c) mmib contributors. All rights reserved.
"""Which images the passes of a training have: all, or those of a list."""
from dataclasses import replace
from typing import Any, Callable, Optional, Sequence, Tuple

import numpy as np
import torch
from mmengine.dist import all_gather
from mmengine.hooks import Hook
from mmengine.runner import Runner

from .plan_record import PlanRecord as VirtualEpoch
from .datasets import image_numbers, image_paths, mixed_in
from .pruning import EpochPlan, Listed, Policy


def find_listed(policy: Policy, dataset: Any,
                images: np.ndarray) -> Optional[Tuple[Listed, np.ndarray]]:
    """Find the images of a list in a data set.

    Args:
        policy (Policy): It may have a list.
        dataset (Sized): The data set.
        images (np.ndarray): Number of the image of each index of a pass over
            all of it, int64 of any length.

    Returns:
        tuple[Listed, np.ndarray], optional: The list, and the indices of its
        images, increasing. None where there is no list.

    Raises:
        ValueError: If images aren't there, or the data set mixes in others.
    """
    listed = policy.select(
        int(images.max()) + 1, lambda: image_paths(dataset, images))
    if listed is None:
        return None
    if mixed_in(dataset):
        raise ValueError(
            'MultiImageMixDataset in `train_dataloader.dataset` mixes other '
            'images of the data set into those of the list of Subset: remove '
            'it, or Subset from the `policy` of InfoBatchHook in '
            '`custom_hooks`.')
    return listed, np.flatnonzero(np.isin(images, listed.images))


def select_images(runner: Runner,
                  hook: Hook) -> Tuple[np.ndarray, int, Sequence[Callable]]:
    """Let the sampler pass over the images that a policy chooses.

    Args:
        runner (Runner): The runner of the training process.
        hook (InfoBatchHook): Its hook.

    Returns:
        tuple[np.ndarray, int, Sequence[Callable]]: Number of the image of
        each index of a pass, int64 of shape (pass_length,); how many the data
        set has; and observers of plans that count the images of a pass, which
        see data set indices.

    Raises:
        ValueError: If the list can't be used, or ranks have read others.
    """
    loader = runner.train_dataloader
    sampler, observers = loader.sampler, hook.plan_observers
    images = image_numbers(loader.dataset)[:sampler.pass_length]
    num_images = int(images.max()) + 1
    found = find_listed(hook.policy, loader.dataset, images)
    if found is None:
        return images, num_images, observers
    listed, indices = found
    images, weights = images[indices], listed.weights
    if weights is not None:
        weights = weights[np.searchsorted(listed.images, images)]
    sampler.restrict(indices, weights)
    # Each rank reads the file where it runs.
    checksums = all_gather(torch.tensor(sampler.checksum))
    if len({int(checksum) for checksum in checksums}) > 1:
        raise ValueError(
            'The ranks have read different lists: `indices` of Subset, in the '
            '`policy` of InfoBatchHook in `custom_hooks`, must be the same '
            'file on all machines.')
    text = (f'each pass has {len(listed.images)} of {num_images} images, '
            f'those of {hook.policy!r}')
    if weights is not None:
        text += f', with a mean weight of {weights.mean():.2f}'
    if listed.note:
        text += f'; {listed.note}'
    runner.logger.info(f'InfoBatch: {text}.')

    def observe(epoch: VirtualEpoch, plan: Optional[EpochPlan]) -> None:
        if plan is not None:
            plan = replace(
                plan,
                indices=sampler.in_dataset(plan.indices),
                weights=sampler.loss_weights(plan, False))
        for observer in observers:
            observer(epoch, plan)

    return images, num_images, [observe]
