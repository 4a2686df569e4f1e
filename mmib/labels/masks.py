# Copyright (c) mmib contributors. All rights reserved.
"""Masks that replace the masks of the same names in a dataset."""
import copy
import io
import logging
import os
import os.path as osp
import zlib
from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import (Any, Callable, Dict, Iterable, List, Optional, Sequence,
                    Set, Tuple, Union)

import numpy as np
from mmengine import fileio
from mmengine.logging import print_log
from PIL import Image

from ..errors import Refusal
from .lists import REMOVED, parts_of, parts_that_differ
from .rankings import IGNORED
from .relabel import infos_of, put_infos

Folder = Union[str, os.PathLike]
# Suffixes of files that keep the numbers of classes as they are.
SUFFIXES = ('.png', '.bmp', '.tif', '.tiff')
# Of files of arrays, which may be masks as well as other images.
_ARRAYS = ('.npy', '.npz')
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


def loading_steps(dataset: Any) -> list:
    """Return the steps in the pipeline of a dataset that load images and
    labels."""
    pipeline = getattr(dataset, 'pipeline', None)
    return [
        step for step in getattr(pipeline, 'transforms', [])
        if 'Load' in type(step).__name__
    ]


def labels_of_numbers(load: Callable[[str], np.ndarray],
                      shape: Tuple[int, ...],
                      numbers: Optional[np.ndarray] = None) -> np.ndarray:
    """Return the label that a dataset makes of each number in a mask.

    Args:
        load (Callable): Returns the labels in a file, as the dataset does.
        shape (tuple[int, int]): Height and width of the mask.
        numbers (np.ndarray, optional): The numbers of interest. Others get
            :data:`IGNORED`, as do those that a mask is too small for. Defaults
            to None: all up to 255.

    Returns:
        np.ndarray: Labels, int of shape (256,).
    """
    written = np.arange(256) if numbers is None else numbers
    written = np.resize(written.astype(np.uint8), shape)
    with TemporaryDirectory() as folder:
        path = osp.join(folder, 'numbers.png')
        Image.fromarray(written).save(path)
        loaded = load(path)
    labels_of = np.full(256, IGNORED)
    labels_of[written] = loaded
    return labels_of


def replace_masks(datasets: Sequence[Any],
                  folder: Folder,
                  removed: Callable[[], Iterable] = tuple) -> Set[str]:
    """Replace masks of datasets of MMSegmentation by masks of the same names
    in a folder. A name may have folders. Warn if all new masks look as if they
    had other numbers or another direction than the old ones.

    Args:
        datasets (Sequence[Dataset]): The datasets.
        folder (str or Path): The folder.
        removed (Callable): Returns the paths of the masks of the images that
            a filter of a dataset has removed, for errors. Defaults to a
            function that returns none.

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
    new = _find(folder, map(str, paths), removed)
    _warn_of_others(folder)
    changed, compared = set(), Changes()
    for dataset, of_dataset in zip(datasets, infos):
        known: Set[str] = set()
        for info in of_dataset:
            old = str(info['seg_map_path'])
            if old in new:
                if old not in known:
                    known.add(old)
                    compared.add(*_check(dataset, info, new[old]))
                info['seg_map_path'] = new[old]
                changed.add(str(info.get('img_path')))
        put_infos(dataset, of_dataset)
    text = compared.suspicion(
        list(getattr(datasets[0], 'metainfo', {}).get('classes') or ()))
    if text:
        print_log(
            f'InfoBatch: {text} If the masks of {folder} were meant so, there '
            'is nothing to do.', 'current', logging.WARNING)
    return changed


def _find(folder: Folder, paths: Iterable[str],
          removed: Callable[[], Iterable[str]]) -> Dict[str, str]:
    """Each mask below a folder by the path of the one that it replaces."""
    by_name = defaultdict(list)
    for path in paths:
        by_name[osp.basename(path)].append(path)
    new: Dict[str, str] = {}
    for file in _mask_files(folder):
        end = file.relative_to(folder).parts
        like = _with_end(by_name[file.name], end)
        if not like and _with_end(removed(), end):
            raise _error(f'{file} is the mask of an image {REMOVED}: take it '
                         'out of the folder, or let the dataset keep the '
                         'image')
        if len(like) != 1:
            raise _error(
                f'{file} has the name of {len(like) or "no"} masks of the '
                'dataset' + ': put it into folders that are called as there' *
                (len(like) > 1))
        if like[0] in new:
            raise _error(f'{new[like[0]]} and {file} would both take the '
                         f'place of {like[0]}: keep one of them')
        new[like[0]] = str(file)
    return new


def _warn_of_others(folder: Folder) -> None:
    """Warn of images and arrays below a folder that aren't taken as masks, but
    not of those beside a mask of the same name."""
    taken = {path.with_suffix('') for path in _mask_files(folder)}
    kinds = {*Image.registered_extensions(), *_ARRAYS}.difference(SUFFIXES)
    others = sorted(
        path for path in Path(folder).rglob('*')
        if path.suffix.lower() in kinds and path.with_suffix('') not in taken)
    if others:
        print_log(
            f'InfoBatch: {len(others)} files of {folder}, such as '
            f'{others[0]}, don\'t end in {", ".join(SUFFIXES)}, and are left '
            'out. If they are masks, write them as .png.', 'current',
            logging.WARNING)


def _with_end(paths: Iterable[str], end: Tuple[str, ...]) -> List[str]:
    """Return the paths that end with these parts."""
    return [
        path for path in paths
        if parts_of(osp.abspath(path))[-len(end):] == end
    ]


def _check(dataset: Any, info: dict,
           new: str) -> Tuple[np.ndarray, np.ndarray]:
    """Refuse a mask that can't take the place of another one, and warn of one
    that ignores a whole class.

    Returns:
        tuple[np.ndarray, np.ndarray]: Old and new labels, as the dataset loads
        them, or the numbers in the files where it loads none.
    """
    after, old = read_mask(new), str(info['seg_map_path'])
    with Image.open(io.BytesIO(fileio.get(old))) as image:
        before, size = np.asarray(image), image.size
    if size != after.shape[::-1]:
        raise _error(
            '{} has {} x {} pixels, and {}, whose place it would take, '
            '{} x {}'.format(new, *after.shape[::-1], old, *size))
    has_numbers = before.ndim == 2  # Or else the loader reads colours.
    if has_numbers:
        # What the dataset's loader makes of other numbers isn't known.
        numbers = np.setdiff1d(after, before)
        unknown = numbers[~_known_numbers(dataset)[numbers]].tolist()
        if unknown:
            raise _error(f'{new} has the numbers {str(unknown[:5])[1:-1]}, '
                         'which stand for no class of the dataset')
        _warn_of_ignored(before, after, ignored_number(dataset), new, old)
    steps = loading_steps(dataset)

    def load(path: str) -> Any:
        results = dict(copy.deepcopy(info), seg_map_path=path)
        for step in steps:
            results = step(results)
        return results.get('gt_seg_map')

    try:
        labels = load(new)
        if labels is None:
            return before, after
        if has_numbers:
            expected = labels_of_numbers(load, after.shape,
                                         np.unique(after))[after]
            if not np.array_equal(labels, expected):
                raise _error(
                    f'{new} has other labels in the dataset than its numbers '
                    'have: the dataset\'s loader takes no such file. Write '
                    'masks with 8 bits and without a palette')
        return load(old), labels
    except Refusal:
        raise
    # A loader may raise anything.
    except Exception as error:
        raise _error(f'{new}, or {old}, can\'t be loaded as the dataset loads '
                     f'masks: {type(error).__name__}: {error}') from error


def _warn_of_ignored(before: np.ndarray, after: np.ndarray, ignored: int,
                     new: str, old: str) -> None:
    """Warn of a mask that ignores all pixels of a number in the old mask."""
    lost = np.setdiff1d(before[after == ignored], np.append(after, ignored))
    if len(lost):
        print_log(
            f'InfoBatch: {new} ignores all pixels that have the number '
            f'{lost[0]} in {old}. {ignored} stands for no class: if it '
            f'should, write {lost[0]} in its place.', 'current',
            logging.WARNING)


class Changes:
    """What repaired masks change, in all of them together."""

    _TURNS: Dict[str, Callable[[np.ndarray], np.ndarray]] = {
        'mirrored': np.fliplr,
        'upside down': np.flipud,
        'turned by half': lambda mask: np.rot90(mask, 2),
        'turned to the right': np.rot90,
        'turned to the left': lambda mask: np.rot90(mask, 3),
        'transposed, with x and y exchanged': np.transpose,
        'transposed and turned by half': lambda mask: np.rot90(mask, 2).T
    }

    def __init__(self) -> None:
        self._count = 0
        # Pixels by old and new label.
        self._pixels = np.zeros((256, 256), np.int64)
        # In how many masks each label was, and has lost most of its pixels.
        self._had, self._lost = np.zeros((2, 256), int)
        self._turned: Counter = Counter()

    def add(self, before: np.ndarray, after: np.ndarray) -> None:
        """Compare a mask with the one whose place it takes.

        Args:
            before (np.ndarray): Labels of the old mask, of shape (H, W).
            after (np.ndarray): Labels of the new mask, of the same shape.
        """
        if before.shape != after.shape or before.ndim != 2:
            return
        before, after = (
            np.clip(labels, 0, 255).astype(np.int64)
            for labels in (before, after))
        pixels = np.bincount(
            (256 * before + after).ravel(),
            minlength=256 * 256).reshape(256, 256)
        self._count += 1
        self._pixels += pixels
        had = pixels.sum(1)
        self._had += had > 0
        self._lost += 2 * pixels.diagonal() < had
        for name, turn in self._TURNS.items():
            turned = turn(after)
            self._turned[name] += after.size if (
                turned.shape != before.shape) else int(
                    np.count_nonzero(turned != before))

    def suspicion(self, classes: Sequence[str]) -> str:
        """Return a sentence on what looks like a mistake in all masks, '' if
        nothing does.

        Args:
            classes (Sequence[str]): Names of the classes.
        """
        changed = self._pixels.sum() - self._pixels.trace()
        name, fewest = min(
            self._turned.items(),
            key=lambda item: item[1],
            default=('', changed))
        if 2 * fewest < changed:
            return (
                f'the repaired masks look {name}: so they would differ '
                f'from the old ones in {fewest} pixels, and as they are '
                f'in {changed}. Write them in the direction of the images.')
        # One mask alone may well have had a wrong class.
        lost = (self._had == self._lost) & (self._had > 1)
        lost[IGNORED] = False
        if not lost.any():
            return ''

        def called(label: int) -> str:
            return str(classes[label] if label < len(classes) else
                       'no class' if label == IGNORED else label)

        said = []
        for label in np.flatnonzero(lost)[:5].tolist():
            pixels = self._pixels[label]
            share = 1 - pixels[label] / pixels.sum()
            others = pixels.copy()
            others[label] = 0
            said.append(f'{called(label)} ({share:.0%} of the pixels, most to '
                        f'{called(int(others.argmax()))})')
        return (
            f'each of the {self._count} repaired masks changes most pixels '
            f'of {", ".join(said)}. Compare the numbers of the classes in '
            'the tool that wrote the masks with those in the dataset.')


def _error(text: str) -> Refusal:
    return Refusal(f'{text}. Correct the folder `repaired` of ListedImages in '
                   '`train_dataloader.dataset` (--repaired of the command).')
