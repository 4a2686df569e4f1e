# Copyright (c) mmib contributors. All rights reserved.
"""The state of a training in a checkpoint, and how one goes on from it."""
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch
from mmengine.dist import all_gather

from .datasets import DeliveryCheck
from .epochs import InfoBatchEpochSampler
from .planner import Planner
from .pruning.form import damaged
from .sampler import InfoBatchSampler
from .scores import ScoreTable
from .state import check_state, counts_epochs


def make_state(sampler: InfoBatchSampler, scores: ScoreTable, planner: Planner,
               delivery: DeliveryCheck) -> Dict[str, Any]:
    """What a checkpoint has under the key ``infobatch``.

    Returns:
        dict: Tensors and plain Python values.
    """
    return dict(
        sampler=sampler.state_dict(),
        scores=scores.state_dict(),
        planner=planner.state_dict(sampler.position),
        images=planner.counts.state_dict(),
        paths_comparable=list(delivery.comparable),
        images_checksum=delivery.checksum)


def load_state(state: Optional[Dict[str,
                                    Any]], iteration: int, batch_size: int,
               sampler: InfoBatchSampler, scores: ScoreTable, planner: Planner,
               delivery: DeliveryCheck) -> Tuple[Optional[str], List[str]]:
    """Go on with the slots that a checkpoint has, or where it has none for
    this data set, with full passes.

    Args:
        state (dict, optional): ``infobatch`` of the checkpoint.
        iteration (int): Iterations of the training until then.
        batch_size (int): Images of a rank in an iteration.
        sampler (InfoBatchSampler): Gets the stream of slots.
        scores (ScoreTable): Gets the scores.
        planner (Planner): Gets the account and the open plan.
        delivery (DeliveryCheck): Gets what is known of the data set.

    Returns:
        tuple[str, optional, list[str]]: Why the training starts afresh, or
        None; and what has changed since then, for the log.

    Raises:
        ValueError: If the state is damaged.
    """
    if state is not None:
        check_state(state, iteration)
    reason = _why_afresh(state, sampler, scores, planner.visits.score,
                         delivery)
    if reason is not None or state is None:
        sampler.skip(iteration * batch_size)
        planner.begin(
            iteration, sampler.position, iteration
            if state is None else state['planner']['full_equivalent'])
        return reason, []
    _check_scores(state['scores'], scores)
    _add_mean_weight(state)
    sampler.load_state_dict(state['sampler'])
    changes = scores.load_state_dict(state['scores'])
    changes += planner.load_state_dict(state['planner'], iteration,
                                       sampler.position)
    if not planner.is_same_policy(state['planner']):
        sampler.forget_tiers()
    delivery.load(state['paths_comparable'])
    # Version 0.1.0 had none.
    planner.counts.load_state_dict(state.get('images'))
    return None, changes


def _add_mean_weight(state: Dict[str, Any]) -> None:
    """Tell which mean weight plans have, which older versions didn't."""
    planner, sampler = state['planner'], state['sampler']
    if 'normalize' in planner:
        return
    epoch, size = planner['epochs'][0], sampler['size']
    weights = sampler[
        'weights'][:max(epoch['start'] + epoch['size'] -
                        sampler['position'], 0)]
    of_method = size / epoch['size']
    planner['normalize'] = bool(
        of_method > 1.05 and len(weights)
        and abs(float(weights.mean()) - 1) < (of_method - 1) / 2)
    for epoch in planner['epochs']:
        epoch['mean_weight'] = (1. if planner['normalize'] else size /
                                epoch['size'])


def _check_scores(state: Dict[str, Any], scores: ScoreTable) -> None:
    """Only the images that are in no pass have none."""
    in_a_pass = ~np.isnan(scores.by_image())
    for name in {'scores', 'averages'} & set(state):
        if np.isnan(state[name].numpy()[in_a_pass]).any():
            raise damaged(f'infobatch.scores.{name}',
                          'has NaN for images of a pass')


def _check_ranks(sampler: InfoBatchSampler, scores: ScoreTable,
                 delivery: DeliveryCheck) -> None:
    """Check that all ranks have the same images: each reads the folder where
    it runs."""
    own = torch.tensor(
        [sampler.pass_length, scores.num_images, delivery.checksum])
    if any(not torch.equal(other, own) for other in all_gather(own)):
        raise ValueError(
            'The ranks have read different images, or the same in another '
            'order: `train_dataloader.dataset` must be the same on all '
            'machines.')


def _why_afresh(state: Optional[Dict[str, Any]], sampler: InfoBatchSampler,
                scores: ScoreTable, kind: str,
                delivery: DeliveryCheck) -> Optional[str]:
    if state is None:
        return 'the checkpoint is of a training without InfoBatchHook'
    _check_ranks(sampler, scores, delivery)
    by_epoch = counts_epochs(state)
    if by_epoch is not isinstance(sampler, InfoBatchEpochSampler):
        counts = 'epochs' if by_epoch else 'iterations'
        return f'the checkpoint is of a training that counts {counts}'
    before = state['sampler']['size'], len(state['scores']['scores'])
    now = sampler.pass_length, scores.num_images
    if before != now:
        before, now = (f'{images} images' +
                       (f', {slots} with repeats' if slots > images else '') +
                       (f', {slots} of them listed' if slots < images else '')
                       for slots, images in (before, now))
        return (f'the checkpoint is of {before}, and '
                f'`train_dataloader.dataset` has {now}')
    # Older checkpoints had none.
    if state.get('images_checksum', delivery.checksum) != delivery.checksum:
        return ('the checkpoint is of other images than those of '
                '`train_dataloader.dataset`, or of the same in another order')
    # Without a list the checksum is 0, as it was before there were any.
    if state['sampler'].get('checksum', 0) != sampler.checksum:
        return ('the checkpoint is of another list of images: the `indices` '
                'or `weights` of Subset, the `policy` of InfoBatchHook, have '
                'changed')
    # Version 0.1.0 had losses alone.
    visits = state['planner'].get('visits', {})
    kind_before = visits.get('score', 'loss')
    if kind_before.startswith('gradient') and 'own_norms' not in visits:
        return ('the scores in the checkpoint are of an older mmib, which '
                "measured each image's share in the gradient of the batch")
    if kind_before != kind:
        return (f'the scores in the checkpoint are "{kind_before}", and those '
                f'of InfoBatchHook are "{kind}"')
    return None
