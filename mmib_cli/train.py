# Copyright (c) mmib contributors. All rights reserved.
"""Train a model with the library's own script, also with InfoBatch."""
import argparse
import copy
import inspect
import os
import os.path as osp
import sys
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Callable, List, Optional, Tuple
from urllib.parse import quote

from mmengine.config import Config
from mmengine.registry import DATASETS, HOOKS, DefaultScope

import mmib
from mmib.errors import Refusal
from mmib.labels.config import listed_images, lists_checksum
from mmib.openmmlab.config.parts import hooks_of, infobatch_hooks, length_of
from mmib.openmmlab.registry import type_name
from mmib.pruning import Neyman
from mmib.stop import EXIT_CODE

from .answer import answer
from .data import check_data
from .files import converted_name, loadable, read
from .options import check_options_of, conversion, listing, shortening
from .resume import CHECKSUM, check_work_dir, how_to_go_on, resumed
from .scripts import run_script


def prepare(folder: str, parsed: argparse.Namespace,
            path: str) -> Tuple[str, List[str]]:
    """Write the config to train, and print what changes.

    Args:
        folder (str): Folder for the config to train.
        parsed (Namespace): The arguments, which get the folder that the
            run writes to as ``trains_in``.
        path (str): Path of the original config.

    Returns:
        tuple[str, list[str]]: Path of the config to train, the original one if
        it stays; and arguments of the library's script.
    """
    convert, original = change_of(parsed), read(path)
    before = listing(parsed)(original)
    after = convert(before) if convert else before
    trained = copy.deepcopy(after)
    trained.merge_from_dict(parsed.cfg_options)
    # A run with other images or another policy must not go on from these
    # checkpoints.
    name = converted_name(path, before, after) if convert else osp.splitext(
        osp.basename(path))[0]
    name += lists_suffix(parsed)
    if parsed.infobatch:
        name += policy_suffix(after)
    elif parsed.shorten:
        name += steps_suffix(after)
    checksum = lists_checksum(trained)
    if checksum is not None:
        after[CHECKSUM] = trained[CHECKSUM] = checksum
    parsed.trains_in = parsed.work_dir or trained.get('work_dir') or osp.join(
        'work_dirs', name)
    check_work_dir(trained, parsed, parsed.trains_in)
    args = resumed(parsed.script_args, trained, parsed, parsed.trains_in)
    check_data(trained, 'train', *() if parsed.no_validate else ('val', ))
    if 'relabel' in listed_images(trained):
        check_labels(trained)
    if convert and rank_of_process() == '0':
        outlook = answer(before, trained, parsed, advises=True)
        print(outlook.text(parsed.verbose), flush=True)
    if after is original and checksum is None:
        return path, args
    # A work folder has the name of its config.
    path = osp.join(folder, f'{name}.py')
    with open(path, 'w', encoding='utf-8') as file:
        file.write(loadable(after.pretty_text))
    return path, args


def rank_of_process() -> str:
    """Return the rank that a launcher gave this process."""
    return os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0'))


def lists_suffix(parsed: argparse.Namespace) -> str:
    """Name the listed images and repaired masks, as the end of a folder."""
    files = {
        '_': parsed.subset,
        '_without_': parsed.without,
        '_relabel_': parsed.relabel
    }
    suffix = ''.join(begin + osp.splitext(osp.basename(osp.normpath(file)))[0]
                     for begin, file in files.items() if file)
    if parsed.repaired:
        suffix += f'_repaired_{osp.basename(osp.abspath(parsed.repaired))}'
    return suffix


def policy_suffix(cfg: Config) -> str:
    """Name the policy of a converted config, as the end of a folder: its type,
    and its arguments that aren't the defaults, in one order. The default
    policy has no name, and a ratio that the length shows isn't named again.
    """
    hook, = infobatch_hooks(cfg)
    policy, arguments = HOOKS.build(hook).policy, dict(hook['policy'])
    kind = type_name(arguments)
    del arguments['type']
    if isinstance(policy, Neyman) and length_of(cfg)[0] == 'iteration':
        arguments.pop('ratio', None)
    defaults = {
        name: _word(parameter.default)
        for name, parameter in inspect.signature(type(
            policy)).parameters.items()
    }
    own = [
        f'-{name}-{_word(value)}' for name, value in sorted(arguments.items())
        if _word(value) != defaults.get(name)
    ]
    return f'_{kind}' + ''.join(own) if own or kind != 'Neyman' else ''


def steps_suffix(cfg: Config) -> str:
    """Name the steps of a control, as the end of a folder, unless they are
    those of the config."""
    hooks = hooks_of(cfg, 'StepScaleHook')
    if not hooks:
        return ''
    scale = hooks[0].get('scale')
    return '_long-steps' + (f'-{_word(scale)}' if scale else '')


def _word(value: Any) -> str:
    """Write an argument as a part of a folder's name: without brackets and
    spaces, and another word for another value."""
    values = value if isinstance(value, (tuple, list)) else [value]
    return '-'.join(quote(str(each), safe='') for each in values)


def check_labels(cfg: Config) -> None:
    """Refuse labels that the training data can't take, before anything else is
    built: only the dataset knows its classes."""
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        dataset = DATASETS.build(copy.deepcopy(cfg.train_dataloader.dataset))
        if hasattr(dataset, 'full_init'):
            dataset.full_init()


def change_of(ours: argparse.Namespace) -> Optional[Callable]:
    """Return the function that converts CONFIG, or None if CONFIG stays."""
    if ours.infobatch + ours.shorten + ours.score > 1:
        raise Refusal('--infobatch prunes, --shorten trains its control, '
                      'and --score the baseline: give one of them.')
    if ours.shorten:
        return shortening(ours)
    check_options_of(ours, '--shorten', 'steps')
    if ours.infobatch:
        return conversion(ours)
    check_options_of(ours, '--infobatch, or --shorten', 'policy', 'delta',
                     'ratio')
    return partial(
        mmib.convert, policy=dict(
            type='ScoreOnly'), delta=1.) if ours.score else None


def main(parsed: argparse.Namespace) -> None:
    parsed.trains_in = None
    try:
        with TemporaryDirectory(prefix='mmib-') as folder:
            run_script('train.py', parsed, partial(prepare, folder))
    except KeyboardInterrupt:
        if parsed.trains_in is None:
            raise
        raise KeyboardInterrupt(how_to_go_on(parsed.args,
                                             parsed.trains_in)) from None
    except SystemExit as end:
        # At a signal of the cluster.
        if end.code == EXIT_CODE and rank_of_process() == '0':
            print(
                'Stopped.',
                how_to_go_on(parsed.args, parsed.trains_in),
                file=sys.stderr)
        raise
