# Copyright (c) mmib contributors. All rights reserved.
"""Trainings of a real Runner."""
import numpy as np
import pytest
import torch
from mmengine.runner import Runner, load_checkpoint
from mmpretrain.registry import MODELS

from mmib import InfoBatchLoss
from tests.helpers.segmentors import (assert_equal, infobatch_hook, state_of,
                                      train_and_note, weights_of)
from tests.system.operations import assert_few_more

from .small_classifier import config, train

pytestmark = pytest.mark.mmpretrain

MIXED = {
    'model.train_cfg': dict(augments=[
        dict(type='PairedMixup', alpha=0.8),
        dict(type='PairedCutMix', alpha=1.)
    ]),
    'model.head.loss': dict(
        type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
}
BASELINE = {
    'train_dataloader.sampler.type': 'InfiniteSampler',
    'custom_hooks': []
}


@pytest.fixture(scope='module')
def trained_on_mixtures(tmp_path_factory):
    cfg = config(tmp_path_factory.mktemp('work_dir'))
    ema = dict(type='EMAHook', update_buffers=True)
    return train(cfg.work_dir, **MIXED, custom_hooks=[*cfg.custom_hooks, ema])


def losses(runner):
    history = runner.message_hub.get_scalar('train/loss')
    return history.data[0]


def test_training_scores_each_image_and_saves_iterations(trained_on_mixtures):
    runner = trained_on_mixtures
    run = infobatch_hook(runner).run
    scores = run.table.scores
    assert np.isfinite(scores).all() and (scores != 1).all()
    assert state_of(runner)['iterations']['saved'] > 1
    assert not run.lacks_norms
    # Paths of samples tell what was delivered.
    assert state_of(runner)['paths_comparable'] == [True]


def test_a_trained_model_is_one_without_mmib(trained_on_mixtures):
    """To evaluate, and from a checkpoint, which has the average of EMAHook.
    """
    runner = trained_on_mixtures
    baseline = MODELS.build(runner.cfg.model)
    assert list(runner.model.state_dict()) == list(baseline.state_dict())
    baseline.load_state_dict(runner.model.state_dict())
    loader = runner.train_dataloader
    batch = loader.collate_fn([loader.dataset[i] for i in range(4)])
    scores = [[sample.pred_score for sample in model.eval().val_step(batch)]
              for model in (runner.model, baseline)]
    torch.testing.assert_close(*scores)
    checkpoint = load_checkpoint(
        baseline, f'{runner.work_dir}/epoch_1.pth', strict=True)
    for name in baseline.state_dict():
        assert f'module.{name}' in checkpoint['ema_state_dict']


@pytest.mark.parametrize('policy, rtol',
                         [(dict(type='RandomPruning', ratio=0.), 1e-6),
                          (dict(type='ScoreOnly'), 0)])
def test_what_prunes_nothing_is_the_baseline(tmp_path, policy, rtol):
    """ScoreOnly to the last bit."""
    hook = dict(type='InfoBatchHook', policy=policy, delta=1.)
    ours = train(tmp_path, **MIXED, custom_hooks=[hook])
    baseline = train(tmp_path, **MIXED, **BASELINE)
    np.testing.assert_allclose(losses(ours), losses(baseline), rtol=rtol)
    assert len(np.unique(losses(ours))) > 30
    if rtol == 0:
        assert_equal(weights_of(ours), weights_of(baseline))
    assert (infobatch_hook(ours).run.table.scores != 1).all()


def test_operations_of_a_step(tmp_path):
    size = {'train_cfg.max_iters': 300, 'train_dataloader.dataset.size': 500}
    pruned = {'custom_hooks.0.policy.type': 'Neyman'}
    assert_few_more(
        *(Runner.from_cfg(config(tmp_path / name, **size, **changes))
          for name, changes in (('plain', BASELINE), ('pruned', pruned))),
        at_most=7)


# Loss and mixing of each epoch.
EPOCHS = [('CrossEntropyLoss', False)
          ] * 2 + [('LabelSmoothLoss', True)] * 2 + [('FocalLoss', False)] * 2
RECIPES = dict(
    type='SwitchRecipeHook',
    schedule=[
        dict(
            action_epoch=3,
            loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1),
            batch_augments=dict(augments=dict(type='PairedMixup', alpha=0.8))),
        dict(action_epoch=5, loss=dict(type='FocalLoss'), batch_augments=None),
    ])


def note_recipe(runner, data_batch, outputs):
    batch, loss = infobatch_hook(runner).batch, runner.model.head.loss_module
    assert isinstance(loss, InfoBatchLoss)
    recipe = (type(loss.loss).__name__,
              runner.model.data_preprocessor.batch_augments is not None)
    assert recipe == EPOCHS[runner.epoch]
    images = [sample.sample_idx for sample in data_batch['data_samples']]
    if batch.weights is None:
        return runner.epoch, images, None
    weights, scores = batch.weights, batch.scores
    assert (batch.row_weights is not weights) is recipe[1]
    # Where they are mixed, an image has the mean of its two mixtures.
    assert scores.shape == weights.shape
    if not recipe[1]:
        assert outputs['loss'].item() == pytest.approx(
            (batch.relative_weights * scores).mean().item(), rel=1e-4)
    return runner.epoch, images, weights.tolist()


@pytest.mark.parametrize('num_workers', [0, 2])
def test_a_recipe_is_switched_in_its_epoch(tmp_path, num_workers):
    """Its losses are wrapped, weighted and scored, also when the training is
    resumed."""

    def steps_of(folder, **changes):
        cfg = config(
            folder,
            **{
                'train_cfg': dict(
                    _delete_=True, by_epoch=True, max_epochs=len(EPOCHS)),
                # Labels of numbers aren't mixed.
                'model.data_preprocessor.to_onehot': True,
                'model.head.loss': dict(
                    type='CrossEntropyLoss', use_soft=True),
                'train_dataloader.num_workers': num_workers,
                'train_dataloader.persistent_workers': num_workers > 0,
                'default_hooks': dict(
                    checkpoint=dict(
                        type='CheckpointHook', by_epoch=False, interval=1)),
                'custom_hooks': [
                    RECIPES,
                    dict(
                        type='InfoBatchHook',
                        policy=dict(type='Neyman', ratio=0.6))
                ],
                **changes
            })
        return train_and_note(Runner.from_cfg(cfg), note_recipe)

    steps = steps_of(tmp_path)
    assert max(max(weights or [1]) for _, _, weights in steps) > 1
    last = [images for epoch, images, _ in steps if epoch == 5]
    assert sorted(sum(last, [])) == list(range(22))
    # In the middle of the first epoch of a recipe.
    start = [epoch for epoch, _, _ in steps].index(2) + 1
    later = steps_of(
        tmp_path / 'again',
        resume=True,
        load_from=str(tmp_path / f'iter_{start}.pth'))
    # What is mixed is drawn anew, so the next plans are others.
    same = [step for step in steps[start:] if step[0] == 2]
    assert later[:len(same)] == same != []
