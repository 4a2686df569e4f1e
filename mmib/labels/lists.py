# Copyright (c) mmib contributors. All rights reserved.
"""Find the images of a list in a dataset."""
import logging
import os
import os.path as osp
import re
from collections import Counter
from typing import (Callable, Collection, Dict, Iterable, List, NamedTuple,
                    Optional, Sequence, Tuple, Union)
from zipfile import BadZipFile

import numpy as np
from mmengine.logging import print_log

from ..errors import Refusal
from .verdicts import is_review, open_text, wrong_in

Paths = Sequence[Optional[str]]
Images = Union[str, os.PathLike, Sequence]
_Parts = Tuple[str, ...]

_NUMBER = re.compile('0|[1-9][0-9]*')


class Entry(NamedTuple):
    """An image of a list.

    Args:
        image (int or str): Its number in the dataset, or its name.
        where (str): Where the list has it, for errors.
        label (str): The right class that a review gives it. Defaults to ''.
    """

    image: Union[int, str]
    where: str
    label: str = ''


def names_of(paths: Paths, numbers: Iterable[int]) -> List[str]:
    """Return the names of images in text lists and reviews: their paths, or
    their numbers where paths don't distinguish them."""
    are_names = None not in paths and len({*paths}) == len(paths)
    return [*map(str, paths if are_names else numbers)]


def find_images(images: Images,
                num_images: int,
                paths: Callable[[], Paths],
                option: str = 'images') -> Dict[int, Entry]:
    """Find the images of a list in a dataset.

    Args:
        images (str, Path or Sequence): The list, as ``ListedImages`` takes it.
        num_images (int): How many images the dataset has.
        paths (Callable): Returns the path of each image of the dataset, None
            where the path isn't known.
        option (str): The argument of ``ListedImages`` that has the list.
            Defaults to ``'images'``.

    Returns:
        dict[int, Entry]: The entries by the number of their image.

    Raises:
        Refusal: If the list can't be read, or an image isn't found.
    """
    entries = entries_of(images, option)
    named = [entry for entry in entries if isinstance(entry.image, str)]
    by_name = iter(_find(named, paths()) if named else ())
    found: Dict[int, Entry] = {}
    for entry in entries:
        image = entry.image
        number = next(by_name) if isinstance(image, str) else image
        if not 0 <= number < num_images:
            raise _error(f'{entry.where} is image {number}, but the dataset '
                         f'has images 0 to {num_images - 1}')
        if number in found:
            raise _error(f'{entry.where} is the image of '
                         f'{found[number].where} again: list an image once')
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
        entries = _from(images, '')
    else:
        raise Refusal(
            f'`{option}` of ListedImages in `train_dataloader.dataset` must '
            'be the name of a file' + ' or a list of images' *
            (option != 'relabel') + f', but got {images!r}.')
    if not entries:
        raise _error(f'{images} has no images' + ' to leave out' *
                     (option != 'images'))
    return entries


def _from(images: Iterable, of_file: str) -> List[Entry]:
    return [
        Entry(
            int(image) if isinstance(image, (int, np.integer)) else str(image),
            f'entry {i}{of_file}') for i, image in enumerate(images)
    ]


def _read(path: Union[str, os.PathLike], option: str) -> List[Entry]:
    if os.fspath(path).lower().endswith('.npy') and option != 'relabel':
        try:
            return _from(np.load(path), f' of {path}')
        except (OSError, ValueError, TypeError, EOFError, BadZipFile) as error:
            raise _error(f'{path} can\'t be read: {error}') from error
    with open_text(path) as file:
        lines = re.split('\r\n?|\n', file.read())
    if option != 'relabel' and not is_review(lines[0]):
        return [
            Entry(line.strip(), f'line {number} of {path}')
            for number, line in enumerate(lines, 1) if line.strip()
        ]
    wrong = wrong_in(path)
    if option == 'images':
        raise _error(f'{path} is a review, which says what to leave out: give '
                     'it as `without` (--without)')
    return [Entry(row.image, row.where, row.label) for row in wrong]


def _find(entries: List[Entry], paths: Paths) -> List[int]:
    """Return the numbers of images by their names. Where some aren't known,
    only the parts at the end of a path count that distinguish all paths."""
    names = [str(entry.image) for entry in entries]
    numbers = range(len(paths))
    by_name = dict(zip(names_of(paths, numbers), numbers))
    if by_name.keys() >= {*names}:
        return [by_name[name] for name in names]
    known = {n: parts_of(path) for n, path in enumerate(paths) if path}
    length = parts_that_differ(known.values())
    ends = [parts_of(name)[-length:] for name in names]
    by_end = _by_end(known, length)
    if not by_end.keys() >= {*ends}:
        stems = {n: _stem(parts) for n, parts in known.items()}
        by_end = {**_by_end(stems, length), **by_end}
    found = []
    for entry, name, end in zip(entries, names, ends):
        number = by_name.get(name)
        if number is None and not _NUMBER.fullmatch(name):
            number = by_end.get(end)
        if number is None:
            raise _not_found(entry, paths, length)
        found.append(number)
    others = [(name, paths[number]) for name, number in zip(names, found)
              if length == 1 and number in known
              and _is_elsewhere(parts_of(name), known[number])]
    if others:
        _warn_of_folders(others)
    return found


def _stem(parts: _Parts) -> _Parts:
    """The parts of a path without its suffix."""
    return *parts[:-1], osp.splitext(parts[-1])[0]


def _is_elsewhere(name: _Parts, path: _Parts) -> bool:
    """Return whether a name of several parts isn't the end of a path, with or
    without the suffix."""
    return (len(name) > 1 and name != path[-len(name):]
            and name != _stem(path)[-len(name):])


def _by_end(paths: Dict[int, _Parts], length: int) -> Dict[_Parts, int]:
    """The image of each end of a path that no other image has."""
    ends = {n: parts[-length:] for n, parts in paths.items()}
    counts = Counter(ends.values())
    return {end: n for n, end in ends.items() if counts[end] == 1}


def _warn_of_folders(others: List[tuple]) -> None:
    """Warn of images that may be other ones of the same name."""
    name, path = others[0]
    text = (f'InfoBatch: {len(others)} lines of the list were found by their '
            f'file name alone, in another folder, such as {path} for {name}. '
            'If the list is of another dataset, these are other images.')
    # File names may be no text in UTF-8.
    print_log(
        text.encode(errors='backslashreplace').decode(), 'current',
        logging.WARNING)


def _not_found(entry: Entry, paths: Paths, length: int) -> Refusal:
    end = parts_of(str(entry.image))[-length:]
    like = [
        path for path in paths if path and parts_of(path)[-len(end):] == end
    ]
    text = f'{entry.where}, `{entry.image}`, '
    if like:
        return _error(
            f'{text}is the end of {len(like)} of the paths of the dataset, '
            f'such as `{like[0]}`: list whole paths, or numbers where images '
            'share a path')
    first = next(filter(None, paths), None)
    which = f', whose first one is `{first}`' if first else \
        f', which has no `img_path` of its {len(paths)} images'
    return _error(
        f'{text}is no image of the dataset{which}. A list is a text file with '
        'the path of one image on each line, and nothing else. Numbers, from '
        '0, are for images without a path of their own, and for a file that '
        '`np.save` has written')


def _error(text: str) -> Refusal:
    return Refusal(
        f'{text}. Correct the list of ListedImages in '
        '`train_dataloader.dataset` (--subset, --without or --relabel of the '
        'command).')


def parts_of(path: str) -> _Parts:
    """Return the names of a path, from its first folder to its file."""
    # Windows has its own separator.
    return tuple(filter(None, path.replace('\\', '/').split('/')))


def parts_that_differ(paths: Collection[_Parts]) -> int:
    """Return how many parts at their ends distinguish all paths."""
    length, count = 1, len({*paths})
    while len({parts[-length:] for parts in paths}) < count:
        length += 1
    return length
