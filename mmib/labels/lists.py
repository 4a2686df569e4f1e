# Copyright (c) mmib contributors. All rights reserved.
"""Find the images of a list in a dataset, by number or path."""
import json
import logging
import os
import re
from typing import (Any, Callable, Dict, Iterable, List, Optional, Sequence,
                    Tuple, Union)

import numpy as np
from mmengine.logging import print_log

from ..errors import Refusal
from .verdicts import WRONG, Judged, Path, is_table, open_text, read_review

Paths = Sequence[Optional[str]]
Images = Union[str, os.PathLike, Sequence]
# Where an entry of a list stands, for errors; and number or path of an image.
Entry = Tuple[str, str]

# As mmib writes the number of an image.
_NUMBER = re.compile('-?(0|[1-9][0-9]*)')
# What a line can't have as it is, as lines are told apart and blanks around
# them are dropped; and how JSON begins.
_UNLIKE_A_LINE = re.compile(r'[\r\n]|^["\s\ufeff]|\s$')
# A label after a blank or a comma, as in an annotation file.
_SECOND_COLUMN = re.compile(r'.*[\s,][-+]?[\d.]+(e[-+]?\d+)?')


def find_images(images: Images,
                num_images: int,
                paths: Callable[[], Paths],
                left_out: bool = False) -> Tuple[np.ndarray, str]:
    """Find the images of a list, as ``ListedImages`` takes it, in a dataset:
    their numbers, increasing, int64 of shape (M,); and how they were found,
    for the log. ``paths()`` is the path of each image of the dataset, None
    where the path isn't known. A list of images to leave out may be the file
    of a review, of which those that were judged wrong count.
    """
    entries = entries_of(images, left_out)
    if _are_integers(images):
        # Whatever the images are called.
        paths = list
    numbers, note = _find_each(entries, num_images, paths)
    return np.sort(np.array(numbers, np.int64)), note


def find_wrong(review: Path, num_images: int,
               paths: Callable[[], Paths]) -> Tuple[Dict[int, Judged], str]:
    """Find the images that a review judged wrong, as :func:`find_images` does:
    what the review says of each, by number; and how they were found."""
    wrong = judged_wrong(review)
    entries = [(row.where, image) for image, row in wrong.items()]
    numbers, note = _find_each(entries, num_images, paths)
    return dict(zip(numbers, wrong.values())), note


def judged_wrong(review: Path) -> Dict[str, Judged]:
    """What a review says of each image that was judged wrong.

    Raises:
        Refusal: If the review can't be read, or none is wrong.
    """
    if not isinstance(review, (str, os.PathLike)):
        raise Refusal('`relabel` of ListedImages in `train_dataloader.dataset`'
                      f' must be the name of a file, but got {review!r}.')
    # Two rankings may have an image.
    wrong = {
        row.image: row
        for row in read_review(review) if row.verdict == WRONG
    }
    if not wrong:
        raise _error(f'{review} has no images to leave out, as none is wrong')
    return wrong


def _find_each(entries: List[Entry], num_images: int,
               paths: Callable[[], Paths]) -> Tuple[List[int], str]:
    """The number of each entry, and how they were found."""
    numbers, note = _as_numbers(entries, num_images, paths), ''
    if numbers is None:
        numbers, note = _find(entries, paths())
    first: Dict[int, str] = {}
    for (where, _), number in zip(entries, numbers):
        if number in first:
            raise _error(f'{where} is the image of {first[number]} again: '
                         'list an image once')
        first[number] = where
    return numbers, note


def as_line(image: str) -> str:
    """Path or number of an image as a line of a list, in JSON where it
    couldn't be read otherwise."""
    return json.dumps(image) if _UNLIKE_A_LINE.search(image) else image


def _of_line(line: str) -> str:
    try:
        return json.loads(line) if line.startswith('"') else line
    except ValueError:
        return line


def _are_integers(images: Images) -> bool:
    return not isinstance(images, (str, os.PathLike)) and all(
        isinstance(image, (int, np.integer)) for image in images)


def entries_of(images: Images, left_out: bool) -> List[Entry]:
    """The entries of a list, as :func:`find_images` takes it, and where each
    stands.

    Raises:
        Refusal: If the list can't be read or is empty.
    """
    if isinstance(images, (str, os.PathLike)):
        entries = _read(images, left_out)
    elif hasattr(images, '__iter__'):
        entries = [(f'entry {i}', str(name)) for i, name in enumerate(images)]
    else:
        raise Refusal(
            'The images of ListedImages in `train_dataloader.dataset` must be '
            f'the name of a file or a list of images, but got {images!r}.')
    if not entries:
        raise _error(f'{images} has no images' + ' to leave out' * left_out)
    return entries


def _read(path: Union[str, os.PathLike], left_out: bool) -> List[Entry]:
    with open_text(path) as file:
        lines = re.split('\r\n?|\n', file.read())
    if is_table(lines[0]):
        if not left_out:
            read_review(path)
            raise _error(f'{path} is a review, which says what to leave out: '
                         'give it as `without` (--without)')
        return [(row.where, image)
                for image, row in judged_wrong(path).items()]
    return [(f'line {number} of {path}', _of_line(line.strip()))
            for number, line in enumerate(lines, 1) if line.strip()]


def _as_numbers(entries: List[Entry], num_images: int,
                paths: Callable[[], Paths]) -> Optional[List[int]]:
    """The images of a list of numbers. None if it is a list of paths, which
    may have names of digits alone."""
    if not all(_NUMBER.fullmatch(name) for _, name in entries):
        return None
    known = paths()
    # Where images share a path, mmib writes numbers.
    names = _unique(
        (number, _stem(path)[-1]) for number, path in enumerate(known) if path)
    if len({*known}) < len(known):
        names = {}
    numbers = [int(name) for _, name in entries]
    for (where, name), number in zip(entries, numbers):
        if not 0 <= number < num_images:
            if any(name in names for _, name in entries):
                return None
            raise _error(f'{where} is image {number}, but the dataset has '
                         f'images 0 to {num_images - 1}')
    for (where, name), number in zip(entries, numbers):
        other = names.get(name, number)
        if other != number:
            path = f'`{known[other]}`' if other >= 0 else 'several images'
            raise _error(
                f'{where}, `{name}`, may be the number of `{known[number]}` '
                f'or the name of {path}: list names with their suffix, or '
                'paths')
    return numbers


def _find(entries: List[Entry], paths: Paths) -> Tuple[List[int], str]:
    """Numbers of the images with these paths, and how they were found."""
    if not any(paths):
        where, name = entries[0]
        raise _error(
            f'{where}, `{name}`, is no number, and the dataset doesn\'t tell '
            '`img_path` of its images: list numbers')
    numbers = _unique(enumerate(paths))
    length = 0
    if not all(name in numbers for _, name in entries):
        length, numbers = _by_ends(paths)
    images = []
    for where, name in entries:
        image = numbers.get(_end(name, length) if length else name)
        if image is None:
            raise _not_found(where, name, paths, length)
        if image < 0:
            raise _error(f'{where}, `{name}`, is the path of several images '
                         'of the dataset: list numbers')
        images.append(image)
    if not length:
        return images, ''
    if length == 1:
        _warn_of_folders(entries, [paths[image] for image in images])
    parts = f'the last {length} parts' if length > 1 else 'the names'
    return images, (f'they were found by {parts} of their paths, such as '
                    f'{paths[images[0]]} for {entries[0][1]}')


def _warn_of_folders(entries: List[Entry], found: Paths) -> None:
    """Tell of images that may be other ones of the same name."""
    others = [(name, path) for (_, name), path in zip(entries, found)
              if name != path and len(_end(name, 2)) > 1]
    if others:
        text = (f'{len(others)} of {len(entries)} lines of the list were '
                'found by their file name alone, in another folder, such as '
                f'{others[0][1]} for {others[0][0]}. If the list is of '
                'another dataset, these are other images.')
        # File names may be no text in UTF-8.
        print_log(
            f'InfoBatch: {text}'.encode(errors='backslashreplace').decode(),
            'current', logging.WARNING)


def _not_found(where: str, name: str, paths: Paths, length: int) -> ValueError:
    text = f'{where}, `{name}`, '
    end = _end(name, length)
    like = [path for path in paths if path and _end(path, len(end)) == end]
    if like:
        return _error(
            f'{text}is the end of {len(like)} of the paths of the dataset, '
            f'such as `{like[0]}`, which are told apart by their last '
            f'{length} parts: list these')
    text += f'is no image of the dataset, whose first one is `{paths[0]}`'
    if _SECOND_COLUMN.fullmatch(name):
        text += (': a line of a list has an image alone, so leave out the '
                 'label after it')
    return _error(text)


def _error(text: str) -> ValueError:
    return Refusal(
        f'{text}. Correct the list of ListedImages in '
        '`train_dataloader.dataset` (--subset, --without or --relabel of the '
        'command).')


def _unique(names: Iterable[Tuple[int, Any]]) -> Dict[Any, int]:
    """Number by name, or -1 for a name that several images have."""
    numbers: Dict[Any, int] = {}
    for number, name in names:
        numbers[name] = -1 if name in numbers else number
    return numbers


def _end(path: str, length: int) -> Tuple[str, ...]:
    # Windows has its own separator.
    return tuple(re.split(r'[\\/]+', path)[-length:])


def _stem(path: str, length: int = 1) -> Tuple[str, ...]:
    """The end of a path without its suffix."""
    return _end(re.sub(r'\.[^./\\]*$', '', path), length)


def _by_ends(paths: Paths) -> Tuple[int, Dict[Any, int]]:
    """How many parts at their ends tell paths apart, and the number of each
    image by these parts, with and without the suffix."""
    named = [(number, path) for number, path in enumerate(paths) if path]
    # The parts from 0 on are the whole path.
    longest = max(len(_end(path, 0)) for _, path in named)
    for length in range(1, longest + 1):
        numbers = _unique(
            (number, _end(path, length)) for number, path in named)
        if len(numbers) == len(named):
            break
    stems = _unique((number, _stem(path, length)) for number, path in named)
    return length, {**stems, **numbers}
