# Copyright (c) mmib contributors. All rights reserved.
"""The images and labels that a config trains on."""
import copy
import zlib
from typing import Optional, Sequence, Tuple, Union

from mmengine.config import Config

from ..errors import Refusal
from ..openmmlab.config.parts import add_import
from ..openmmlab.registry import type_name
from .listed_images import ListedImages
from .lists import entries_of
from .masks import masks_checksum

_OUTER_WRAPPERS = ('RepeatDataset', 'ClassBalancedDataset',
                   'MultiImageMixDataset')


def list_images(cfg: Config, **lists: Union[str, Sequence, None]) -> Config:
    """Let ``ListedImages`` wrap the dataset in a copy of a config.

    What repeats or mixes images wraps ``ListedImages``, and so has listed
    images only. A ``ListedImages`` in the config gets the list that it lacks.
    The lists and repaired masks are read, and no data.

    Args:
        cfg (Config): The config of a run.
        **lists: Arguments of ``ListedImages``; those that are None aren't
            given.

    Raises:
        Refusal: If a list or a folder can't be used.
    """
    cfg = copy.deepcopy(cfg)
    outer, _ = _around_listed(cfg)
    if not outer:
        raise Refusal('The config has no dataset whose images could be '
                      'listed: add `train_dataloader.dataset`.')
    if type_name(outer['dataset']) != ListedImages.__name__:
        outer['dataset'] = dict(
            type=ListedImages.__name__, dataset=outer['dataset'])
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


def listed_images(cfg: Config) -> dict:
    """Return the lists in a config: the arguments of its ``ListedImages`` that
    aren't None. An empty dict where nothing is listed."""
    dataset = _around_listed(cfg)[0].get('dataset') or {}
    if type_name(dataset) != ListedImages.__name__:
        return {}
    return {
        option: dataset[option]
        for option in ('images', 'without', 'relabel', 'repaired')
        if dataset.get(option) is not None
    }


def listed_name(cfg: Config) -> str:
    """Return the dotted name of the dataset that ``ListedImages`` is, or would
    wrap."""
    return _around_listed(cfg)[1]


def lists_checksum(cfg: Config) -> Optional[str]:
    """Return the checksum of the lists in a config, whatever the files are
    called. None where nothing is listed.

    Raises:
        Refusal: If a list or a folder can't be used.
    """
    names = {
        option: masks_checksum(given) if option == 'repaired' else sorted(
            (str(entry.image), entry.label * (option == 'relabel'))
            for entry in entries_of(given, option))
        for option, given in listed_images(cfg).items()
    }
    return f'{zlib.crc32(repr(names).encode()):08x}' if names else None


def _around_listed(cfg: Config) -> Tuple[dict, str]:
    """Return the dict whose dataset ``ListedImages`` is or would wrap, or an
    empty dict, and the dotted name of this dataset."""
    outer, name = cfg.get('train_dataloader') or {}, 'train_dataloader.dataset'
    while isinstance(outer.get('dataset'), dict):
        if type_name(outer['dataset']) not in _OUTER_WRAPPERS:
            return outer, name
        outer, name = outer['dataset'], f'{name}.dataset'
    return {}, name
