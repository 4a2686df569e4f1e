# Copyright (c) mmib contributors. All rights reserved.
"""Which image an index of a data set is, whatever wraps the data set; and the
wrapper that shows only listed images."""
import os.path as osp
import zlib
from typing import Any, Dict, List, Optional, Set, Sized, Tuple

import numpy as np
from mmengine.dataset import (BaseDataset, ClassBalancedDataset, RepeatDataset,
                              force_full_init)
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from torch.utils.data import ConcatDataset

from ...errors import Refusal
from .lists import Images, find_images, find_wrong
from .masks import Folder, replace_masks
from .relabel import change_labels
from .verdicts import Path


@DATASETS.register_module()
class ListedImages:
    """A wrapper that shows the listed images of a data set, and no others,
    leaves listed images out, or gives images the right labels of a review.

    Images come in the order of the data set, with all their repeats. A
    data set that derives from ``BaseDataset`` takes one of them, too, in
    place of one that can't be read. A data set within another wrapper may
    take any of its images.

    Args:
        dataset (dict or Dataset): The data set, or its config.
        images (str, Path or Sequence, optional): File with an image a line,
            or the images themselves: numbers of images, counted from 0 in the
            order of the data set; or paths, as the data set has them in
            ``img_path``; or ends of paths where these are unique. Defaults to
            None.
        without (str, Path or Sequence, optional): Images to leave out, of
            ``images`` or of all: such a list, or the file of a review, of
            which those that were judged wrong are left out. Defaults to None.
        relabel (str or Path, optional): File of a review of a data set whose
            images have one class each. Those that were judged wrong have the
            label that the review gives. Those without one are left out.
            Defaults to None.
        repaired (str or Path, optional): Folder of masks that take the place
            of those of the same names in the data set, of MMSegmentation.
            Defaults to None.
        lazy_init (bool): Whether the list and the annotations are read in
            :meth:`full_init` only. Defaults to False.

    Raises:
        Refusal: If ``images`` or ``without`` is neither a file nor a list, if
            none is given, if a list or mask can't be used, if there are other
            arguments, if the data set mixes its images, or if labels can't be
            changed.

    Examples:
        >>> dict(
        >>>     type='ListedImages',
        >>>     dataset=dict(type='ADE20KDataset', data_root='data/ade'),
        >>>     images='hard.txt')
    """

    def __init__(self,
                 dataset: Any,
                 images: Optional[Images] = None,
                 without: Optional[Images] = None,
                 relabel: Optional[Path] = None,
                 repaired: Optional[Folder] = None,
                 lazy_init: bool = False,
                 **others: Any) -> None:
        for name in others:
            raise Refusal(
                f'ListedImages in `train_dataloader.dataset` has no `{name}`: '
                f'set `train_dataloader.dataset.dataset.{name}`, of the data '
                'set that it wraps.')
        if all(each is None for each in (images, without, relabel, repaired)):
            raise Refusal(
                'ListedImages in `train_dataloader.dataset` needs `images`, '
                'those to show, or `without`, those to leave out, or '
                '`relabel`, a review that has their labels, or `repaired`, '
                'other masks.')
        self.dataset = (
            DATASETS.build(dataset) if isinstance(dataset, dict) else dataset)
        self.images = images
        self.without = without
        self.relabel = relabel
        self.repaired = repaired
        self._fully_initialized = False
        if not lazy_init:
            self.full_init()

    @property
    def metainfo(self) -> dict:
        """dict: Meta information of the data set."""
        return self.dataset.metainfo

    @property
    def pipeline(self) -> Any:
        """Compose: Pipeline of the data set, which hooks may replace."""
        return self.dataset.pipeline

    @pipeline.setter
    def pipeline(self, pipeline: Any) -> None:
        self.dataset.pipeline = pipeline

    def full_init(self) -> None:
        """Read the list, and find its images in the data set."""
        if self._fully_initialized:
            return
        if hasattr(self.dataset, 'full_init'):
            self.dataset.full_init()
        if mixed_in(self.dataset):
            raise Refusal(
                'MultiImageMixDataset within ListedImages, in '
                '`train_dataloader.dataset`, mixes other images into those of '
                'the list: let MultiImageMixDataset wrap ListedImages.')
        of_index = image_numbers(self.dataset)
        numbers, text = self._read_lists(of_index)
        if self.repaired is not None:
            masks = replace_masks(_leaves(self.dataset), self.repaired)
            text += f'; {len(masks)} masks are those of {self.repaired}'
            if self.without is not None:
                self._check_left_out(masks, ~np.isin(of_index, numbers))
        if len(numbers) == 0:
            raise Refusal(
                '`without`, or `relabel`, of ListedImages in '
                '`train_dataloader.dataset` leaves out all images: list '
                'fewer.')
        # Those that are shown, increasing.
        self.numbers = numbers
        self.indices = np.flatnonzero(np.isin(of_index, numbers))
        """np.ndarray: Index in the data set of each index of this one, int64
        of shape (len(self),)."""
        if isinstance(self.dataset, BaseDataset):
            # So that only a listed image replaces one that can't be read.
            self.dataset.get_subset_(self.indices.tolist())
            self.indices = np.arange(len(self.indices))
        # File names may be no text in UTF-8.
        text = text.encode(errors='backslashreplace').decode()
        print_log(
            f'InfoBatch: the data set has {len(numbers)} of '
            f'{of_index.max() + 1} images{text}.', 'current')
        self._fully_initialized = True

    def _check_left_out(self, masks: Set[str], left_out: np.ndarray) -> None:
        """Check that no image with a repaired mask is left out."""
        paths = (
            self.dataset.get_data_info(i)['seg_map_path']
            for i in np.flatnonzero(left_out))
        lost = [path for path in paths if path in masks]
        if lost:
            raise Refusal(
                f'{len(lost)} repaired masks, such as {lost[0]}, are of '
                'images that `without` of ListedImages in '
                '`train_dataloader.dataset` leaves out: drop it '
                '(--without of the command), or list fewer images there.')

    def _read_lists(self, of_index: np.ndarray) -> Tuple[np.ndarray, str]:
        """Numbers of the images to show, increasing, which have the right
        labels; and how they were found, for the log."""
        num_images = int(of_index.max()) + 1

        def paths() -> List[Optional[str]]:
            return image_paths(self.dataset, of_index)

        numbers, text = np.arange(num_images), ''
        for images, left_out in ((self.images, False), (self.without, True)):
            if images is None:
                continue
            listed, note = find_images(images, num_images, paths, left_out)
            name = images if isinstance(images, str) else 'a list'
            found = np.isin(numbers, listed)
            numbers = numbers[found != left_out]
            text += (f'; left out by {name}: {found.sum()}'
                     if left_out else f', those of {name}')
            text += f' ({note})' if note else ''
        if self.relabel is None:
            return numbers, text
        wrong, note = find_wrong(self.relabel, num_images, paths)
        right = {number for number, row in wrong.items() if row.label}
        both = right.intersection(listed if self.without is not None else ())
        if both:
            row = wrong[min(both)]
            raise Refusal(
                f'{row.where} gives `{row.image}` the label `{row.label}`, '
                'and `without` (--without) leaves that image out: give '
                '`relabel` (--relabel) alone, or remove the image from one '
                'of the files.')
        change_labels(self.dataset, of_index, wrong)
        shown = np.setdiff1d(numbers, [*(wrong.keys() - right)])
        text += (f'; with labels of {self.relabel}: '
                 f'{np.isin(shown, [*right]).sum()}; left out by '
                 f'{self.relabel}: {len(numbers) - len(shown)}')
        return shown, text + f' ({note})' * bool(note)

    @force_full_init
    def get_data_info(self, idx: int) -> Dict[str, Any]:
        """The annotation of a listed image."""
        return self.dataset.get_data_info(int(self.indices[idx]))

    @force_full_init
    def get_cat_ids(self, idx: int) -> List[int]:
        """The categories in a listed image."""
        return self.dataset.get_cat_ids(int(self.indices[idx]))

    @force_full_init
    def __getitem__(self, idx: int) -> Any:
        return self.dataset[int(self.indices[idx])]

    @force_full_init
    def __len__(self) -> int:
        return len(self.indices)


def unwrap_repeats(dataset: Any) -> Sized:
    """The data set that ``RepeatDataset`` repeats, which has each index of one
    pass once.

    A stream that never ends has no use for ``RepeatDataset``, whose indices
    begin with those of the data set that it repeats.
    """
    while isinstance(dataset, RepeatDataset) or _mixes_images(dataset):
        dataset = dataset.dataset
    return dataset


def image_numbers(dataset: Any) -> np.ndarray:
    """Number of the image of each index of a data set, from 0, int64 of shape
    (len(dataset),).

    All repeats of an image have the same number. In a mixture of
    ``MultiImageMixDataset`` the image that was asked for counts.
    """
    if _mixes_images(dataset):
        return image_numbers(dataset.dataset)
    if isinstance(dataset, RepeatDataset):
        return np.tile(image_numbers(dataset.dataset), dataset.times)
    if isinstance(dataset, ClassBalancedDataset):
        return image_numbers(dataset.dataset)[dataset.repeat_indices]
    if isinstance(dataset, ConcatDataset):
        parts = [image_numbers(part) for part in dataset.datasets]
        before = np.cumsum([0] + [part.max() + 1 for part in parts])
        return np.concatenate(
            [part + start for part, start in zip(parts, before)])
    if isinstance(dataset, ListedImages):
        numbers = image_numbers(dataset.dataset)[dataset.indices]
        return np.unique(numbers, return_inverse=True)[1]
    return np.arange(len(dataset))


def _parts(dataset: Any) -> list:
    """The data sets that a wrapper has."""
    if isinstance(dataset, ConcatDataset):
        return list(dataset.datasets)
    return [dataset.dataset] if hasattr(dataset, 'dataset') else []


def _leaves(dataset: Any) -> list:
    """The data sets within all wrappers."""
    parts = _parts(dataset)
    return sum(map(_leaves, parts), []) if parts else [dataset]


def numbers_in_whole(dataset: Any) -> np.ndarray:
    """Number of each image in the data set that ``ListedImages`` wraps, which
    a list for this data set has to name; its own number where there is no
    ``ListedImages``."""
    images = np.arange(int(image_numbers(dataset).max()) + 1)
    while (isinstance(dataset, (RepeatDataset, ClassBalancedDataset))
           or _mixes_images(dataset)):
        dataset = dataset.dataset
    return dataset.numbers if isinstance(dataset, ListedImages) else images


def _listed(dataset: Any) -> List[np.ndarray]:
    """Numbers of the images of each list in a data set."""
    own = [dataset.numbers] if isinstance(dataset, ListedImages) else []
    return sum(map(_listed, _parts(dataset)), own)


def part_ends(dataset: Any) -> List[int]:
    """The index of a data set where each part of a ``ConcatDataset`` ends."""
    if isinstance(dataset, ConcatDataset):
        return list(dataset.cumulative_sizes)
    if isinstance(dataset, ListedImages):
        ends = part_ends(unwrap_repeats(dataset.dataset))
        return np.searchsorted(dataset.indices, ends).tolist()
    return [len(dataset)]


def mixed_in(dataset: Any) -> bool:
    """Whether a data set, or one that it wraps, mixes its images."""
    return _mixes_images(dataset) or any(map(mixed_in, _parts(dataset)))


def _mixes_images(dataset: object) -> bool:
    # By name: each library of OpenMMLab has one of its own.
    return any(kind.__name__ == 'MultiImageMixDataset'
               for kind in type(dataset).__mro__)


def image_path(dataset: Any, index: int) -> Optional[str]:
    """Path of the image of an index, or None where the data set doesn't
    tell."""
    try:
        return dataset.get_data_info(index).get('img_path')
    except AttributeError:  # The data set, or a wrapped one, has no data info.
        return None


def image_paths(dataset: Any, images: np.ndarray) -> List[Optional[str]]:
    """Path of each image, or None where the data set doesn't tell. ``images``
    are the numbers of the images of its indices."""
    _, first = np.unique(images, return_index=True)
    paths = (image_path(dataset, int(index)) for index in first)
    return [None if path is None else str(path) for path in paths]


def images_checksum(dataset: Sized,
                    paths: Optional[List[Optional[str]]] = None) -> int:
    """Checksum of the images of a data set and their order, of 32 bits.

    Paths count within the folder that all images share, so that a data set may
    be moved. Images without a path are counted. The numbers of listed images
    count too. Reading the paths of a million images takes about 2 seconds.

    Args:
        dataset (Sized): The data set.
        paths (list[str], optional): What :func:`image_paths` returns for the
            data set, if this was called already. Defaults to None.
    """
    dataset = unwrap_repeats(dataset)
    images = image_numbers(dataset)
    if paths is None:
        paths = image_paths(dataset, images)
    own = [path or '' for path in paths]
    known = list(filter(None, own)) or ['']
    shared = osp.commonprefix([min(known), max(known)])
    begin = len(shared) - len(osp.basename(shared))
    names = '\n'.join(path[begin:] for path in own)
    checksum = zlib.crc32(images.astype(np.int64).tobytes())
    for numbers in _listed(dataset):
        checksum = zlib.crc32(numbers.tobytes(), checksum)
    # File names may be no text in UTF-8.
    return zlib.crc32(names.encode(errors='surrogatepass'), checksum)
