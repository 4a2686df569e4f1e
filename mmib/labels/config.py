# Copyright (c) mmib contributors. All rights reserved.
"""Which images and labels a config trains on."""
import copy
import zlib
from typing import Optional, Sequence, Union

from mmengine.config import Config

from ..errors import Refusal
from ..openmmlab.config.parts import add_import
from ..openmmlab.runner.checks import type_name
from .listed_images import ListedImages
from .lists import entries_of, judged_wrong
from .masks import masks_checksum

_OUTER_WRAPPERS = ('RepeatDataset', 'ClassBalancedDataset',
                   'MultiImageMixDataset')
_NAME = ListedImages.__name__


def list_images(cfg: Config,
                images: Union[str, Sequence, None] = None,
                without: Union[str, Sequence, None] = None,
                relabel: Optional[str] = None,
                repaired: Optional[str] = None) -> Config:
    """Let ``ListedImages`` wrap the dataset in a copy of a config, with the
    images to show, the images to leave out, the review that has right labels,
    the folder of repaired masks, or some of them.

    What repeats or mixes images wraps ``ListedImages``, and so has listed
    images only. A ``ListedImages`` in the config gets the list that it lacks.
    The lists and repaired masks are read, and no data.

    Raises:
        Refusal: If a list or a folder can't be used.
    """
    cfg = copy.deepcopy(cfg)
    outer = _around_listed(cfg)
    if outer is None:
        raise Refusal('The config has no dataset whose images could be '
                      'listed: add `train_dataloader.dataset`.')
    if type_name(outer['dataset']) != _NAME:
        outer['dataset'] = dict(type=_NAME, dataset=outer['dataset'])
    lists = dict(
        images=images, without=without, relabel=relabel, repaired=repaired)
    for name, given in lists.items():
        if given is None:
            continue
        if outer['dataset'].get(name) is not None:
            # Numbers in a list of a list would count other images.
            raise Refusal(
                f'ListedImages in the config has `{name}` already, '
                f'{outer["dataset"][name]!r}: take the config without it, or '
                'give one of both (`mmib review` merges reviews).')
        outer['dataset'][name] = given
    lists_checksum(cfg)  # Checks the files.
    add_import(cfg, 'mmib.labels')
    return cfg


def listed_images(cfg: Config) -> Optional[dict]:
    """What ``ListedImages`` in a config has, ``images``, ``without``,
    ``relabel`` and ``repaired``, as the config has it. None where nothing is
    listed."""
    outer = _around_listed(cfg)
    if outer is None or type_name(outer['dataset']) != _NAME:
        return None
    names = 'images', 'without', 'relabel', 'repaired'
    return {name: outer['dataset'].get(name) for name in names}


def lists_checksum(cfg: Config) -> Optional[str]:
    """Checksum of what :func:`listed_images` names, whatever the files are
    called. None where nothing is listed.

    Raises:
        Refusal: If a list or a folder can't be used.
    """
    lists = listed_images(cfg)
    if lists is None:
        return None
    review, repaired = lists.pop('relabel'), lists.pop('repaired')
    names: list = [
        images is not None and sorted(
            name for _, name in entries_of(images, left_out=name == 'without'))
        for name, images in lists.items()
    ]
    if review is not None:
        names.append(
            sorted((image, row.label)
                   for image, row in judged_wrong(review).items()))
    if repaired is not None:
        names.append(masks_checksum(repaired))
    return f'{zlib.crc32(repr(names).encode()):08x}'


def _around_listed(cfg: Config) -> Optional[dict]:
    """What has the dataset that ``ListedImages`` wraps, or would wrap."""
    outer = cfg.get('train_dataloader') or {}
    while isinstance(outer.get('dataset'), dict):
        if type_name(outer['dataset']) not in _OUTER_WRAPPERS:
            return outer
        outer = outer['dataset']
    return None
