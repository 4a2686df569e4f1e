# Copyright (c) mmib contributors. All rights reserved.
"""Go on with a training, and not with another one."""
import argparse
import os.path as osp
from typing import Iterator, Optional

import torch
from mmengine.config import Config
from mmengine.runner import find_latest_checkpoint

from mmib.errors import Refusal
from mmib.labels.config import listed_images
from mmib.openmmlab.config.parts import LENGTH_FIELD, infobatch_hooks

from .files import loadable

# In a config that `mmib train` trains: the checksum of its listed images and
# repaired masks.
CHECKSUM = 'listed_images'


def check_work_dir(cfg: Config, given: argparse.Namespace,
                   work_dir: str) -> None:
    """Refuse a work folder of another training, which no one would see: to go
    on with its checkpoint where pruning, the listed images or the length
    differ; or to train in its place where a list of the same name was another
    one.

    Args:
        cfg (Config): The config to train.
        given (Namespace): The arguments of the library's script.
        work_dir (str): The work folder.
    """
    if given.resume is None and not cfg.get('resume'):
        if CHECKSUM in cfg and not given.work_dir and osp.isdir(work_dir):
            before = _config_in(find_latest_checkpoint(work_dir))
            if before.get(CHECKSUM, cfg[CHECKSUM]) != cfg[CHECKSUM]:
                raise Refusal(
                    f'{work_dir} has a training with other images or labels, '
                    'of files of the same names: give this one another '
                    '--work-dir.')
        return
    path = given.resume
    if path in (None, 'auto'):
        # These scripts forget the one in CONFIG.
        forgets = path and cfg.get('default_scope') in ('mmpretrain', 'mmdet')
        path = (given.cfg_options if forgets else cfg).get('load_from')
    path = path or find_latest_checkpoint(work_dir)
    before = _config_in(path)
    found = '; '.join(
        differences(before, cfg, given.cfg_options) if before else ())
    if found:
        raise Refusal(
            f'--resume would go on with {path}, which is of another training: '
            f'{found}. Give all options of that training again, or another '
            '--work-dir.')


def _config_in(path: Optional[str]) -> Config:
    """The config in a checkpoint, empty where there is none."""
    if path is None or not osp.isfile(path):
        return Config()
    # The tensors stay in the file.
    checkpoint = torch.load(
        path, map_location='cpu', weights_only=False, mmap=True)
    text = checkpoint.get('meta', {}).get('cfg')
    return Config.fromstring(loadable(text), '.py') if text else Config()


def differences(before: Config, after: Config, options: dict) -> Iterator[str]:
    """What makes another training of the one before. A length in the options
    is meant."""
    if infobatch_hooks(before) and not infobatch_hooks(after):
        yield ('it has InfoBatchHook, and this one has none (add --infobatch, '
               'or --score)')
    lists = [before.get(CHECKSUM), after.get(CHECKSUM)]
    # The library's own script writes no checksum.
    if lists[0] != lists[1] and (lists[0] or not listed_images(before)):
        yield ('it has other images, or other labels (correct --subset, '
               '--without, --relabel and --repaired, and their files)')
    for name in LENGTH_FIELD.values():
        old, new = ((cfg.get('train_cfg') or {}).get(name)
                    for cfg in (before, after))
        if old != new and f'train_cfg.{name}' not in options:
            yield (f'it has `train_cfg.{name} = {old}`, and this one {new} '
                   f'(if you mean that, add --cfg-options train_cfg.{name}='
                   f'{new})')
