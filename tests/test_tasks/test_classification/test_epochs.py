# Copyright (c) mmib contributors. All rights reserved.
"""Trainings that count epochs, with hooks of MMPretrain."""
import pytest

pytest.importorskip('mmpretrain.models', exc_type=ImportError)

import torch  # noqa: E402
from mmengine.dataset import DefaultSampler  # noqa: E402
from mmengine.hooks import Hook  # noqa: E402
from mmengine.registry import HOOKS  # noqa: E402
from mmengine.runner import Runner  # noqa: E402
from torch import nn  # noqa: E402

from mmib import InfoBatchLoss  # noqa: E402
from tests.system.small_training import infobatch_hook  # noqa: E402

from .small_classifier import config  # noqa: E402
from .test_training import RESNET  # noqa: E402

MAX_EPOCHS, SIZE, BATCH = 6, 22, 4
PRUNES = dict(type='InfoBatchHook', policy=dict(type='Budget', ratio=0.6))


def by_epoch(*hooks, **changes):
    """Changes of ``config`` for a training that counts epochs."""
    return {
        'train_cfg': dict(_delete_=True, by_epoch=True, max_epochs=MAX_EPOCHS),
        'train_dataloader.sampler.type': 'InfoBatchEpochSampler',
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


@HOOKS.register_module()
class Statistics(Hook):
    """Writes down what PreciseBNHook made of an epoch, and by hand what it
    is."""

    # After PreciseBNHook.
    priority = 'NORMAL'

    def __init__(self):
        self.pairs = []

    def after_train_epoch(self, runner):
        model, loader = runner.model, runner.train_dataloader
        norm = next(m for m in model.modules()
                    if isinstance(m, nn.BatchNorm2d))
        sampler = DefaultSampler(loader.dataset, seed=loader.sampler.seed)
        sampler.set_epoch(runner.epoch)
        batches = torch.utils.data.DataLoader(
            loader.dataset,
            loader.batch_size,
            sampler=sampler,
            collate_fn=loader.collate_fn)
        means, inputs = [], []
        handle = norm.register_forward_pre_hook(
            lambda _, args: inputs.append(args[0]))
        now = norm.running_mean.clone()
        with torch.no_grad():
            for i, batch in enumerate(batches):
                if i * BATCH >= 8:
                    break
                # Statistics of the layer's inputs need no update of them.
                model.eval()
                model(**model.data_preprocessor(batch, False))
                means.append(inputs[-1].mean((0, 2, 3)))
        model.train()
        handle.remove()
        self.pairs.append((now, torch.stack(means).mean(0)))


@pytest.mark.parametrize('num_workers', [0, 2])
def test_precise_batch_norm(tmp_path, num_workers):
    """It reads whole data, as in the baseline, and the plans stay as they
    are."""
    changes = {
        **RESNET,
        'train_dataloader.num_workers': num_workers,
        'train_dataloader.persistent_workers': num_workers > 0,
    }
    log = Statistics()
    precise = dict(type='PreciseBNHook', num_samples=8, priority=30)
    runner, steps = run(tmp_path, log, **by_epoch(precise, **changes))
    assert len(log.pairs) == MAX_EPOCHS
    for ours, expected in log.pairs:
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    _, alone = run(tmp_path / 'alone', **by_epoch(**changes))
    assert [len(s['images'])
            for s in steps] == [len(s['images']) for s in alone]
    for epoch in range(MAX_EPOCHS):
        images = sum((s['images'] for s in steps if s['epoch'] == epoch), [])
        assert len(set(images)) == len(images)
    assert len(steps) < 0.8 * MAX_EPOCHS * 6
