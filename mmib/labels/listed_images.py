# Copyright (c) mmib contributors. All rights reserved.
"""The wrapper of a dataset that shows listed images, or repaired labels."""
import os
from contextlib import suppress
from typing import Any, Dict, List, Optional, Set, Tuple

import numpy as np
from mmengine.dataset import BaseDataset, force_full_init
from mmengine.logging import print_log
from mmengine.registry import DATASETS

from ..errors import Refusal
from ..openmmlab.data.datasets import (image_numbers, image_paths, leaves,
                                       mixed_in)
from .lists import Images, find_images
from .masks import Folder, replace_masks
from .relabel import change_labels
from .verdicts import Path


def _named(images: Images) -> str:
    is_file = isinstance(images, (str, os.PathLike))
    return str(images) if is_file else 'a list'


@DATASETS.register_module()
class ListedImages:
    """A wrapper that shows the listed images of a dataset, and no others,
    leaves listed images out, or gives images the right labels of a review.

    Images come in the order of the dataset, with all their repeats. A
    dataset that derives from ``BaseDataset`` takes one of them, too, in
    place of one that can't be read. A dataset within another wrapper may
    take any of its images. An image that ``without`` leaves out stays out,
    also one with a right label or a repaired mask: the log counts each.

    Args:
        dataset (dict or Dataset): The dataset, or its config.
        images (str, Path or Sequence, optional): The images to show: paths, as
            the dataset has them in ``img_path``, or their ends, of as many
            parts as distinguish all images; or numbers, counted from 0 in the
            order of the dataset. A path stands for all images that have it.
            Or a text file with a path on each line, or with numbers where
            images have no path or share one. Defaults to None: all.
        without (str, Path or Sequence, optional): Images to leave out, of
            ``images`` or of all: such a list, or the file of a review, of
            which those that were judged wrong are left out. Defaults to None.
        relabel (str or Path, optional): File of a review of a dataset whose
            images have one class each. Those that were judged wrong have the
            label that the review gives. Those without one are left out.
            Defaults to None.
        repaired (str or Path, optional): Folder of masks that take the place
            of the masks of the same names in the dataset, of MMSegmentation.
            Defaults to None.
        lazy_init (bool): Whether the list and the annotations are read in
            :meth:`full_init` only. Defaults to False.

    Raises:
        Refusal: If ``images`` or ``without`` is neither a file nor a list, if
            a list or mask can't be used, if there are other arguments, if the
            dataset mixes its images, or if labels can't be changed.

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
        """Read the lists, and find their images in the dataset."""
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
        shown, text = self._read_lists(of_index)
        if not shown:
            raise Refusal(
                '`without`, or `relabel`, of ListedImages in '
                '`train_dataloader.dataset` leaves out all images: list '
                'fewer.')
        # Numbers of the images that are shown, increasing.
        self.numbers = np.array(sorted(shown), np.int64)
        self.indices = np.flatnonzero(np.isin(of_index, self.numbers))
        """np.ndarray: Index in the dataset of each index of this one, int64
        of shape (len(self),)."""
        if isinstance(self.dataset, BaseDataset):
            # Only a listed image replaces one that can't be read.
            self.dataset.get_subset_(self.indices.tolist())
            self.indices = np.arange(len(self.indices))
        # File names may be no text in UTF-8.
        text = text.encode(errors='backslashreplace').decode()
        print_log(
            f'InfoBatch: the dataset has {len(shown)} of '
            f'{of_index.max() + 1} images{text}.', 'current')
        self._fully_initialized = True

    def _read_lists(self, of_index: np.ndarray) -> Tuple[Set[int], str]:
        """Find the images to show, and change labels and masks.

        Args:
            of_index (np.ndarray): Number of the image of each index.

        Returns:
            tuple[set[int], str]: The numbers of the images, and a text for the
            log.
        """
        first = np.unique(of_index, return_index=True)[1]
        paths, text = image_paths(self.dataset, of_index), ''
        shown = {*range(len(paths))}
        if self.images is not None:
            shown &= find_images(
                self.images, paths, removed=self._removed).keys()
            text += f', those of {_named(self.images)}'
        if self.without is not None:
            gone = find_images(self.without, paths, 'without',
                               self._removed).keys()
            text += (f'; left out by {_named(self.without)}: '
                     f'{len(shown & gone)}')
            shown -= gone
        if self.relabel is not None:
            wrong = find_images(self.relabel, paths, 'relabel', self._removed)
            change_labels(self.dataset, first, wrong)
            gone = {n for n in shown & wrong.keys() if not wrong[n].label}
            text += (f'; with labels of {self.relabel}: '
                     f'{len(shown & wrong.keys()) - len(gone)}'
                     f'; left out by {self.relabel}: {len(gone)}')
            shown -= gone
        if self.repaired is not None:
            of_masks = replace_masks(
                leaves(self.dataset), self.repaired,
                lambda: self._removed('seg_map_path'))
            count = len(of_masks & {paths[n] for n in shown})
            text += (f'; with masks of {self.repaired}: {count} of '
                     f'{len(of_masks)}')
        return shown, text

    def _removed(self, key: str = 'img_path') -> List[Optional[str]]:
        """Return the paths of the images that datasets have read and then
        removed, or of their masks, for an error: the annotations are read
        again."""
        found: List[Optional[str]] = []
        for leaf in leaves(self.dataset):
            # A dataset may raise anything.
            with suppress(Exception):
                kept = {*image_paths(leaf, np.arange(len(leaf)))}
                found += [
                    str(info[key]) for info in leaf.load_data_list()
                    if str(info['img_path']) not in kept
                ]
        return found

    @force_full_init
    def get_data_info(self, idx: int) -> Dict[str, Any]:
        """Return the annotation of a listed image."""
        return self.dataset.get_data_info(int(self.indices[idx]))

    @force_full_init
    def get_cat_ids(self, idx: int) -> List[int]:
        """Return the categories in a listed image."""
        return self.dataset.get_cat_ids(int(self.indices[idx]))

    @force_full_init
    def __getitem__(self, idx: int) -> Any:
        return self.dataset[int(self.indices[idx])]

    @force_full_init
    def __len__(self) -> int:
        return len(self.indices)
