# Copyright (c) mmib contributors. All rights reserved.
"""Resume a run, and refuse to resume another one."""
import argparse
import os.path as osp
import shlex
from typing import Iterator, List, Optional

import torch
from mmengine.config import Config
from mmengine.runner import find_latest_checkpoint

from mmib.errors import Refusal
from mmib.labels.config import listed_images
from mmib.openmmlab.config.parts import LENGTH_FIELD, infobatch_hooks

from .files import check_checkpoint, loadable
from .scripts import library_of

# In a config that `mmib train` trains: the checksum of its listed images and
# repaired masks.
CHECKSUM = 'listed_images'


def last_checkpoint(work_dir: str) -> Optional[str]:
    """Return the checkpoint that MMEngine resumes from in a work folder, or
    None if there is none yet.

    Raises:
        Refusal: If the file is gone, or the note of it is empty.
    """
    note = osp.join(work_dir, 'last_checkpoint')
    if not osp.isfile(note):  # MMEngine would print something.
        return None
    path = find_latest_checkpoint(work_dir)
    check_checkpoint(
        path or "''", f'the path in {note}, or name another '
        'checkpoint by --resume FILE')
    return path


def _without_resume(args: List[str]) -> List[str]:
    """Return the arguments without ``--resume`` and the file that it names."""
    for at, arg in enumerate(args):
        if arg.partition('=')[0] == '--resume':
            after = args[at + 1:]
            names_file = arg == '--resume' and after and after[0][:1] != '-'
            return [*args[:at], *(after[1:] if names_file else after)]
    return args


def how_to_go_on(args: List[str], work_dir: str) -> str:
    """Return what to do after ``mmib train`` was stopped with these arguments.
    """
    if last_checkpoint(work_dir) is None:
        return f'There is no checkpoint in {work_dir} yet to go on from.'
    command = ['mmib', 'train', *_without_resume(args), '--resume']
    return f'To go on from the last checkpoint: {shlex.join(command)}'


def resumed(args: List[str], cfg: Config, given: argparse.Namespace,
            work_dir: str) -> List[str]:
    """Let ``--resume`` go on from the file that it names, in each library. Let
    ``--resume`` without a file go on from the last checkpoint of the work
    folder, also where there is a ``load_from``, from which MMEngine would go
    on. Without a checkpoint the run begins, from that ``load_from``.

    Returns:
        list[str]: The arguments for the library's script.
    """
    if given.resume not in (None, 'auto') and library_of(cfg) == 'mmseg':
        # The option of its script takes no file.
        load_from = f'load_from={given.resume}'
        return [*_without_resume(args), '--resume', '--cfg-options', load_from]
    if given.resume != 'auto' or not cfg.get('load_from'):
        return args
    if last_checkpoint(work_dir) is None:
        return _without_resume(args)
    return [*args, '--cfg-options', 'load_from=None']


def check_work_dir(cfg: Config, given: argparse.Namespace,
                   work_dir: str) -> None:
    """Refuse a work folder of another run, which no one would see: to go
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
            before = _config_in(last_checkpoint(work_dir))
            if before.get(CHECKSUM, cfg[CHECKSUM]) != cfg[CHECKSUM]:
                raise Refusal(
                    f'{work_dir} has a run with other images or labels, '
                    'of files of the same names: give this one another '
                    '--work-dir.')
        check_checkpoint(cfg.get('load_from'), '`load_from`')
        return
    path = cfg.get('load_from') if given.resume is None else given.resume
    path = last_checkpoint(work_dir) if path in (None, 'auto') else path
    check_checkpoint(path or cfg.get('load_from'), '--resume or `load_from`')
    before = _config_in(path)
    found = '; '.join(
        differences(before, cfg, given.cfg_options) if before else ())
    if found:
        raise Refusal(
            f'--resume would go on with {path}, which is of another run: '
            f'{found}. Give all options of that run again, or another '
            '--work-dir.')


def _config_in(path: Optional[str]) -> Config:
    """Return the config in a checkpoint, or an empty config."""
    if path is None or not osp.isfile(path):
        return Config()
    # The tensors stay in the file.
    checkpoint = torch.load(
        path, map_location='cpu', weights_only=False, mmap=True)
    text = checkpoint.get('meta', {}).get('cfg')
    return Config.fromstring(loadable(text), '.py') if text else Config()


def differences(before: Config, after: Config, options: dict) -> Iterator[str]:
    """Yield what differs from the run before. A length in the options is
    intended."""
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
