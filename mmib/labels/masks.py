# Copyright (c) mmib contributors. All rights reserved.
"""Masks that replace the masks of the same names in a dataset."""
import io
import logging
import os
import os.path as osp
import zlib
from collections import defaultdict
from itertools import chain
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence, Set, Union

import numpy as np
from mmengine import fileio
from mmengine.logging import print_log
from PIL import Image

from ..errors import Refusal
from .lists import parts_of, parts_that_differ
from .relabel import infos_of, put_infos

Folder = Union[str, os.PathLike]
# The number of a pixel of no class, in most datasets and in all labels that
# `DatasetImages` reads.
IGNORED = 255
# Suffixes of files that keep the numbers of classes as they are.
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


def ignored_number(dataset: Any) -> int:
    """Return the number in the masks of a dataset that stands for no class."""
    return getattr(dataset, 'ignore_index', IGNORED)


def _known_numbers(dataset: Any) -> np.ndarray:
    """Return whether each number in the masks of a dataset of MMSegmentation
    stands for a class, or for none, bool of shape (256,)."""
    classes = dataset.metainfo.get('classes')
    # The map of a dataset that trains some of its classes has all of them.
    count = len(getattr(dataset, 'label_map', None) or classes or range(256))
    # With `reduce_zero_label`, 0 is ignored, and 1 is the first class.
    count += bool(getattr(dataset, 'reduce_zero_label', False))
    numbers = np.arange(256)
    return (numbers < count) | (numbers == ignored_number(dataset))


def _mask_files(folder: Folder) -> List[Path]:
    """Return the masks below a folder, in the order of their names, at least
    one."""
    files = sorted(
        path for path in Path(folder).rglob('*')
        if path.suffix.lower() in SUFFIXES)
    if not files:
        raise _error(f'{folder} has no masks, files that end in '
                     f'{", ".join(SUFFIXES)}')
    return files


def masks_checksum(folder: Folder) -> int:
    """Return a checksum of the masks below a folder, with their names, of 32
    bits."""
    checksum = 0
    for path in _mask_files(folder):
        name = os.fsencode(path.relative_to(folder).as_posix())
        checksum = zlib.crc32(name + path.read_bytes(), checksum)
    return checksum


def short_names(paths: Iterable[str]) -> Dict[str, str]:
    """Return the name of each file: the end of its path, of as few parts as
    distinguish all files."""
    whole = {path: parts_of(osp.abspath(path)) for path in paths}
    length = parts_that_differ(whole.values())
    return {path: '/'.join(parts[-length:]) for path, parts in whole.items()}


def replace_masks(datasets: Sequence[Any], folder: Folder) -> Set[str]:
    """Replace masks of datasets of MMSegmentation by masks of the same names
    in a folder. A name may have folders.

    Returns:
        set[str]: Paths of the images whose masks are new.

    Raises:
        Refusal: If a mask can't take the place of another one.
    """
    infos = [infos_of(dataset) for dataset in datasets]
    paths = {info.get('seg_map_path') for info in chain(*infos)}
    if not all(paths):
        raise _error('The dataset has no `seg_map_path` of each image, so no '
                     'mask can take its place')
    new = _find(folder, map(str, paths))
    changed = set()
    for dataset, of_dataset in zip(datasets, infos):
        for info in of_dataset:
            old = str(info['seg_map_path'])
            if old in new:
                _check(dataset, old, new[old])
                info['seg_map_path'] = new[old]
                changed.add(str(info.get('img_path')))
        put_infos(dataset, of_dataset)
    return changed


def _find(folder: Folder, paths: Iterable[str]) -> Dict[str, str]:
    """Each mask below a folder by the path of the one that it replaces."""
    by_name = defaultdict(list)
    for path in paths:
        by_name[osp.basename(path)].append(path)
    new: Dict[str, str] = {}
    for file in _mask_files(folder):
        end = file.relative_to(folder).parts
        like = [
            path for path in by_name[file.name]
            if parts_of(osp.abspath(path))[-len(end):] == end
        ]
        if len(like) != 1:
            raise _error(
                f'{file} has the name of {len(like) or "no"} masks of the '
                'dataset' + ': put it into folders that are called as there' *
                (len(like) > 1))
        new[like[0]] = str(file)
    return new


def _check(dataset: Any, old: str, new: str) -> None:
    """Refuse a mask that can't take the place of another one, and warn of one
    that ignores a whole class."""
    after = read_mask(new)
    with Image.open(io.BytesIO(fileio.get(old))) as image:
        before, size = np.asarray(image), image.size
    if size != after.shape[::-1]:
        raise _error(
            '{} has {} x {} pixels, and {}, whose place it would take, '
            '{} x {}'.format(new, *after.shape[::-1], old, *size))
    if before.ndim != 2:
        return  # The loader of the dataset reads colours.
    # What the dataset's loader makes of other numbers isn't known.
    numbers = np.setdiff1d(after, before)
    unknown = numbers[~_known_numbers(dataset)[numbers]].tolist()
    if unknown:
        raise _error(f'{new} has the numbers {str(unknown[:5])[1:-1]}, which '
                     'stand for no class of the dataset')
    ignored = ignored_number(dataset)
    lost = np.setdiff1d(before[after == ignored], np.append(after, ignored))
    if len(lost):
        print_log(
            f'InfoBatch: {new} ignores all pixels that have the number '
            f'{lost[0]} in {old}. {ignored} stands for no class: if it should,'
            f' write {lost[0]} in its place.', 'current', logging.WARNING)


def _error(text: str) -> Refusal:
    return Refusal(f'{text}. Correct the folder `repaired` of ListedImages in '
                   '`train_dataloader.dataset` (--repaired of the command).')
