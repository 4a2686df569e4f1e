# Copyright (c) mmib contributors. All rights reserved.
"""The wrapper of a dataset that shows listed images, or repaired labels."""
from typing import Any, Dict, List, Optional, Set, Tuple

import numpy as np
from mmengine.dataset import BaseDataset, force_full_init
from mmengine.logging import print_log
from mmengine.registry import DATASETS

from ..errors import Refusal
from ..openmmlab.data.datasets import (image_numbers, image_paths, leaves,
                                       mixed_in)
from .lists import Images, find_images, find_wrong
from .masks import Folder, replace_masks
from .relabel import change_labels
from .verdicts import Path


@DATASETS.register_module()
class ListedImages:
    """A wrapper that shows the listed images of a dataset, and no others,
    leaves listed images out, or gives images the right labels of a review.

    Images come in the order of the dataset, with all their repeats. A
    dataset that derives from ``BaseDataset`` takes one of them, too, in
    place of one that can't be read. A dataset within another wrapper may
    take any of its images.

    Args:
        dataset (dict or Dataset): The dataset, or its config.
        images (str, Path or Sequence, optional): File with an image a line,
            or the images themselves: numbers of images, counted from 0 in the
            order of the dataset; or paths, as the dataset has them in
            ``img_path``; or ends of paths where these are unique. Defaults to
            None.
        without (str, Path or Sequence, optional): Images to leave out, of
            ``images`` or of all: such a list, or the file of a review, of
            which those that were judged wrong are left out. Defaults to None.
        relabel (str or Path, optional): File of a review of a dataset whose
            images have one class each. Those that were judged wrong have the
            label that the review gives. Those without one are left out.
            Defaults to None.
        repaired (str or Path, optional): Folder of masks that take the place
            of those of the same names in the dataset, of MMSegmentation.
            Defaults to None.
        lazy_init (bool): Whether the list and the annotations are read in
            :meth:`full_init` only. Defaults to False.

    Raises:
        Refusal: If ``images`` or ``without`` is neither a file nor a list, if
            none is given, if a list or mask can't be used, if there are other
            arguments, if the dataset mixes its images, or if labels can't be
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
                f'set `train_dataloader.dataset.dataset.{name}`, of the '
                'dataset that it wraps.')
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
        """dict: Meta information of the dataset."""
        return self.dataset.metainfo

    @property
    def pipeline(self) -> Any:
        """Compose: Pipeline of the dataset, which hooks may replace."""
        return self.dataset.pipeline

    @pipeline.setter
    def pipeline(self, pipeline: Any) -> None:
        self.dataset.pipeline = pipeline

    def full_init(self) -> None:
        """Read the list, and find its images in the dataset."""
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
            masks = replace_masks(leaves(self.dataset), self.repaired)
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
        """np.ndarray: Index in the dataset of each index of this one, int64
        of shape (len(self),)."""
        if isinstance(self.dataset, BaseDataset):
            # So that only a listed image replaces one that can't be read.
            self.dataset.get_subset_(self.indices.tolist())
            self.indices = np.arange(len(self.indices))
        # File names may be no text in UTF-8.
        text = text.encode(errors='backslashreplace').decode()
        print_log(
            f'InfoBatch: the dataset has {len(numbers)} of '
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
