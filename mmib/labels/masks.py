# Copyright (c) mmib contributors. All rights reserved.
"""Masks that take the place of those of the same names in a dataset."""
import io
import logging
import os
import os.path as osp
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence, Set, Union

import numpy as np
from mmengine import fileio
from mmengine.dataset import BaseDataset
from mmengine.logging import print_log
from PIL import Image

from ..errors import Refusal

Folder = Union[str, os.PathLike]
IGNORED = 255
# Of files that keep the numbers of classes as they are.
SUFFIXES = ('.png', '.bmp', '.tif', '.tiff')
# What PIL calls images of one number a pixel.
_NUMBERS = ('1', 'L', 'P', 'I', 'I;16')


def read_mask(path: Folder) -> np.ndarray:
    """Return the numbers in the file of a mask, uint8 of shape (H, W).

    Raises:
        Refusal: If the file doesn't have one number for each pixel.
    """
    with Image.open(io.BytesIO(fileio.get(path))) as image:
        if image.mode not in _NUMBERS:
            raise Refusal(f'{path} has colours ({image.mode}), and not the '
                          'number of a class in each pixel.')
        numbers = np.asarray(image)
    if numbers.max(initial=0) > 255:
        raise Refusal(f'{path} has the number {numbers.max()}, and a mask has '
                      'numbers up to 255.')
    return numbers.astype(np.uint8)


def known_numbers(dataset: Any) -> np.ndarray:
    """Return which numbers in the files of a dataset of MMSegmentation stand
    for a class, or for what is ignored, bool of shape (256,)."""
    classes = dataset.metainfo.get('classes')
    # Of a dataset that trains some of its classes, the map has all.
    count = len(getattr(dataset, 'label_map', None) or classes or range(256))
    # With `reduce_zero_label`, 0 is ignored, and 1 is the first class.
    count += bool(getattr(dataset, 'reduce_zero_label', False))
    known = np.arange(256) < count
    ignored = getattr(dataset, 'ignore_index', IGNORED)
    known[[IGNORED, ignored if 0 <= ignored <= 255 else IGNORED]] = True
    return known


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
    """Let datasets of MMSegmentation load the masks below a folder in the
    place of their own ones with the same names, which are ends of their
    paths. Returns the masks that take the place of others.

    Raises:
        Refusal: If a mask can't take the place of another one.
    """
    paths = [_mask_paths(dataset) for dataset in datasets]
    new = _find(folder, {path for each in paths for path in each})
    for dataset, own in zip(datasets, paths):
        replaced = new.keys() & own
        if replaced:
            known = known_numbers(dataset)
            for old in replaced:
                _check(old, new[old], known)
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
                   'dataset'
            raise _error(text +
                         ': put it into folders that are called as there' *
                         (len(like) > 1))
        new[like[0]] = str(file)
    return new


def _check(old: str, new: str, known: np.ndarray) -> None:
    """Refuse a mask that can't take the place of another one, and warn of one
    that ignores a whole class."""
    try:
        after = read_mask(new)
    except Refusal as error:
        raise _error(str(error).rstrip('.')) from error
    with Image.open(io.BytesIO(fileio.get(old))) as image:
        before, size = np.asarray(image), image.size
    if size != after.shape[::-1]:
        sizes = [
            f'{width} x {height}'
            for width, height in (after.shape[::-1], size)
        ]
        raise _error(f'{new} has {sizes[0]} pixels, and {old}, whose place it '
                     f'would take, {sizes[1]}')
    if before.ndim != 2:
        return  # The loader of the dataset reads colours.
    # What the dataset's loader makes of other numbers isn't known.
    numbers = np.setdiff1d(after, before)
    unknown = numbers[~known[numbers]].tolist()
    if unknown:
        raise _error(f'{new} has the numbers {str(unknown[:5])[1:-1]}, which '
                     'stand for no class of the dataset')
    lost = np.setdiff1d(before[after == IGNORED], np.append(after, IGNORED))
    if len(lost):
        print_log(
            f'InfoBatch: {new} ignores all pixels that have the number '
            f'{lost[0]} in {old}. {IGNORED} stands for no class: if it should,'
            f' write {lost[0]} in its place.', 'current', logging.WARNING)


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
