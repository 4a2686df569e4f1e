# Copyright (c) mmib contributors. All rights reserved.
"""What a config says: the form of its parts, the length of its run."""
from inspect import isclass
from typing import List, Tuple

from mmengine.config import Config
from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop

from ...errors import Refusal
from ..registry import type_name
from ..runner.checks import needs_known_loop

LENGTH_FIELD = dict(iteration='max_iters', epoch='max_epochs')
_LOOPS = dict(iteration=IterBasedTrainLoop, epoch=EpochBasedTrainLoop)
# How MMEngine wants the parts of a config that conversion reads.
_FORMS = dict(
    train_cfg="dict(type='IterBasedTrainLoop', max_iters=...)",
    train_dataloader='dict(batch_size=..., dataset=..., sampler=...)',
    default_hooks='dict(checkpoint=dict(...))',
    custom_hooks='[dict(type=...)]',
    custom_imports='dict(imports=[...])')


def check_parts(cfg: Config) -> None:
    """Check that the parts of a config are dicts or lists, as MMEngine wants,
    and that a run has data."""
    for name, form in _FORMS.items():
        part = cfg.get(name)
        kinds = dict if form.startswith('dict') else (list, tuple)
        if not (part is None or isinstance(part, kinds)):
            raise Refusal(f'`{name}` is a {type(part).__name__}, which '
                          f'MMEngine can\'t use: write `{name} = {form}`.')
    name = 'train_dataloader'
    if cfg.get('train_cfg') is not None and cfg.get(name) is None:
        raise Refusal('The config has no data to train on: add '
                      f'`{name} = {_FORMS[name]}`.')


def check_baseline(cfg: Config) -> None:
    """Check that a config has the form of MMEngine and trains without
    InfoBatch."""
    check_parts(cfg)
    sampler = (cfg.get('train_dataloader') or {}).get('sampler') or {}
    if type_name(sampler) == 'InfoBatchSampler' or infobatch_hooks(cfg):
        raise Refusal(
            'The config trains with InfoBatch already: convert or shorten the '
            'config that it was made from, or remove InfoBatchHook from '
            '`custom_hooks` and InfoBatchSampler from '
            '`train_dataloader.sampler`.')


def infobatch_hooks(cfg: Config) -> List[dict]:
    """Return the configs of InfoBatchHook in ``custom_hooks``."""
    return hooks_of(cfg, 'InfoBatchHook')


def hooks_of(cfg: Config, name: str) -> List[dict]:
    """Return the configs of the hooks of a type in ``custom_hooks``."""
    return [
        hook for hook in cfg.get('custom_hooks') or []
        if isinstance(hook, dict) and type_name(hook) == name
    ]


def length_of(cfg: Config) -> Tuple[str, int]:
    """Return what a run counts, ``'iteration'`` or ``'epoch'``, and how many.
    """
    train_cfg = cfg.get('train_cfg')
    if train_cfg is None:
        raise Refusal('The config has no training: add `train_cfg = '
                      "dict(type='IterBasedTrainLoop', max_iters=...)`.")
    loop = train_cfg.get('type')
    loop = LOOPS.get(loop) if isinstance(loop, str) else loop
    fields = [name for name in LENGTH_FIELD.values() if name in train_cfg]
    for unit, kind in _LOOPS.items():
        is_kind = (
            issubclass(loop, kind) if isclass(loop) else
            train_cfg.get('by_epoch') is (unit == 'epoch'))
        length = train_cfg.get(LENGTH_FIELD[unit])
        if not is_kind or fields != [LENGTH_FIELD[unit]] or length is None:
            continue
        if not isinstance(length, (int, float)):
            raise Refusal(f'`train_cfg.{LENGTH_FIELD[unit]}` must be a number,'
                          f' but got {length!r}.')
        return unit, int(length)
    raise needs_known_loop(f'`train_cfg = {dict(train_cfg)}`')


def add_import(cfg: Config, module: str) -> None:
    """Let ``custom_imports`` of a config import a module."""
    imports = cfg.get('custom_imports') or dict(allow_failed_imports=False)
    names = imports.get('imports') or []
    names = [names] if isinstance(names, str) else list(names)
    if module not in names:
        names.append(module)
    cfg.custom_imports = dict(imports, imports=names)
