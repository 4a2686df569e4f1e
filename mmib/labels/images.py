# Copyright (c) mmib contributors. All rights reserved.
"""The images of a dataset: their paths, pixels and labels."""
import copy
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
from mmengine import fileio
from mmengine.config import Config
from mmengine.dataset import ClassBalancedDataset, RepeatDataset
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope
from mmengine.utils import import_modules_from_strings

from ..errors import Refusal
from ..openmmlab.data.datasets import (image_numbers, image_paths,
                                       images_checksum, is_listed, leaves,
                                       mixes_images, unwrap_repeats)
from .lists import find_images, parts_of
from .masks import IGNORED, ignored_number, loading_steps
from .relabel import has_one_class

if TYPE_CHECKING:  # It needs pandas.
    from ..report.checkpoint import Checkpoint


class CannotShow(Exception):
    """An image, its labels or a prediction can't be shown. The text completes
    a sentence with "because"."""


def numbers_in_whole(dataset: Any) -> np.ndarray:
    """Return the number of each image in the whole dataset, which lists refer
    to: the dataset inside ``ListedImages``, if there is one."""
    images = np.arange(int(image_numbers(dataset).max()) + 1)
    while (isinstance(dataset, (RepeatDataset, ClassBalancedDataset))
           or mixes_images(dataset)):
        dataset = dataset.dataset
    return dataset.numbers if is_listed(dataset) else images


def in_short(error: Exception) -> str:
    """Return the type and the first sentence of an error."""
    lines = str(error).strip(' \n"\'').splitlines() or ['']
    # The next line of PyTorch's message says which weights differ.
    count = 1 + lines[0].endswith(':')
    sentence = ' '.join(map(str.strip, lines[:count])).split('. ')[0][:200]
    return f'{type(error).__name__}: {sentence}'


class DatasetImages:
    """The images of a dataset in a config, by their numbers in the whole
    dataset. A run may train on a list of them. Modules that the config imports
    are imported.

    Args:
        config (Config): Config of a run or a test.
        split (str): ``'train'``, ``'val'`` or ``'test'``. Defaults to
            ``'train'``.

    Raises:
        CannotShow: If the dataset can't be built.
    """

    def __init__(self, config: Config, split: str = 'train') -> None:
        part = (config.get(f'{split}_dataloader') or {}).get('dataset')
        if part is None:
            raise CannotShow('the config has none')
        try:
            imports = config.get('custom_imports') or dict(imports=[])
            import_modules_from_strings(**imports)
            scope = config.get('default_scope')
            with DefaultScope.overwrite_default_scope(scope):
                self._dataset: Any = unwrap_repeats(
                    DATASETS.build(copy.deepcopy(part)))
                if hasattr(self._dataset, 'full_init'):
                    self._dataset.full_init()
                self._loaders = _loaders_of(self._dataset)
            self._of_index = image_numbers(self._dataset)
            self.numbers: List[int] = numbers_in_whole(self._dataset).tolist()
            self.own_classes = _classes_of(self._dataset)
        # A dataset may raise anything.
        except Exception as error:
            raise CannotShow(in_short(error)) from error
        self._config, self._split = config, split
        self._classes: List[str] = self.own_classes
        # What the network calls each class of the dataset.
        self._renumbered: Optional[np.ndarray] = None
        indices = np.unique(self._of_index, return_index=True)[1]
        self._indices = dict(zip(self.numbers, indices.tolist()))

    def find(self, image: str) -> Tuple[int, int]:
        """Return the number of an image among the images of the run, and its
        first dataset index.

        Args:
            image (str): Number of the image in the whole dataset, its path, or
                the end of its path.

        Raises:
            Refusal: If there is no such image, or several.
        """
        paths, numbers = self.paths(), [*map(str, self.numbers)]
        try:
            if image in numbers:
                row = numbers.index(image)
            else:
                # Any of its copies.
                row = min(find_images([image], paths))
                if image == str(row):
                    # A number counts the images of the whole dataset.
                    raise Refusal(image)
        except Refusal:
            raise Refusal(
                f'{image} names no image of the dataset, or several. The first'
                f' image is {paths[0] or "number 0"}: give a path, the end of '
                'a path, or a number.') from None
        return row, self._indices[self.numbers[row]]

    @property
    def checksum(self) -> int:
        """int: Checksum of the images and their order."""
        return images_checksum(self._dataset)

    def check(self, checkpoint: 'Checkpoint') -> None:
        """Check that a checkpoint has scores of these images.

        Raises:
            CannotShow: If the checkpoint has scores of other images.
        """
        known = () if checkpoint.images is None else checkpoint.images
        if len(known) != len(self.numbers):
            raise CannotShow(f'the dataset has {len(self.numbers)} images '
                             f'here, and the checkpoint {len(known)}')
        if checkpoint.images_checksum not in (None, self.checksum):
            raise CannotShow('the dataset has other images here than the '
                             'checkpoint, or the same in another order')

    @property
    def classes(self) -> List[str]:
        """list[str]: Names of the classes, by the number that labels have.
        Empty if the names aren't known."""
        return self._classes

    def number_as(self, trained: Sequence[str]) -> bool:
        """Let labels have the numbers by which a network predicts classes of
        the same names.

        A dataset may lack a class of the network, or have the classes in
        another order.

        Args:
            trained (Sequence[str]): Names of the classes that the network was
                trained on, as a checkpoint has them. Empty if the names aren't
                known: then labels keep their numbers.

        Returns:
            bool: Whether the numbers of labels have changed.

        Raises:
            CannotShow: If the network doesn't know a class of the dataset by
                its name.
        """
        own, classes = self.own_classes, self._trained_classes(trained)
        if not own or not classes or own == classes:
            return False
        unknown = [name for name in own if classes.count(name) != 1]
        if unknown or len({*own}) < len(own):
            raise CannotShow(
                f'the dataset has the classes {_listed(own)}, and the network '
                f'was trained on {_listed(classes)}, so '
                f'`{(unknown or own)[0]}` of the dataset has no number in the '
                'network: set `metainfo=dict(classes=...)` of the dataset to '
                'the names that the network has')
        self._renumbered = np.array([*map(classes.index, own)])
        self._classes = classes
        return True

    def _trained_classes(self, known: Sequence[str]) -> List[str]:
        """Return the names of the classes of a network by number.

        Datasets of COCO number classes in the order of their file, and call
        them in the order of ``classes``, which a checkpoint keeps. So the
        names of its numbers are those of the file that it was trained on.
        """
        named = list(self._metainfo.get('classes') or [])
        if not known or not hasattr(leaves(self._dataset)[0], 'cat_ids'):
            return list(known)
        try:
            trained = self if self._split == 'train' else DatasetImages(
                self._config)
        except CannotShow as error:
            if self.own_classes == named:
                return list(known)
            raise CannotShow(
                f'the file of the dataset has the categories '
                f'{_listed(self.own_classes)}, and `classes` of the dataset '
                f'are {_listed(named)}. Labels have the numbers of the file, '
                'and which ones the network was trained on isn\'t known, '
                f'because `train_dataloader.dataset` can\'t be read: {error}'
            ) from error
        is_same = list(trained._metainfo.get('classes') or []) == [*known]
        return trained.own_classes if is_same else list(known)

    def _numbers(self, labels: Any) -> np.ndarray:
        """Return labels with the numbers of the network. A label of no class
        gets 256 more, so that it names none of the network's."""
        assert self._renumbered is not None
        labels, count = np.asarray(labels, np.int64), len(self._renumbered)
        numbers = self._renumbered[np.clip(labels, 0, count - 1)]
        no_class = np.where(labels == IGNORED, IGNORED, labels + 256)
        return np.where((labels >= 0) & (labels < count), numbers, no_class)

    @property
    def palette(self) -> np.ndarray:
        """np.ndarray: RGB colour of each label, uint8 of shape (256, 3)."""
        colours = np.random.default_rng(0).integers(
            40, 230, (256, 3), dtype=np.uint8)
        known = self._metainfo.get('palette') or []
        numbers = range(len(known))
        if self._renumbered is not None:
            numbers = self._renumbered.tolist()
        for number, colour in zip(numbers, known):
            if number < len(colours):
                colours[number] = colour
        return colours

    @property
    def _metainfo(self) -> dict:
        return getattr(self._dataset, 'metainfo', None) or {}

    @property
    def ignored(self) -> int:
        """int: The number that masks have in a pixel without a class."""
        return ignored_number(leaves(self._dataset)[0])

    @property
    def has_one_class(self) -> bool:
        """bool: Whether each image has one class."""
        return (hasattr(self._dataset, 'get_data_info')
                and has_one_class(self._dataset.get_data_info(0)))

    def names(self, labels: Any) -> str:
        """Return the names of one or more classes, given their numbers. The
        number stands for an unknown name."""
        numbers = np.atleast_1d(np.asarray(labels)).tolist()
        classes = self.classes
        return ', '.join(
            str(classes[n] if n < len(classes) else n) for n in numbers)

    def paths(self) -> List[Optional[str]]:
        """Return the path of each image, None where it isn't known."""
        return image_paths(self._dataset, self._of_index)

    def image_names(self) -> List[str]:
        """Return the name of each image in lists and reviews: its path, which
        its copies share, or its number. The number stands for an image without
        a path, and for images that have one path and different annotations,
        such as the frames of a file."""
        paths = self.paths()
        of_path: Dict[tuple, List[int]] = {}
        for number, path in zip(self.numbers, paths):
            of_path.setdefault(parts_of(path or ''), []).append(number)
        apart = {()} | {
            parts
            for parts, numbers in of_path.items() if len(numbers) > 1 and parts
            and len({*map(self._annotation, numbers)}) > 1
        }
        return [
            str(number) if parts_of(path or '') in apart else str(path)
            for number, path in zip(self.numbers, paths)
        ]

    def _annotation(self, number: int) -> str:
        """Return what is known of an image beside its place in the dataset."""
        known = {
            key: value
            for key, value in self.info(number).items()
            if key not in ('sample_idx', 'img_id', 'img_path')
        }
        with np.printoptions(threshold=sys.maxsize):
            return repr(known)

    def info(self, number: int) -> dict:
        """Return the annotation of an image, which its pipeline begins with.
        """
        if not hasattr(self._dataset, 'get_data_info'):
            raise CannotShow('the dataset has no files')
        info = self._dataset.get_data_info(self._indices[number])
        if self._renumbered is not None:
            info = dict(info)
            if has_one_class(info):
                info['gt_label'] = int(self._numbers(info['gt_label']))
            if 'instances' in info:
                info['instances'] = [
                    dict(
                        each,
                        bbox_label=int(self._numbers(each['bbox_label'])))
                    for each in info['instances']
                ]
        return info

    def read(self, number: int, mask: Optional[str] = None) -> dict:
        """Load an image and its labels.

        Args:
            number (int): Number of the image.
            mask (str, optional): File of another mask to load. If None, the
                mask of the image. Defaults to None.

        Returns:
            dict: ``img`` (BGR, uint8 of shape (H, W, 3)) and, if the image has
            labels, ``gt_seg_map`` (of shape (H, W), 255 where a pixel has no
            class), ``gt_label`` or ``instances``.

        Raises:
            CannotShow: If a file can't be read.
        """
        results = self.info(number)
        if mask is not None:
            results['seg_map_path'] = mask
        try:
            if 'img' in results:
                # Datasets of MMPretrain that hold pixels have RGB.
                image = np.atleast_3d(results['img'])[..., ::-1]
            else:
                for load in self._loaders:
                    results = load(results)
                image = results['img']
        except KeyError as error:
            raise CannotShow(f'the dataset has no {error} of it') from error
        except Exception as error:
            raise CannotShow(in_short(error)) from error
        image = results['img'] = as_picture(image)
        labels = results.get('gt_seg_map')
        if labels is not None:
            if labels.shape != image.shape[:2]:
                raise CannotShow(f'labels of {labels.shape} pixels don\'t fit '
                                 f'an image of {image.shape[:2]}')
            # With `reduce_zero_label`, the loader makes 255 of the number.
            if not results.get('reduce_zero_label') and (self.ignored
                                                         != IGNORED):
                results['gt_seg_map'] = np.where(labels == self.ignored,
                                                 IGNORED, labels)
            if self._renumbered is not None and 'instances' not in results:
                results['gt_seg_map'] = self._numbers(results['gt_seg_map'])
        return results


def as_picture(image: np.ndarray) -> np.ndarray:
    """Return an image with any number of bands in three colours.

    Args:
        image (np.ndarray): Image of shape (H, W) or (H, W, bands). The first
            three bands are shown, or the first band of one or two.

    Returns:
        np.ndarray: uint8 of shape (H, W, 3).
    """
    bands = image.reshape(*image.shape[:2], -1)
    bands = bands[..., :3] if bands.shape[2] > 2 else bands[..., :1]
    if bands.dtype != np.uint8:
        # Stretch each band from its lowest to its highest value.
        bands = np.nan_to_num(bands.astype(np.float64))
        low = bands.min((0, 1))
        span = np.maximum(bands.max((0, 1)) - low, 1e-12)
        bands = np.round(255 * (bands - low) / span).astype(np.uint8)
    return np.broadcast_to(bands, (*bands.shape[:2], 3)).copy()


def _listed(names: Sequence[str]) -> str:
    """Return the first names in a sentence."""
    return ', '.join(names[:8]) + ', ...' * (len(names) > 8)


def _classes_of(dataset: Any) -> List[str]:
    """Return the names of the classes of a dataset, by the number that labels
    have. Empty if the names aren't known."""
    classes = (getattr(dataset, 'metainfo', None) or {}).get('classes') or []
    leaf = leaves(dataset)[0]
    file = str(getattr(leaf, 'ann_file', ''))
    if hasattr(leaf, 'cat_ids') and file.endswith('.json'):
        found = fileio.load(
            file, backend_args=getattr(leaf, 'backend_args', None))
        names = {each['id']: each['name'] for each in found['categories']}
        classes = [names[number] for number in leaf.cat_ids]
    return [*map(str, classes)]


def _loaders_of(dataset: Any) -> list:
    """Return the steps of a pipeline that load images and labels."""
    steps = loading_steps(leaves(dataset)[0])
    return steps or [TRANSFORMS.build(dict(type='LoadImageFromFile'))]
