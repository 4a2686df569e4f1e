# Copyright (c) mmib contributors. All rights reserved.
"""The configs that inherit those of MMPretrain."""
import glob
import os.path as osp

import mmengine
import pytest

pytest.importorskip('mmpretrain.models', exc_type=ImportError)

from mmengine.config import Config  # noqa: E402

import mmib  # noqa: E402
from mmib_cli.zoo import resolve_config  # noqa: E402

from .test_configs import ROOT, check_batch_size  # noqa: E402

# Each by its original, and what differs besides what conversion changes.
FLAGSHIPS = {
    'mae/mae_vit-base-p16_8xb512-amp-coslr-300e-infobatch_in1k': (
        'mae/mae_vit-base-p16_8xb512-amp-coslr-300e_in1k', {
            'custom_hooks.0.ema': 0.8
        }),
    'resnet/resnet18_8xb16-infobatch_cifar10': (
        'resnet/resnet18_8xb16_cifar10', {}),
    'resnet/resnet18_8xb16-infobatch_cifar100': (
        'resnet/resnet50_8xb16_cifar100', {
            'model.backbone.depth': 18,
            'model.head.in_channels': 512
        }),
    'resnet/resnet50_8xb32-90e-infobatch_in1k': (
        'resnet/resnet50_8xb32_in1k', {
            'train_cfg.max_epochs': 90,
            'param_scheduler.milestones': [30, 60, 80]
        }),
    'swin_transformer/swin-tiny_16xb64-infobatch_in1k': (
        'swin_transformer/swin-tiny_16xb64_in1k', {
            'custom_imports.imports': [
                'mmib', 'mmib.openmmlab.tasks.classification'
            ],
            'model.train_cfg.augments': [
                dict(type='PairedMixup', alpha=0.8),
                dict(type='PairedCutMix', alpha=1.0)
            ]
        }),
}
TINY = 'resnet/resnet50_8xb16-infobatch_tiny-imagenet'


def load(name):
    return Config.fromfile(osp.join(ROOT, 'configs', f'{name}.py'))


@pytest.mark.parametrize('name', FLAGSHIPS)
def test_flagships_are_conversions(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base, changes = FLAGSHIPS[name]
    converted = mmib.convert(
        Config.fromfile(resolve_config(f'mmpretrain::{base}')))
    converted.merge_from_dict(changes)
    assert load(name).to_dict() == converted.to_dict()


def test_tiny_imagenet_differs_from_cifar_100_in_data_alone():
    cfg, cifar = load(TINY), load('resnet/resnet18_8xb16-infobatch_cifar100')
    for key in ('train_cfg', 'param_scheduler', 'optim_wrapper',
                'custom_hooks', 'default_hooks'):
        assert cfg[key] == cifar[key]
    assert cfg.train_dataloader.sampler == cifar.train_dataloader.sampler
    assert cfg.model.head.num_classes == 200
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        assert loader.dataset.type == 'CustomDataset'


def test_metafiles_have_the_batch_sizes():
    checked = 0
    for folder in ('mae', 'resnet', 'swin_transformer'):
        meta = mmengine.load(osp.join(ROOT, 'configs', folder, 'metafile.yml'))
        checked += len(list(map(check_batch_size, meta['Models'])))
    assert checked == len(FLAGSHIPS) + len(
        glob.glob(osp.join(ROOT, 'configs', f'{TINY}.py')))
