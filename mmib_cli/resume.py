# Copyright (c) mmib contributors. All rights reserved.
"""Go on with a training, and not with another one."""
import argparse
import os.path as osp
from typing import Iterator, Optional

import torch
from mmengine.config import Config
from mmengine.runner import find_latest_checkpoint

from mmib.config.convert import listed_images, lists_checksum
from mmib.config.parts import LENGTH_FIELD, infobatch_hooks
from mmib.errors import Refusal
from mmib.runner.checks import type_name

from .files import loadable

# In a config that `mmib train` trains: the checksum of its listed images.
CHECKSUM = 'listed_images'


def check_resumed(cfg: Config, given: argparse.Namespace, work_dir: str,
                  folder: str) -> None:
    """Refuse to go on with the checkpoint of another training, which no one
    would see: with pruning where CONFIG has none, with other listed images, or
    of another length.

    Args:
        cfg (Config): The config to train.
        given (Namespace): The arguments of the library's script.
        work_dir (str): The work folder.
        folder (str): Folder for a temporary file.
    """
    path = checkpoint_of(cfg, given, work_dir)
    if path is None or not osp.isfile(path):
        return
    # The tensors stay in the file.
    checkpoint = torch.load(
        path, map_location='cpu', weights_only=False, mmap=True)
    text = checkpoint.get('meta', {}).get('cfg')
    if text is None:
        return
    file_name = osp.join(folder, 'resumed.py')
    with open(file_name, 'w', encoding='utf-8') as file:
        file.write(loadable(text))
    before = Config.fromfile(file_name, import_custom_modules=False)
    found = [*differences(before, cfg, given.cfg_options)]
    if found:
        raise Refusal(
            f'--resume would go on with {path}, which is of another training: '
            f'{"; ".join(found)}. Give all options of that training again, or '
            'another --work-dir.')


def checkpoint_of(cfg: Config, given: argparse.Namespace,
                  work_dir: str) -> Optional[str]:
    """The checkpoint that a training goes on with, None if it begins."""
    if given.resume is None and not cfg.get('resume'):
        return None
    if given.resume not in (None, 'auto'):
        return given.resume
    load_from = cfg.get('load_from')
    if given.resume and cfg.get('default_scope') in ('mmpretrain', 'mmdet'):
        # Their scripts forget that of CONFIG.
        load_from = given.cfg_options.get('load_from')
    return load_from or find_latest_checkpoint(work_dir)


def differences(before: Config, after: Config,
                options: dict) -> Iterator[str]:
    """What makes another training of the one before. A length in the options
    is meant."""
    hooks = infobatch_hooks(before)
    if hooks and not infobatch_hooks(after):
        policy = type_name(hooks[0].get('policy') or dict(type='Neyman'))
        option = '--score' if policy == 'ScoreOnly' else '--infobatch'
        yield (f'it has InfoBatchHook with {policy}, and this one has none '
               f'(add {option})')
    lists = [before.get(CHECKSUM), lists_checksum(after)]
    # The library's own script writes no checksum.
    if lists[0] is None and listed_images(before) is not None:
        lists[0] = lists[1]
    if lists[0] != lists[1]:
        yield ('it has other images (correct --subset and --without, and '
               'their files)')
    for name in LENGTH_FIELD.values():
        lengths = [(cfg.get('train_cfg') or {}).get(name)
                   for cfg in (before, after)]
        if lengths[0] != lengths[1] and f'train_cfg.{name}' not in options:
            yield (f'it has `train_cfg.{name} = {lengths[0]}`, and this one '
                   f'{lengths[1]} (if you mean that, add --cfg-options '
                   f'train_cfg.{name}={lengths[1]})')
