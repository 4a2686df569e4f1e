# Copyright (c) mmib contributors. All rights reserved.
"""Find the images of a list among those of a data set: by number or path."""
import os
import re
from typing import (Any, Callable, Dict, Iterable, List, NamedTuple, Optional,
                    Sequence, Tuple, Union)

import numpy as np

Paths = Sequence[Optional[str]]
Images = Union[str, os.PathLike, Sequence]

# A line that ends with a number after a blank or a comma: the label of an
# annotation file.
_SECOND_COLUMN = re.compile(r'.*[\s,][-+]?[\d.]+(e[-+]?\d+)?')


class Entry(NamedTuple):
    """An entry of a list.

    Args:
        where (str): Which one it is, for errors.
        name (str): Number or path of an image.
    """

    where: str
    name: str


def find_images(images: Images, num_images: int,
                paths: Callable[[], Paths]) -> Tuple[np.ndarray, str]:
    """Find the images of a list.

    Args:
        images (str, Path or Sequence): File with an image a line, or the
            images themselves: numbers, or paths, or the ends of paths.
        num_images (int): Images of the data set.
        paths (Callable): Returns the path of each of them, None where it
            isn't known.

    Returns:
        tuple[np.ndarray, str]: Numbers of the listed images, increasing,
        int64 of shape (M,); and how they were found, for the log.

    Raises:
        TypeError: If ``images`` is neither a file nor a list.
        ValueError: If the list can't be read, is empty, or has an image that
            isn't in the data set, or one twice. It names the line.
    """
    entries = _entries(images)
    names = [entry.name for entry in entries]
    if all(re.fullmatch(r'-?\d+', name) for name in names):
        numbers, note = [int(name) for name in names], ''
        for entry, number in zip(entries, numbers):
            if not 0 <= number < num_images:
                raise _error(f'{entry.where} is image {number}, but the data '
                             f'set has images 0 to {num_images - 1}')
    else:
        numbers, note = _find(entries, paths())
    first: Dict[int, str] = {}
    for entry, number in zip(entries, numbers):
        if number in first:
            raise _error(f'{entry.where} is the image of {first[number]} '
                         'again: list an image once')
        first[number] = entry.where
    return np.sort(np.array(numbers, np.int64)), note


def _entries(images: Images) -> List[Entry]:
    if isinstance(images, os.PathLike):
        images = os.fspath(images)
    if isinstance(images, str):
        entries = _read(images)
    elif hasattr(images, '__iter__'):
        entries = [
            Entry(f'entry {i}', str(name)) for i, name in enumerate(images)
        ]
    else:
        raise TypeError(
            'The images of ListedImages in `train_dataloader.dataset` must be '
            f'the name of a file or a list of images, but got {images!r}.')
    if not entries:
        raise _error('The list has no images')
    return entries


def _read(path: str) -> List[Entry]:
    try:
        # A path may be no text in UTF-8. Editors of Windows begin a file with
        # a byte-order mark.
        with open(path, encoding='utf-8-sig', errors='surrogateescape') as f:
            lines = f.read().split('\n')
    except OSError as error:
        raise _error(
            f'{path} can\'t be read ({error.strerror}); a relative '
            'path counts from the folder where the training starts') from error
    return [
        Entry(f'line {number} of {path}', line.strip())
        for number, line in enumerate(lines, 1) if line.strip()
    ]


def _find(entries: List[Entry], paths: Paths) -> Tuple[List[int], str]:
    """Numbers of the images with these paths, and how they were found."""
    if not any(paths):
        raise _error(
            f'{entries[0].where}, `{entries[0].name}`, is no number, and the '
            'data set doesn\'t tell `img_path` of its images: list numbers')
    numbers = _unique(enumerate(paths))
    names: List[Any] = [entry.name for entry in entries]
    if all(name in numbers for name in names):
        length, keys = 0, names
    else:
        length, numbers = _by_ends(paths)
        keys = [_end(name, length) for name in names]
    images = []
    for entry, key in zip(entries, keys):
        image = numbers.get(key)
        if image is None:
            raise _not_found(entry, paths, length)
        if image < 0:
            raise _error(f'{entry.where}, `{entry.name}`, is the path of '
                         'several images of the data set: list numbers')
        images.append(image)
    if not length:
        return images, ''
    parts = f'the last {length} parts' if length > 1 else 'the names'
    return images, (f'they were found by {parts} of their paths, such as '
                    f'{paths[images[0]]} for {names[0]}')


def _not_found(entry: Entry, paths: Paths, length: int) -> ValueError:
    text = f'{entry.where}, `{entry.name}`, '
    end = _end(entry.name, length)
    like = [path for path in paths if path and _end(path, len(end)) == end]
    if like:
        # Too few of its parts.
        return _error(
            f'{text}is the end of {len(like)} of the paths of the data set, '
            f'such as `{like[0]}`, which are told apart by their last '
            f'{length} parts: list these')
    text += f'is no image of the data set, whose first one is `{paths[0]}`'
    if _SECOND_COLUMN.fullmatch(entry.name):
        text += (': a line of a list has an image alone, so leave out the '
                 'label after it')
    return _error(text)


def _error(text: str) -> ValueError:
    return ValueError(f'{text}. Correct the list of ListedImages in '
                      '`train_dataloader.dataset` (--subset of the command).')


def _unique(names: Iterable[Tuple[int, Any]]) -> Dict[Any, int]:
    """Number by name, -1 of a name that several have."""
    numbers: Dict[Any, int] = {}
    for number, name in names:
        numbers[name] = -1 if name in numbers else number
    return numbers


def _end(path: str, length: int) -> Tuple[str, ...]:
    # Of Windows too.
    return tuple(re.split(r'[\\/]+', path)[-length:])


def _by_ends(paths: Paths) -> Tuple[int, Dict[Any, int]]:
    """The least number of parts of their ends that tells paths apart, and
    the number of each image by them."""
    named = [(number, path) for number, path in enumerate(paths) if path]
    # From 0 on it is a whole path.
    longest = max(len(_end(path, 0)) for _, path in named)
    for length in range(1, longest + 1):
        numbers = _unique(
            (number, _end(path, length)) for number, path in named)
        if len(numbers) == len(named):
            break
    return length, numbers
