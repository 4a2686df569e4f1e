# Copyright (c) mmib contributors. All rights reserved.
"""CIFAR-10 in memory, and its augmentation on the training device.

Reading and augmenting images one by one would take longer than the network
does. So a batch is one indexing of an array, and is cropped and flipped as a
whole.
"""
import functools
from typing import List, NamedTuple, Sequence

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.registry import DATASETS, FUNCTIONS
from mmpretrain.models import ClsDataPreprocessor
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample
from torch import Tensor


class Images(NamedTuple):
    """Decoded images in RGB, uint8 of shape (N, 3, H, W), and their classes,
    int64 of shape (N,)."""

    inputs: Tensor
    labels: Tensor


@functools.lru_cache(maxsize=None)
def load(path: str, split: str) -> Images:
    """Load a split that ``pack.py`` has written, or several of them, as
    ``train+held_out``. Others that ask for it in the same process get the same
    tensors."""
    if '+' in split:
        parts = [load(path, part) for part in split.split('+')]
        return Images(*map(torch.cat, zip(*parts)))
    with np.load(path) as file:
        text, ends, labels = (
            file[f'{split}_{name}'] for name in ('bytes', 'ends', 'labels'))
    images = [
        cv2.imdecode(part, cv2.IMREAD_COLOR)[..., ::-1]
        for part in np.split(text, ends[:-1])
    ]
    inputs = np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2))
    return Images(torch.from_numpy(inputs), torch.from_numpy(labels))


@DATASETS.register_module()
class PackedImages:
    """The images of a split in a file by ``pack.py``, or some of them, which a
    data loader reads a batch at a time. A share of the labels may be made
    ``wrong``, drawn with a seed, but for those that were ``repaired``. The
    images may be kept on a ``device``, and the labels never are."""

    metainfo: dict = {}

    def __init__(self,
                 data_root: str,
                 split: str,
                 indices: Sequence[int] = None,
                 wrong: float = 0.,
                 wrong_seed: int = 0,
                 repaired: Sequence[int] = (),
                 device: str = 'cpu') -> None:
        self.data_root = data_root
        self.images = load(data_root, split)
        if wrong:
            labels = wrong_labels(self.images.labels, wrong, seed=wrong_seed)
            index = torch.as_tensor(repaired, dtype=torch.long)
            labels[index] = self.images.labels[index]
            self.images = self.images._replace(labels=labels)
        if indices is not None:
            index = torch.as_tensor(indices)
            self.images = Images(*(column[index] for column in self.images))
        inputs = self.images.inputs.to(device)
        self.images = self.images._replace(inputs=inputs)

    def __len__(self) -> int:
        return len(self.images.labels)

    def __getitem__(self, index: int) -> dict:
        return {
            name: column[index]
            for name, column in self.images._asdict().items()
        }

    def __getitems__(self, indices: List[int]) -> dict:
        # Of torch's data loader: a whole batch, to `as_it_is`.
        return self[torch.as_tensor(indices)]


def wrong_labels(labels: Tensor,
                 share: float,
                 num_classes: int = 10,
                 seed: int = 0) -> Tensor:
    """Labels of which a share, drawn at random but always the same, is
    replaced by other classes."""
    rng = np.random.default_rng(seed)
    count = round(share * len(labels))
    chosen = torch.from_numpy(rng.permutation(len(labels))[:count])
    moved = torch.from_numpy(rng.integers(1, num_classes, count))
    changed = labels.clone()
    changed[chosen] = (labels[chosen] + moved) % num_classes
    return changed


@FUNCTIONS.register_module()
def as_it_is(batch: dict) -> dict:
    """A batch that is one already."""
    return batch


@MODELS.register_module()
class CropAndFlip(ClsDataPreprocessor):
    """Normalize a batch, and in training pad each image of it with black
    pixels at each side, crop and flip it at random."""

    def __init__(self,
                 padding: int = 4,
                 num_classes: int = 10,
                 **others) -> None:
        super().__init__(num_classes=num_classes, **others)
        self.padding = padding
        self.register_buffer('classes', torch.arange(num_classes), False)
        self._samples: List[DataSample] = []

    def forward(self, data: dict, training: bool = False) -> dict:
        inputs = data['inputs'].to(self.device)
        if training:
            inputs = crop_and_flip(inputs, self.padding)
        inputs = super().forward(dict(inputs=inputs), training)['inputs']
        return dict(
            inputs=inputs, data_samples=self._samples_of(data['labels']))

    def _samples_of(self, labels: Tensor) -> List[DataSample]:
        """A sample for each image: one object for all of a class, as making
        and moving one for each image would take longer than the network."""
        if not self._samples:
            self._samples = [
                DataSample().set_gt_label(label).to(self.device)
                for label in self.classes
            ]
        return [self._samples[label] for label in labels.tolist()]


def crop_and_flip(images: Tensor, padding: int) -> Tensor:
    """Pad with zeros, crop to the size before and flip, each image at random.
    """
    batch, _, height, width = images.shape
    device = images.device
    padded = F.pad(images, [padding] * 4)
    top, left = torch.randint(2 * padding + 1, (2, batch, 1), device=device)
    rows = top + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(batch, width)
    flipped = torch.rand(batch, 1, device=device) < 0.5
    columns = left + torch.where(flipped, columns.flip(1), columns)
    numbers = torch.arange(batch, device=device)
    cropped = padded[numbers[:, None, None], :, rows[:, :, None],
                     columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2).contiguous()
