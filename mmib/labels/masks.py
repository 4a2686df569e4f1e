# Copyright (c) mmib contributors. All rights reserved.
"""Masks that take the place of those of the same names in a data set."""
import io
import os
import os.path as osp
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence, Set, Union

from mmengine import fileio
from mmengine.dataset import BaseDataset
from PIL import Image

from ..errors import Refusal

Folder = Union[str, os.PathLike]
# Of files that keep the numbers of classes as they are.
SUFFIXES = ('.png', '.bmp', '.tif', '.tiff')
# What PIL calls images of one number a pixel.
_NUMBERS = ('1', 'L', 'P', 'I', 'I;16')


def mask_files(folder: Folder) -> List[Path]:
    """The masks below a folder, in the order of their names, at least one."""
    files = sorted(
        path for path in Path(folder).rglob('*')
        if path.suffix.lower() in SUFFIXES)
    if not files:
        raise _error(f'{folder} has no masks, files that end in '
                     f'{", ".join(SUFFIXES)}')
    return files


def masks_checksum(folder: Folder) -> int:
    """Checksum of the masks below a folder, with their names, of 32 bits."""
    checksum = 0
    for path in mask_files(folder):
        name = os.fsencode(path.relative_to(folder).as_posix())
        checksum = zlib.crc32(name + path.read_bytes(), checksum)
    return checksum


def short_names(paths: Iterable[str]) -> Dict[str, str]:
    """The name of each file: the end of its path, of as few parts as tell all
    files apart."""
    parts = {path: _parts(path) for path in paths}
    count, length = len({*parts.values()}), 1
    while len({each[-length:] for each in parts.values()}) < count:
        length += 1
    return {path: '/'.join(each[-length:]) for path, each in parts.items()}


def replace_masks(datasets: Sequence[Any], folder: Folder) -> Set[str]:
    """Let data sets of MMSegmentation load the masks below a folder in the
    place of their own ones with the same names, which are ends of their
    paths. Returns the masks that take the place of others.

    Raises:
        Refusal: If a mask can't take the place of another one.
    """
    paths = [_mask_paths(dataset) for dataset in datasets]
    new = _find(folder, {path for each in paths for path in each})
    for dataset, own in zip(datasets, paths):
        if not new.keys().isdisjoint(own):
            _replace(dataset, new)
    return {*new.values()}


def _mask_paths(dataset: Any) -> List[str]:
    paths = [
        dataset.get_data_info(i).get('seg_map_path')
        for i in range(len(dataset))
    ] if isinstance(dataset, BaseDataset) else [None]
    if None in paths:
        raise _error(f'{type(dataset).__name__} doesn\'t tell `seg_map_path` '
                     'of its images, so no mask can take its place')
    return [str(path) for path in paths]


def _find(folder: Folder, paths: Iterable[str]) -> Dict[str, str]:
    """Each mask below a folder, by the path of the one that it replaces."""
    by_name = defaultdict(list)
    for path in paths:
        by_name[osp.basename(path)].append(path)
    new: Dict[str, str] = {}
    for file in mask_files(folder):
        end = file.relative_to(folder).parts
        like = [
            path for path in by_name[file.name]
            if _parts(path)[-len(end):] == end
        ]
        if len(like) != 1:
            text = f'{file} has the name of {len(like) or "no"} masks of the '\
                   'data set'
            raise _error(text +
                         ': put it into folders that are called as there' *
                         (len(like) > 1))
        _check(like[0], file)
        new[like[0]] = str(file)
    return new


def _check(old: str, new: Path) -> None:
    with Image.open(io.BytesIO(fileio.get(old))) as image:
        size = image.size
    with Image.open(new) as image:
        if image.size != size:
            raise _error(f'{new} has {image.size} pixels, and {old}, whose '
                         f'place it would take, {size}')
        if image.mode not in _NUMBERS:
            raise _error(f'{new} has colours ({image.mode}), and not the '
                         'number of a class in each pixel')


def _replace(dataset: BaseDataset, new: Dict[str, str]) -> None:
    infos = [dataset.get_data_info(i) for i in range(len(dataset))]
    for info in infos:
        path = str(info['seg_map_path'])
        info['seg_map_path'] = new.get(path, path)
    # Whatever asks for an image gets it so, also workers.
    dataset.data_list = infos
    if dataset.serialize_data:
        dataset.data_bytes, dataset.data_address = dataset._serialize_data()


def _parts(path: str) -> tuple:
    return Path(osp.abspath(path)).parts[1:]


def _error(text: str) -> Refusal:
    return Refusal(f'{text}. Correct the folder `repaired` of ListedImages in '
                   '`train_dataloader.dataset` (--repaired of the command).')
