# Copyright (c) mmib contributors. All rights reserved.
"""Trainings that count epochs, with hooks of MMPretrain."""
import pytest

pytest.importorskip('mmpretrain.models', exc_type=ImportError)

import torch  # noqa: E402
from mmengine.hooks import Hook  # noqa: E402
from mmengine.registry import HOOKS  # noqa: E402
from mmengine.runner import Runner  # noqa: E402

from mmib import InfoBatchLoss  # noqa: E402
from tests.system.small_training import infobatch_hook  # noqa: E402

from .small_classifier import config  # noqa: E402

MAX_EPOCHS, SIZE = 6, 22
PRUNES = dict(type='InfoBatchHook', policy=dict(type='Budget', ratio=0.6))


def by_epoch(*hooks, **changes):
    """Changes of ``config`` for a training that counts epochs."""
    return {
        'train_cfg': dict(_delete_=True, by_epoch=True, max_epochs=MAX_EPOCHS),
        'train_dataloader.sampler.type': 'InfoBatchSampler',
        'custom_hooks': [*hooks, PRUNES],
        **changes,
    }


@HOOKS.register_module()
class ClassifierLog(Hook):
    """Writes down images, loss, weights and scores of each step, and which
    loss it was."""

    priority = 'HIGH'

    def __init__(self):
        self.steps = []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        hook = infobatch_hook(runner)
        weights, scores = hook.batch.weights, hook.batch.scores
        loss = runner.model.head.loss_module
        assert isinstance(loss, InfoBatchLoss)
        self.steps.append(
            dict(
                epoch=runner.epoch,
                images=[s.sample_idx for s in data_batch['data_samples']],
                loss=outputs['loss'].item(),
                kind=type(loss.loss).__name__,
                weights=None if weights is None else weights.tolist(),
                scores=None if weights is None else scores.tolist(),
                augments=runner.model.data_preprocessor.batch_augments))


def run(work_dir, *others, **changes):
    runner = Runner.from_cfg(config(work_dir, **changes))
    log = ClassifierLog()
    for hook in (log, *others):
        runner.register_hook(hook)
    runner.train()
    return runner, log.steps


RECIPES = dict(
    type='SwitchRecipeHook',
    schedule=[
        dict(
            action_epoch=3,
            loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1),
            batch_augments=dict(augments=dict(type='PairedMixup', alpha=0.8))),
        dict(action_epoch=5, loss=dict(type='FocalLoss'), batch_augments=None),
    ])

# In each epoch.
KINDS = ['CrossEntropyLoss'] * 2 + ['LabelSmoothLoss'] * 2 + ['FocalLoss'] * 2


@HOOKS.register_module()
class SaveInEpoch(Hook):
    """Saves in the middle of the first epoch of a recipe."""

    def after_train_iter(self, runner, batch_idx, *args, **kwargs):
        if (runner.epoch, batch_idx) == (2, 0):
            runner.save_checkpoint(
                runner.work_dir, 'within.pth', by_epoch=False)


@pytest.mark.parametrize('num_workers', [0, 2])
def test_a_recipe_is_switched_in_its_epoch(tmp_path, num_workers):
    """Its losses are wrapped, weighted and scored, also when the training is
    resumed."""
    changes = {
        'train_dataloader.num_workers': num_workers,
        'train_dataloader.persistent_workers': num_workers > 0,
    }
    _, steps = run(tmp_path, SaveInEpoch(), **by_epoch(RECIPES, **changes))
    for step in steps:
        epoch = step['epoch']
        assert step['kind'] == KINDS[epoch]
        assert (step['augments'] is not None) is (epoch in (2, 3))
        if step['weights'] is None:
            continue
        weights, scores = map(torch.tensor, (step['weights'], step['scores']))
        if epoch not in (2, 3):
            assert step['loss'] == pytest.approx(
                (weights * scores).mean().item(), rel=1e-4)
        else:
            # An image has the mean of its two mixtures.
            assert scores.shape == weights.shape
    assert max(max(step['weights'] or [1]) for step in steps) > 1
    assert sorted(
        sum((step['images'] for step in steps if step['epoch'] == 5),
            [])) == list(range(SIZE))
    _, later = run(
        tmp_path / 'again',
        **by_epoch(
            RECIPES,
            resume=True,
            load_from=str(tmp_path / 'within.pth'),
            **changes))
    start = [step['epoch'] for step in steps].index(2) + 1
    assert steps[start]['epoch'] == 2
    for before, after in zip(steps[start:], later):
        assert after['kind'] == before['kind']
        # What is mixed is drawn anew, so the next plans are others.
        if before['epoch'] == 2:
            assert after['images'] == before['images']
            assert after['weights'] == before['weights']
