# Copyright (c) mmib contributors. All rights reserved.
"""From batch augmentations of MMPretrain to those that mmib knows."""
import copy
from typing import Any, Iterator

from mmengine.config import Config

from ..runner.checks import type_name
from .parts import add_import

_UNPAIRED = ('Mixup', 'CutMix', 'ResizeMix')


def pair_augments(cfg: Config) -> Config:
    """Let the batch augmentations in a copy of a config mix image i with image
    B - 1 - i, so that InfoBatch knows which images are mixed.

    ``Mixup`` becomes ``PairedMixup``, and ``CutMix`` and ``ResizeMix`` are
    changed alike. MMPretrain need not be installed.
    """
    cfg = copy.deepcopy(cfg)
    for augment in _augments(cfg):
        if type_name(augment) in _UNPAIRED:
            augment['type'] = 'Paired' + type_name(augment)
            add_import(cfg, 'mmib.openmmlab.tasks.classification')
    return cfg


def _augments(cfg: Config) -> Iterator[dict]:
    model = cfg.get('model')
    places = [_get(model, 'train_cfg')]
    owners = [_get(model, 'data_preprocessor'), cfg.get('data_preprocessor')]
    for hook in cfg.get('custom_hooks') or []:
        if isinstance(hook, dict) and type_name(hook) == 'SwitchRecipeHook':
            owners += hook.get('schedule') or []
    places += [_get(owner, 'batch_augments') for owner in owners]
    for place in places:
        augments = _get(place, 'augments')
        if not isinstance(augments, (list, tuple)):
            augments = [augments]
        yield from (each for each in augments if isinstance(each, dict))


def _get(node: Any, key: str) -> Any:
    return node.get(key) if isinstance(node, dict) else None
