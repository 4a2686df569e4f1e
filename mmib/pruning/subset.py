# Copyright (c) mmib contributors. All rights reserved.
"""A given list of images, and policies that prune within it."""
import os
import re
from typing import (Any, Callable, Dict, Iterable, List, NamedTuple, Optional,
                    Sequence, Tuple, Union)

import numpy as np

from .plan import EpochPlan
from .policy import CHANGE_POLICY, Policy, Progress, as_policy

Paths = Sequence[Optional[str]]

# A line that ends with a number after a blank or a comma: the label of an
# annotation file, or a weight.
_SECOND_COLUMN = re.compile(r'.*[\s,][-+]?[\d.]+(e[-+]?\d+)?')


class Listed(NamedTuple):
    """The images of a list.

    Args:
        images (np.ndarray): Their numbers, increasing, int64 of shape (M,).
        weights (np.ndarray, optional): Weight of each, float32 of shape (M,).
            None where all are 1.
        note (str): How they were found, for the log. Defaults to ''.
    """

    images: np.ndarray
    weights: Optional[np.ndarray]
    note: str = ''


class Entry(NamedTuple):
    """An entry of a list.

    Args:
        where (str): Which one it is, for errors.
        name (str): Number or path of an image.
    """

    where: str
    name: str


class KeepAll(Policy):
    """Prunes nothing."""

    prunes = False

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        return EpochPlan.full(np.arange(len(scores)))

    def expected_share(self, progress: Progress) -> float:
        return 1.


class Subset(Policy):
    """Train on a given list of images, in each pass: the first one and
    annealing too.

    The list is what other methods select before a training (EL2N, forgetting
    events, coresets, DQ). With ``policy`` the images of the list are pruned as
    if they were the whole data set.

    Args:
        indices (str, Path or Sequence): File with an image a line, or the
            images themselves: numbers of the images, counted from 0 in the
            order of the data set, or paths, as the data set has them in
            ``img_path``, or their ends where these are unique.
        weights (Sequence[float], optional): Weight of each image of the list,
            in its order, positive. It multiplies the loss of the image in
            each pass. If None, all are 1. Defaults to None.
        policy (Policy or Callable, optional): Prunes the images of the list;
            a dict in a config. If None, they all stay. Defaults to None.

    Raises:
        TypeError: If ``indices`` is neither, or ``policy`` isn't built.
        ValueError: If ``policy`` is another list.

    Examples:
        >>> dict(type='Subset', indices='hard_images.txt')
        >>> dict(type='Subset', indices='dq.txt', policy=dict(type='Neyman'))
    """

    def __init__(self,
                 indices: Union[str, os.PathLike, Sequence],
                 weights: Optional[Sequence[float]] = None,
                 policy: Union[Policy, Callable, None] = None) -> None:
        if isinstance(indices, os.PathLike):
            indices = os.fspath(indices)
        if not (isinstance(indices, str) or hasattr(indices, '__iter__')):
            raise TypeError(
                '`indices` of Subset must be the name of a file or a list of '
                f'images, but got {indices!r}: {CHANGE_POLICY}')
        if policy is not None and not callable(policy):
            raise TypeError(
                '`policy` of Subset must be a policy, or in a config a dict '
                f'of one, but got {policy!r}: {CHANGE_POLICY}')
        if isinstance(policy, Subset):
            raise ValueError('`policy` of Subset is another Subset: give one '
                             f'list; {CHANGE_POLICY}')
        self.indices = indices
        self.weights = weights
        self.policy = policy
        self._inner = KeepAll() if policy is None else as_policy(policy)
        self.rescale = self._inner.rescale
        self.prunes = self._inner.prunes

    def select(self, num_images: int, paths: Callable[[], Paths]) -> Listed:
        """Read the list, and find its images in the data set.

        Args:
            num_images (int): Images of the data set.
            paths (Callable): Returns the path of each of them.

        Raises:
            ValueError: If the list can't be read, is empty, or has an image
                that isn't in the data set, or one twice, or if weights don't
                match it. It names the line.
        """
        entries = self._entries()
        names = [entry.name for entry in entries]
        if all(re.fullmatch(r'-?\d+', name) for name in names):
            images, note = [int(name) for name in names], ''
            for entry, image in zip(entries, images):
                if not 0 <= image < num_images:
                    raise self._error(
                        f'{entry.where} is image {image}, but the data set '
                        f'has images 0 to {num_images - 1}')
        else:
            images, note = self._find(entries, paths())
        first: Dict[int, str] = {}
        for entry, image in zip(entries, images):
            if image in first:
                raise self._error(
                    f'{entry.where} is the image of {first[image]} again: '
                    'list an image once, and give `weights` if some count '
                    'more')
            first[image] = entry.where
        order = np.argsort(images, kind='stable')
        weights = self._weights(len(entries))
        if weights is not None:
            weights = None if (weights == 1).all() else weights[order]
        return Listed(np.array(images, np.int64)[order], weights, note)

    def _entries(self) -> List[Entry]:
        if isinstance(self.indices, str):
            entries = self._read(self.indices)
        else:
            entries = [
                Entry(f'entry {i} of `indices`', str(name))
                for i, name in enumerate(self.indices)
            ]
        if not entries:
            raise self._error('the list has no images')
        return entries

    def _read(self, path: str) -> List[Entry]:
        try:
            # A path may be no text in UTF-8. Editors of Windows begin a file
            # with a byte-order mark.
            with open(
                    path, encoding='utf-8-sig', errors='surrogateescape') as f:
                lines = f.read().split('\n')
        except OSError as error:
            raise self._error(f'{path} can\'t be read ({error.strerror}); '
                              'a relative path counts from the folder where '
                              'the training starts') from error
        return [
            Entry(f'line {number} of {path}', line.strip())
            for number, line in enumerate(lines, 1) if line.strip()
        ]

    def _weights(self, num_listed: int) -> Optional[np.ndarray]:
        if self.weights is None:
            return None
        if len(self.weights) != num_listed:
            raise self._error(f'`weights` has {len(self.weights)} entries, '
                              f'and the list {num_listed} images')
        for i, weight in enumerate(self.weights):
            try:
                value = float(weight)
            except (TypeError, ValueError):
                value = np.nan
            # As float32.
            if not 1e-37 < value < 1e38:
                raise self._error(
                    f'entry {i} of `weights` is {weight}: weights must be '
                    'positive and finite')
        return np.array(self.weights, np.float32)

    def _find(self, entries: List[Entry],
              paths: Paths) -> Tuple[List[int], str]:
        """Numbers of the images with these paths, and how they were found."""
        if not any(paths):
            raise self._error(
                f'{entries[0].where}, `{entries[0].name}`, is no number, and '
                'the data set doesn\'t tell `img_path` of its images: list '
                'numbers')
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
                raise self._not_found(entry, paths, length)
            if image < 0:
                raise self._error(
                    f'{entry.where}, `{entry.name}`, is the path of several '
                    'images of the data set: list numbers')
            images.append(image)
        if not length:
            return images, ''
        parts = f'the last {length} parts' if length > 1 else 'the names'
        return images, (f'they were found by {parts} of their paths, such as '
                        f'{paths[images[0]]} for {names[0]}')

    def _not_found(self, entry: Entry, paths: Paths,
                   length: int) -> ValueError:
        text = f'{entry.where}, `{entry.name}`, '
        end = _end(entry.name, length)
        like = [path for path in paths if path and _end(path, len(end)) == end]
        if like:
            # Too few of its parts.
            return self._error(
                f'{text}is the end of {len(like)} of the paths of the data '
                f'set, such as `{like[0]}`, which are told apart by their '
                f'last {length} parts: list these')
        text += f'is no image of the data set, whose first one is `{paths[0]}`'
        if _SECOND_COLUMN.fullmatch(entry.name):
            text += (': a line of a list has an image alone, so leave out the '
                     'label or the weight after it, and give weights by '
                     '`weights`')
        return self._error(text)

    @staticmethod
    def _error(text: str) -> ValueError:
        return ValueError(
            f'{text}. It is the list of Subset: correct it, or `indices` and '
            '`weights` in the `policy` of InfoBatchHook in `custom_hooks`.')

    def __call__(self, scores: np.ndarray,
                 rng: np.random.Generator) -> EpochPlan:
        return self._inner(scores, rng)

    def note_on_schedule(self, max_iters: int) -> str:
        return self._inner.note_on_schedule(max_iters)

    def expected_share(self, progress: Progress) -> Optional[float]:
        return self._inner.expected_share(progress)

    def begin_plan(self, progress: Progress) -> None:
        self._inner.begin_plan(progress)

    def state_dict(self) -> Dict[str, Any]:
        # Another policy may go on with the list.
        return {type(self._inner).__name__: self._inner.state_dict()}

    def state_form(self) -> Any:
        return {f'{type(self._inner).__name__}?': self._inner.state_form()}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        name = type(self._inner).__name__
        if name in state_dict:
            self._inner.load_state_dict(state_dict[name])

    def __repr__(self) -> str:
        indices = self.indices
        if not isinstance(indices, str):
            indices = f'<{len(list(indices))} images>'
        weights = '' if self.weights is None else ', weights=<given>'
        policy = '' if self.policy is None else f', policy={self._inner}'
        return f'Subset(indices={indices}{weights}{policy})'


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
