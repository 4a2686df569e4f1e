# Copyright (c) mmib contributors. All rights reserved.
"""Train a model: the library's own tools/train.py with mmib's parts
registered, so with the same arguments and a few more. The library is that of
the `default_scope` of CONFIG: MMSegmentation, MMPretrain or MMDetection; any
of them trains a config that names none. CONFIG may also be a name such as
mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512,
mmpretrain::resnet/resnet18_8xb16_cifar10,
mmdet::retinanet/retinanet_r50_fpn_1x_coco,
or mmib:: and the name of a config of mmib.
"""
import argparse
import copy
import os
import os.path as osp
from functools import partial
from tempfile import TemporaryDirectory
from typing import Callable, List, Optional, Tuple

from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope

import mmib
from mmib.errors import Refusal
from mmib.labels.config import listed_images, lists_checksum

from .files import converted_name, loadable, read, report
from .options import (add_conversion_options, check_infobatch, check_spelling,
                      conversion, listing, parser_of, shortening)
from .resume import CHECKSUM, check_work_dir, how_to_go_on, resumed
from .scripts import run_script, show_help


def prepare(convert: Optional[Callable[[Config], Config]],
            listing: Callable[[Config], Config], suffix: str, folder: str,
            ours: argparse.Namespace, given: argparse.Namespace, path: str,
            args: List[str]) -> Tuple[str, List[str]]:
    """Make the config to train, and print what differs.

    Args:
        convert (Callable, optional): Makes the config to train from the
            original one.
        listing (Callable): Puts a list of images into the original one first.
        suffix (str): End of the name of the config to train, and so of the
            work folder.
        folder (str): Folder for the config to train.
        ours (Namespace): The arguments of mmib, which get the ``work_dir``.
        given (Namespace): The arguments of the library's script.
        path (str): Path of the original config.
        args (list[str]): The arguments of the library's script, as given.

    Returns:
        tuple[str, list[str]]: Path of the config to train, the original one if
        it stays; and arguments of the library's script.
    """
    original = read(path)
    before = listing(original)
    after = convert(before) if convert else before
    trained = copy.deepcopy(after)
    trained.merge_from_dict(given.cfg_options)
    name = converted_name(path, before, after) if convert else osp.splitext(
        osp.basename(path))[0]
    name += suffix
    checksum = lists_checksum(trained)
    if checksum is not None:
        after[CHECKSUM] = trained[CHECKSUM] = checksum
    ours.work_dir = given.work_dir or trained.get('work_dir') or osp.join(
        'work_dirs', name)
    check_work_dir(trained, given, ours.work_dir)
    args = resumed(args, trained, given, ours.work_dir)
    if (listed_images(trained) or {}).get('relabel') is not None:
        check_labels(trained)
    rank = os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0'))
    if convert and rank == '0':
        print(report(before, trained), flush=True)
    if after is original and checksum is None:
        return path, args
    # A work folder has the name of its config.
    path = osp.join(folder, f'{name}.py')
    with open(path, 'w', encoding='utf-8') as file:
        file.write(loadable(after.pretty_text))
    return path, args


def check_labels(cfg: Config) -> None:
    """Refuse labels that the training data can't take, before anything else is
    built: only the data set knows its classes."""
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        dataset = DATASETS.build(copy.deepcopy(cfg.train_dataloader.dataset))
        if hasattr(dataset, 'full_init'):
            dataset.full_init()


def change_of(ours: argparse.Namespace) -> Optional[Callable]:
    """What makes the config to train from CONFIG, None where it stays."""
    if ours.infobatch + ours.shorten + ours.score > 1:
        raise Refusal('--infobatch prunes, --shorten trains its control, '
                      'and --score the baseline: give one of them.')
    if ours.infobatch:
        return conversion(ours)
    if ours.shorten:
        check_infobatch(ours, 'policy', 'delta')
        return shortening(ours)
    check_infobatch(ours, 'policy', 'delta', ratio='--infobatch, or --shorten')
    return partial(
        mmib.convert, policy=dict(
            type='ScoreOnly'), delta=1.) if ours.score else None


def main(args: List[str]) -> None:
    parser = parser_of(
        'train',
        __doc__,
        usage='%(prog)s CONFIG ...',
        add_help=False,
        allow_abbrev=False)
    parser.add_argument(
        '--infobatch',
        action='store_true',
        help='convert CONFIG, of the baseline, first. --cfg-options change '
        'the converted config, as if it were a file: train_cfg.max_iters=100 '
        'moves nothing else. Without --work-dir the folder has its name')
    parser.add_argument(
        '--shorten',
        action='store_true',
        help='train as short, and prune nothing: the control that pruning has '
        'to beat')
    parser.add_argument(
        '--score',
        action='store_true',
        help='train the baseline as it is, and score its images for `mmib '
        'report`')
    add_conversion_options(parser)
    if {'-h', '--help'} & set(args):
        show_help('train.py', parser.format_help())
    ours, others = parser.parse_known_args(args)
    check_spelling(others, parser)
    convert = change_of(ours)
    # A training with another list or policy must not go on from these
    # checkpoints.
    subset, without, relabel = (
        osp.splitext(osp.basename(name or ''))[0]
        for name in (ours.subset, ours.without, ours.relabel))
    repaired = ours.repaired and osp.basename(osp.abspath(ours.repaired))
    parts = (subset, without and f'without_{without}', relabel
             and f'relabel_{relabel}', repaired
             and f'repaired_{repaired}', ours.policy)
    suffix = ''.join(f'_{part}' for part in parts if part)
    ours.work_dir = None
    try:
        with TemporaryDirectory(prefix='mmib-') as folder:
            run_script(
                'train.py', others,
                partial(prepare, convert, listing(ours), suffix, folder, ours))
    except KeyboardInterrupt:
        if ours.work_dir is None:
            raise
        raise KeyboardInterrupt(how_to_go_on(args, ours.work_dir)) from None
