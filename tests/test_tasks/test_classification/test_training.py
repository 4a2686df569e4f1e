# Copyright (c) mmib contributors. All rights reserved.
"""Trainings of a real Runner."""
import pytest

pytest.importorskip('mmpretrain.models', exc_type=ImportError)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.runner import Runner, load_checkpoint  # noqa: E402
from mmpretrain.registry import MODELS  # noqa: E402

from mmib import convert  # noqa: E402
from tests.system.operations import operations_per_step  # noqa: E402
from tests.system.small_training import infobatch_hook  # noqa: E402

from .small_classifier import config, train  # noqa: E402

MIXED = {
    'model.train_cfg': dict(augments=[
        dict(type='PairedMixup', alpha=0.8),
        dict(type='PairedCutMix', alpha=1.)
    ]),
    'model.head.loss': dict(
        type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
}
NO_PRUNING = [
    dict(type='InfoBatchHook', policy=dict(type='RandomPruning', ratio=0.))
]
BASELINE = {
    'train_dataloader.sampler.type': 'InfiniteSampler',
    'custom_hooks': []
}


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp('work_dir'))


@pytest.fixture(scope='module')
def trained_on_mixtures(tmp_path_factory):
    cfg = config(tmp_path_factory.mktemp('work_dir'))
    ema = dict(type='EMAHook', update_buffers=True)
    return train(cfg.work_dir, **MIXED, custom_hooks=[*cfg.custom_hooks, ema])


RESNET = {
    'model.backbone': dict(
        _delete_=True,
        type='ResNet_CIFAR',
        depth=18,
        num_stages=2,
        strides=(1, 2),
        dilations=(1, 1),
        out_indices=(1, ),
        stem_channels=4,
        base_channels=4),
    'model.neck': dict(type='GlobalAveragePooling'),
}


def losses(runner):
    history = runner.message_hub.get_scalar('train/loss')
    return history.data[0]


@pytest.mark.parametrize('kind', ['plain', 'mixed', 'ResNet'])
def test_training_scores_each_image_and_saves_iterations(
        request, tmp_path, kind):
    if kind == 'ResNet':
        runner = train(tmp_path, **RESNET, **MIXED)
    else:
        runner = request.getfixturevalue(
            dict(plain='trained', mixed='trained_on_mixtures')[kind])
    hook = infobatch_hook(runner)
    scores = hook.scores.numpy()
    assert np.isfinite(scores).all() and (scores != 1).all()
    assert hook.planner.saved_iters(hook.sampler.position) > 1
    assert not hook.planner.visits.lacks_norms
    # Paths of samples tell what was delivered.
    assert hook._delivery.comparable == [True]


def test_a_trained_model_is_one_without_mmib(trained_on_mixtures):
    """To evaluate, and from a checkpoint, which has the average of EMAHook.
    """
    runner = trained_on_mixtures
    baseline = MODELS.build(runner.cfg.model)
    assert list(runner.model.state_dict()) == list(baseline.state_dict())
    baseline.load_state_dict(runner.model.state_dict())
    batch = next(
        iter(
            torch.utils.data.DataLoader(
                runner.train_dataloader.dataset,
                4,
                collate_fn=runner.train_dataloader.collate_fn)))
    scores = [[sample.pred_score for sample in model.eval().val_step(batch)]
              for model in (runner.model, baseline)]
    torch.testing.assert_close(*scores)
    checkpoint = load_checkpoint(
        baseline, f'{runner.work_dir}/epoch_1.pth', strict=True)
    assert set(baseline.state_dict()) <= {
        name.replace('module.', '')
        for name in checkpoint['ema_state_dict']
    }


@pytest.mark.parametrize('changes', [{}, MIXED], ids=['plain', 'mixed'])
def test_off_is_off(tmp_path, changes):
    off = train(tmp_path, **changes, custom_hooks=NO_PRUNING)
    baseline = train(tmp_path, **changes, **BASELINE)
    np.testing.assert_allclose(losses(off), losses(baseline), rtol=1e-6)
    assert len(np.unique(losses(off))) > 30


def test_a_converted_config_trains(tmp_path):
    """What MMPretrain mixes with becomes what mmib knows."""
    augments = dict(augments=dict(type='Mixup', alpha=0.8))
    cfg = config(tmp_path, **BASELINE, **{'model.train_cfg': augments})
    cfg.train_cfg.max_iters = 60
    converted = convert(cfg, 0.6, policy=dict(type='MeanThreshold'))
    assert converted.train_cfg.max_iters == 36
    assert 'mmib.tasks.classification' in converted.custom_imports['imports']
    converted.dump(tmp_path / 'converted.py')
    read = Config.fromfile(tmp_path / 'converted.py')
    assert read.model.train_cfg.augments.type == 'PairedMixup'
    runner = Runner.from_cfg(read)
    runner.train()
    hook = infobatch_hook(runner)
    assert hook.planner.saved_iters(hook.sampler.position) > 0


def test_operations_of_a_step(tmp_path):
    """At most 30 more than the baseline's."""
    counts = []
    for changes in (BASELINE, {'custom_hooks.0.policy.type': 'Neyman'}):
        runner = Runner.from_cfg(
            config(
                tmp_path / str(len(counts)), **{
                    'train_cfg.max_iters': 300,
                    'train_dataloader.dataset.size': 500,
                    **changes
                }))
        counts.append(operations_per_step(runner, 150, 214))
    assert counts[1] - counts[0] <= 30, counts
