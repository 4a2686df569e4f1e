# Copyright (c) mmib contributors. All rights reserved.
"""The conversion of batch augmentations in a config, without any library."""
import copy
from typing import Any, Iterator

from mmengine.config import Config

from ..config.schedule import type_name

_MODULE = 'mmib.tasks.classification'
_UNPAIRED = ('Mixup', 'CutMix', 'ResizeMix')


def pair_augments(cfg: Config) -> Config:
    """Let the batch augmentations of a config mix image i with image
    B - 1 - i, so that InfoBatch knows which images are mixed.

    Args:
        cfg (Config): A config of any library, which stays as it is.

    Returns:
        Config: A copy with ``PairedMixup`` in place of ``Mixup``, the same for
        ``CutMix`` and ``ResizeMix``, and the import of their module.
    """
    cfg = copy.deepcopy(cfg)
    found = [each for each in _augments(cfg) if type_name(each) in _UNPAIRED]
    for augment in found:
        augment['type'] = 'Paired' + type_name(augment)
    if found:
        imports = cfg.get('custom_imports') or dict(allow_failed_imports=False)
        names = imports.get('imports') or []
        names = [names] if isinstance(names, str) else list(names)
        cfg.custom_imports = dict(
            imports, imports=[*names, *{_MODULE}.difference(names)])
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
