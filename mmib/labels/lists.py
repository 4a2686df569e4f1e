# Copyright (c) mmib contributors. All rights reserved.
"""Find the images of a list in a dataset."""
import logging
import os
import os.path as osp
import re
from typing import (Callable, Collection, Dict, List, NamedTuple, Optional,
                    Sequence, Tuple, Union)

import numpy as np
from mmengine.logging import print_log

from ..errors import Refusal
from .verdicts import WRONG, is_review, open_text, read_review

Paths = Sequence[Optional[str]]
Images = Union[str, os.PathLike, Sequence]
_Parts = Tuple[str, ...]

# What is said of an image that a list has and the dataset hasn't.
REMOVED = ('that the dataset has read and then removed (`filter_cfg` or '
           '`indices`, or its own `filter_data`)')
_NUMBER = re.compile('0|[1-9][0-9]*')


class Entry(NamedTuple):
    """An image of a list.

    Args:
        image (int or str): Number of the image in the dataset, or its name.
        where (str): Place of the entry in the list, for errors.
        label (str): The right class, if a review gives one. Defaults to ''.
    """

    image: Union[int, str]
    where: str
    label: str = ''


def find_images(images: Images,
                paths: Paths,
                option: str = 'images',
                removed: Callable[[], Paths] = tuple) -> Dict[int, Entry]:
    """Find the images of a list in a dataset. A path stands for all images
    that have it.

    Args:
        images (str, Path or Sequence): The list, as ``ListedImages`` takes it.
        paths (Sequence): The path of each image of the dataset, None where the
            path isn't known.
        option (str): The argument of ``ListedImages`` that has the list.
            Defaults to ``'images'``.
        removed (Callable): Returns the paths of the images that a filter of
            the dataset has removed, for errors. Defaults to a function that
            returns none.

    Returns:
        dict[int, Entry]: The entries by the number of their image.

    Raises:
        Refusal: If the list can't be read, or an image isn't found.
    """
    entries = entries_of(images, option)
    by_name = _find([e.image for e in entries if isinstance(e.image, str)],
                    paths)
    found: Dict[int, Entry] = {}
    for entry in entries:
        image = entry.image
        numbers = by_name.get(image, []) if isinstance(image, str) else [image]
        if not {*numbers} <= {*range(len(paths))} or not numbers:
            if isinstance(image, str) and _find([image], removed()):
                raise _error(
                    f'{entry.where}, `{image}`, is an image {REMOVED}: take '
                    'it out of the list, or let the dataset keep it')
            known = ', '.join(
                str(path or number) for number, path in enumerate(paths[:3]))
            raise _error(
                f'{entry.where}, `{image}`, is not an image of the dataset, '
                f'which begins with {known}. A list is a text file with '
                'one such name on each line, and nothing else. The end of a '
                'path is enough if it distinguishes all images, with the same '
                'folder if it has one. Numbers of images that have paths are '
                'for a list in a config')
        for number in numbers:
            if number in found:
                raise _error(f'{entry.where} is the image of '
                             f'{found[number].where} again: list an image '
                             'once')
            found[number] = entry
    return found


def entries_of(images: Images, option: str) -> List[Entry]:
    """Return the entries of a list, with the arguments of :func:`find_images`.

    Raises:
        Refusal: If the list can't be read or is empty.
    """
    if isinstance(images, (str, os.PathLike)):
        entries = _read(images, option)
    elif hasattr(images, '__iter__') and option != 'relabel':
        entries = [
            Entry(
                int(image) if isinstance(image,
                                         (int, np.integer)) else str(image),
                f'entry {i}') for i, image in enumerate(images)
        ]
    else:
        raise Refusal(
            f'`{option}` of ListedImages in `train_dataloader.dataset` must '
            'be the name of a file, or for `images` and `without` a list of '
            f'images, but got {images!r}.')
    if not entries:
        raise _error(f'{images} has no images' + ' to leave out' *
                     (option != 'images'))
    return entries


def _read(path: Union[str, os.PathLike], option: str) -> List[Entry]:
    with open_text(path) as file:
        lines = re.split('\r\n?|\n', file.read())
    if option != 'relabel' and not is_review(lines[0]):
        return [
            Entry(line.strip(), f'line {number} of {path}')
            for number, line in enumerate(lines, 1) if line.strip()
        ]
    # Two rankings may have the same image.
    wrong = {
        row.image: Entry(row.image, row.where, row.label)
        for row in read_review(path) if row.verdict == WRONG
    }
    if option == 'images':
        raise _error(f'{path} is a review, which says what to leave out: give '
                     'it as `without` (--without)')
    return [*wrong.values()]


def _find(names: List[str], paths: Paths) -> Dict[str, List[int]]:
    """Return the numbers of each named image that is found. A name is compared
    with the end of each path: with as many parts as distinguish all paths, and
    with the folder of the file if the name has one. Numbers name images only
    if the paths don't distinguish all images."""
    if not names:
        return {}
    copies: Dict[_Parts, List[int]] = {}
    for number, path in enumerate(paths):
        copies.setdefault(parts_of(path or ''), []).append(number)
    copies.pop((), None)
    length = parts_that_differ(copies)
    by_end = {parts[-length:]: parts for parts in copies}
    stems = {_stem(end): parts for end, parts in by_end.items()}
    if len(stems) == len(by_end):
        by_end = {**stems, **by_end}
    found, others = {}, []
    for name in names:
        if _NUMBER.fullmatch(name):
            # A number may be meant to count images, not as a name.
            if len(copies) < len(paths) and int(name) < len(paths):
                found[name] = [int(name)]
            continue
        parts = parts_of(name)
        path = by_end.get(parts[-length:], ())
        common = min(len(parts), len(path))
        if common == 0 or common > 1 and parts[-2] != path[-2]:
            continue
        found[name] = copies[path]
        # A name without a suffix may have dots.
        end = path[-common:]
        if parts[-common:] not in (end, _stem(end)):
            others.append((name, paths[copies[path][0]]))
    if others:
        _warn_of_folders(others)
    return found


def _stem(parts: _Parts) -> _Parts:
    """Return the parts of a path without the suffix of the file."""
    return *parts[:-1], osp.splitext(parts[-1])[0]


def _warn_of_folders(others: List[tuple]) -> None:
    """Warn of images that may be other images with the same names."""
    name, path = others[0]
    text = (f'InfoBatch: {len(others)} images of the list were found in other '
            f'folders, such as {path} for {name}. If the list is of another '
            'dataset or split, these are other images.')
    # File names may not be valid UTF-8.
    print_log(
        text.encode(errors='backslashreplace').decode(), 'current',
        logging.WARNING)


def _error(text: str) -> Refusal:
    return Refusal(
        f'{text}. Correct the list of ListedImages in '
        '`train_dataloader.dataset` (--subset, --without or --relabel of the '
        'command).')


def parts_of(path: str) -> _Parts:
    """Return the names of a path, from its first folder to its file."""
    # Windows has its own separator.
    names = path.replace('\\', '/').split('/')
    return tuple(name for name in names if name not in ('', '.'))


def parts_that_differ(paths: Collection[_Parts]) -> int:
    """Return how many parts at their ends distinguish all paths."""
    length, count = 1, len({*paths})
    while len({parts[-length:] for parts in paths}) < count:
        length += 1
    return length
