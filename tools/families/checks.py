# Copyright (c) mmib contributors. All rights reserved.
"""The checks of a config."""
import math
import os.path as osp
import traceback

import torch
from mmseg.utils import register_all_modules

from mmib.heads import wrap_losses

from .by_hand import ByHand
from .heads import describe
from .steps import Trainer, compare, holds

ONES = (1., 1.)
WEIGHTS = (1., 3.)


def check(path):
    """Run all checks of a config in this process, in float64 where float32
    differs by more than the tolerances.

    Args:
        path (str): Name in :data:`~families.configs.CONFIGS`.

    Returns:
        dict: What is known of the config.
    """
    register_all_modules(init_default_scope=True)
    torch.set_num_threads(1)
    try:
        line = check_in(torch.float32, path)
        if line['result'] == 'WRONG':
            precise = check_in(torch.float64, path)
            if precise['result'] != 'cannot run here':
                line = precise
    except Exception as error:
        line = failure({}, 'WRONG', error)
    return line


def check_in(dtype, path):
    """Run all checks of a config with a network of one type.

    Args:
        dtype (torch.dtype): What the network computes in.
        path (str): Name in :data:`~families.configs.CONFIGS`.

    Returns:
        dict: What is known of the config.
    """
    line = dict(dtype=str(dtype).split('.')[1])
    try:
        trainer = Trainer(path, dtype)
        line['heads'] = describe(trainer.model)
        stock = list(trainer.steps())
    except Exception as error:
        return failure(line, 'cannot run here', error)
    line['stock'] = [step.loss for step in stock]
    if not all(map(math.isfinite, line['stock'])):
        return dict(
            line, result='cannot run here', reason='its loss is not finite')

    by_hand = ByHand(trainer.model, WEIGHTS, trainer.batch['data_samples'])
    mixed = list(trainer.steps())
    by_hand.remove()
    line['by_hand'] = [step.loss for step in mixed]

    try:
        losses = wrap_losses(trainer.model)
    except ValueError as error:
        return failure(line, 'clear error', error)
    scores, weighted_scores = [], []
    try:
        line['weight_1'] = compare(
            steps_with(losses, ONES, trainer.steps(stock), scores), stock)
        del stock
        line['weighted'] = compare(
            steps_with(losses, WEIGHTS, trainer.steps(mixed), weighted_scores),
            mixed)
    except Exception as error:
        return failure(line, 'WRONG', error)
    line['scores'] = [step.tolist() for step in scores]

    wrong = []
    if not holds(line['weight_1']):
        wrong.append('with weight 1 it is not stock')
    if by_hand.unknown:
        line['reason'] = ('no weights by hand for ' +
                          ', '.join(sorted(by_hand.unknown)))
    elif not holds(line['weighted']):
        wrong.append('it is not what the weights by hand give')
    for step in scores:
        if step.shape != (len(WEIGHTS), ) or not step.isfinite().all():
            wrong.append('scores are not one finite number per image')
        elif step[0] == step[1]:
            wrong.append('the scores of two images are the same')
    if not torch.allclose(scores[0], weighted_scores[0]):
        wrong.append('the scores of the first step depend on the weights')
    if wrong:
        return dict(line, result='WRONG', reason='; '.join(wrong))
    return dict(line, result='score only' if by_hand.unknown else 'prunes')


def steps_with(losses, weights, steps, scores):
    """Give the losses their weights, and take the scores of each step.

    Args:
        losses (list[InfoBatchLoss]): Losses of the model.
        weights (Sequence[float]): Weight of each image.
        steps (Iterable[Step]): Steps of its training.
        scores (list[Tensor]): Gets the scores of each step.

    Yields:
        Step: The steps.
    """
    for loss in losses:
        loss.weights = torch.tensor(weights)
    for step in steps:
        scores.append(
            sum((loss.scores for loss in losses if loss.scores is not None),
                torch.zeros(())))
        for loss in losses:
            loss.scores = None
        yield step


def failure(line, result, error):
    """Add an exception to what is known of a config."""
    if isinstance(error, ImportError):
        # What a failed `custom_imports` hides.
        while error.__context__ is not None:
            error = error.__context__
    text = ' '.join(str(error).split()) or 'without a message'
    if not isinstance(error, ValueError):
        text = f'{type(error).__name__}: {text}'
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = [f'{osp.basename(f.filename)}:{f.lineno}' for f in frames]
    return dict(line, result=result, reason=text[:500], where=where)
