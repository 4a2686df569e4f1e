# Copyright (c) mmib contributors. All rights reserved.
import copy

import pytest
from mmengine.config import Config

from mmib.openmmlab.config.convert import pair_augments

MODULE = 'mmib.openmmlab.tasks.classification'


class CutMix:
    """As a lazy config has it."""


@pytest.mark.parametrize('place, read', [
    (lambda augments: dict(model=dict(train_cfg=augments)),
     lambda cfg: cfg.model.train_cfg),
    (lambda augments: dict(
        model=dict(data_preprocessor=dict(batch_augments=augments))),
     lambda cfg: cfg.model.data_preprocessor.batch_augments),
    (lambda augments: dict(data_preprocessor=dict(batch_augments=augments)),
     lambda cfg: cfg.data_preprocessor.batch_augments),
    (lambda augments: dict(custom_hooks=[
        dict(type='EMAHook'),
        dict(
            type='SwitchRecipeHook',
            schedule=[
                dict(action_epoch=3, batch_augments=None),
                dict(action_epoch=5, batch_augments=augments)
            ])
    ]), lambda cfg: cfg.custom_hooks[1].schedule[1].batch_augments),
])
def test_every_place_of_a_config(place, read):
    augments = dict(
        augments=[
            dict(type='Mixup', alpha=0.8),
            dict(type=CutMix, alpha=1.),
            dict(type='Mine')
        ],
        probs=[0.5, 0.3, 0.2])
    cfg = Config(place(augments))
    before = copy.deepcopy(cfg)
    converted = pair_augments(cfg)
    assert cfg.to_dict() == before.to_dict()
    assert read(converted) == dict(
        augments=[
            dict(type='PairedMixup', alpha=0.8),
            dict(type='PairedCutMix', alpha=1.),
            dict(type='Mine')
        ],
        probs=[0.5, 0.3, 0.2])
    assert converted.custom_imports == dict(
        allow_failed_imports=False, imports=[MODULE])
    assert pair_augments(converted).to_dict() == converted.to_dict()


def test_one_augmentation_and_imports_of_the_config():
    augments = dict(type='mmpretrain.ResizeMix', alpha=1.)
    imports = dict(imports='mine', allow_failed_imports=True)
    converted = pair_augments(
        Config(
            dict(
                model=dict(train_cfg=dict(augments=augments)),
                custom_imports=imports)))
    assert converted.model.train_cfg.augments.type == 'PairedResizeMix'
    assert converted.custom_imports == dict(imports, imports=['mine', MODULE])


@pytest.mark.parametrize(
    'cfg',
    [
        dict(),
        dict(model=None, custom_hooks=None),
        dict(
            model=dict(
                train_cfg=None, data_preprocessor=dict(batch_augments=None))),
        dict(model=dict(train_cfg=dict(augments=None))),
        # Only batch augmentations are paired.
        dict(model=dict(neck=dict(augments=[dict(type='Mixup')]))),
        dict(custom_hooks=[dict(type='Mine', augments=dict(type='CutMix'))]),
    ])
def test_a_config_without_augmentations_stays(cfg):
    assert pair_augments(Config(cfg)).to_dict() == cfg
