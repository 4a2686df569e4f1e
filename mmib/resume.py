# Copyright (c) mmib contributors. All rights reserved.
"""The state of a training in a checkpoint, and how one goes on from it."""
from typing import Any, Dict, List, Optional, Tuple

import torch
from mmengine.dist import all_gather, get_dist_info

from .delivery import DeliveryCheck
from .errors import ValueRefusal
from .planner import Planner
from .sampler import InfoBatchSampler
from .scores import ScoreTable
from .state import VERSION, damaged, seal, upgrade


def make_state(sampler: InfoBatchSampler, scores: ScoreTable, planner: Planner,
               delivery: DeliveryCheck) -> Dict[str, Any]:
    """What a checkpoint has under the key ``infobatch``.

    Returns:
        dict: Tensors and plain Python values.
    """
    return seal(
        dict(
            version=VERSION,
            sampler=sampler.state_dict(),
            scores=scores.state_dict(),
            planner=planner.state_dict(sampler.position),
            images=planner.counts.state_dict(),
            paths_comparable=list(delivery.comparable),
            images_checksum=delivery.checksum))


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
        state = upgrade(state)
    try:
        reason = _why_afresh(state, sampler, scores, planner, delivery)
        if reason is not None or state is None:
            covered = (
                iteration if state is None else
                state['planner']['clock']['full_equivalent'])
            sampler.skip(iteration * batch_size)
            planner.begin(iteration, sampler.position, covered)
            return reason, []
        _check_numbers(state['sampler'], state['scores'])
        sampler.load_state_dict(state['sampler'])
        changes = scores.load_state_dict(state['scores'])
        changes += planner.load_state_dict(state['planner'], iteration,
                                           sampler.position)
        if not planner.is_same_policy(state['planner']):
            sampler.forget_tiers()
        delivery.load(state['paths_comparable'])
        planner.counts.load_state_dict(state['images'])
    # Older states have no checksum.
    except (LookupError, TypeError, RuntimeError) as error:
        raise damaged('infobatch', f'can\'t be read ({error!r})') from error
    return None, changes


def _check_numbers(sampler: Dict[str, Any], scores: Dict[str, Any]) -> None:
    """Check what older states, which have no checksum, would train on."""
    for name in ('scores', 'averages'):
        if not torch.isfinite(scores[name]).all():
            raise damaged(f'infobatch.scores.{name}', 'isn\'t finite')
    indices = sampler['indices']
    if not ((indices >= 0) & (indices < sampler['size'])).all():
        raise damaged('infobatch.sampler.indices',
                      f'isn\'t in [0, {sampler["size"]})')


def check_ranks(sampler: InfoBatchSampler, scores: ScoreTable,
                delivery: DeliveryCheck) -> None:
    """Check that all ranks have the same images: each reads the folder where
    it runs."""
    if get_dist_info()[1] == 1:
        return
    own = torch.tensor(
        [sampler.pass_length, scores.num_images, delivery.checksum])
    if any(not torch.equal(other, own) for other in all_gather(own)):
        raise ValueRefusal(
            'The ranks have read different images, or the same in another '
            'order: `train_dataloader.dataset` must be the same on all '
            'machines.')


def _why_afresh(state: Optional[Dict[str, Any]], sampler: InfoBatchSampler,
                scores: ScoreTable, planner: Planner,
                delivery: DeliveryCheck) -> Optional[str]:
    if state is None:
        return 'the checkpoint is of a training without InfoBatchHook'
    unit = state['planner']['clock']['unit']
    if unit != planner.clock.unit:
        return f'the checkpoint is of a training that counts {unit}s'
    before = state['sampler']['size'], len(state['scores']['scores'])
    now = sampler.pass_length, scores.num_images
    if before != now:
        before, now = (f'{images} images' +
                       (f', {slots} with repeats' if slots > images else '')
                       for slots, images in (before, now))
        return (f'the checkpoint is of {before}, and '
                f'`train_dataloader.dataset` has {now}')
    # Older checkpoints had none.
    if state['images_checksum'] not in (None, delivery.checksum):
        return ('the checkpoint is of other images than '
                '`train_dataloader.dataset` has, or of the same in another '
                'order')
    kind_before, kind = state['planner']['visits'][
        'score'], planner.visits.score
    if kind_before != kind:
        return (f'the scores in the checkpoint are "{kind_before}", and those '
                f'of this training are "{kind}"')
    return None
