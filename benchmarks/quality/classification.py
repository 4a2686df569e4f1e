# Copyright (c) mmib contributors. All rights reserved.
"""Classification of small images that lie decoded in memory, and are cropped
and flipped a batch at a time: one by one that would take longer than the
network does."""
import os
import os.path as osp
from typing import Any, Dict, List, Sequence, Tuple

import mmcv
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseDataPreprocessor, BaseModel
from mmengine.registry import DATASETS, METRICS, MODELS
from mmseg.models.backbones import ResNet
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# Paths of images, and the number of the class of each.
Files = List[Tuple[str, int]]


def pack(splits: Dict[str, Files], out: str, size: Any = None) -> None:
    """Write the images of all splits to an ``.npz`` file: ``SPLIT_inputs``, in
    RGB, uint8 of shape (N, 3, H, W), and ``SPLIT_labels``, (N,). With a
    ``size`` they are resized to a width and height."""
    arrays = {}
    for split, files in splits.items():
        images = [mmcv.imread(path, channel_order='rgb') for path, _ in files]
        if size is not None:
            images = [mmcv.imresize(x, size, False, 'area') for x in images]
        if images:
            arrays[f'{split}_inputs'] = np.stack(images).transpose(0, 3, 1, 2)
            arrays[f'{split}_labels'] = np.array([label for _, label in files])
    os.makedirs(osp.dirname(osp.abspath(out)), exist_ok=True)
    np.savez(out, **arrays)


@DATASETS.register_module()
class PackedImages(TensorDataset):
    """A split of a file by :func:`pack`."""

    metainfo: dict = {}

    def __init__(self, data_root: str, split: str):
        with np.load(data_root) as file:
            super().__init__(*(torch.from_numpy(file[f'{split}_{name}'])
                               for name in ('inputs', 'labels')))


@MODELS.register_module()
class CropAndFlip(BaseDataPreprocessor):
    """Normalize a batch, and in training pad each image of it with black
    pixels at each side, crop and flip it at random."""

    def __init__(self, mean: List[float], std: List[float],
                 padding: int) -> None:
        super().__init__()
        self.padding = padding
        self.register_buffer('mean', torch.tensor(mean).view(3, 1, 1), False)
        self.register_buffer('std', torch.tensor(std).view(3, 1, 1), False)

    def forward(self, data: Any, training: bool = False) -> Any:
        inputs, labels = self.cast_data(data)
        if training:
            inputs = crop_and_flip(inputs, self.padding)
        return (inputs - self.mean) / self.std, labels


def crop_and_flip(images: Tensor, padding: int) -> Tensor:
    """Pad, crop to the size before and flip, each image at random."""
    batch, _, height, width = images.shape
    device = images.device
    padded = F.pad(images, [padding] * 4)
    top, left = torch.randint(2 * padding + 1, (2, batch, 1), device=device)
    rows = top + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(batch, width)
    flipped = torch.rand(batch, 1, device=device) < 0.5
    columns = left + torch.where(flipped, columns.flip(1), columns)
    numbers = torch.arange(batch, device=device)[:, None, None]
    cropped = padded[numbers, :, rows[:, :, None], columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2)


@MODELS.register_module()
class ResNetOfSmallImages(ResNet):
    """A ResNet whose first layer keeps the size of the images."""

    def _make_stem_layer(self, in_channels: int, stem_channels: int) -> None:
        super()._make_stem_layer(in_channels, stem_channels)
        self.conv1 = nn.Conv2d(
            in_channels, stem_channels, 3, padding=1, bias=False)
        self.maxpool = nn.Identity()


@MODELS.register_module()
class Classifier(BaseModel):
    """Mean features of a backbone, and a linear layer.

    Convolutions are channels last, and with ``bfloat16`` in half precision: a
    step takes two thirds of the time on a CPU, and half of it in bfloat16.
    """

    infobatch_predictions = 'head'

    def __init__(self, backbone: dict, channels: int, num_classes: int,
                 bfloat16: bool, data_preprocessor: dict) -> None:
        super().__init__(data_preprocessor,
                         dict(type='Normal', layer='Linear', std=0.01))
        self.backbone = MODELS.build(backbone).to(
            memory_format=torch.channels_last)
        self.head = nn.Linear(channels, num_classes)
        self.bfloat16 = bfloat16

    def forward(self, inputs: Tensor, labels: Tensor, mode: str) -> Any:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(
                inputs.device.type, torch.bfloat16, enabled=self.bfloat16):
            features = self.backbone(inputs)[-1]
        logits = self.head(features.float().mean((2, 3)))
        if mode == 'loss':
            # One loss for each image: no mean.
            return dict(loss=F.cross_entropy(logits, labels, reduction='none'))
        return logits.argmax(1) == labels


@METRICS.register_module()
class Accuracy(BaseMetric):
    """Percentage of the images that a :class:`Classifier` is right about."""

    def process(self, data_batch: Any, data_samples: Sequence[Tensor]) -> None:
        self.results += [bool(right) for right in data_samples]

    def compute_metrics(self, results: List[bool]) -> Dict[str, float]:
        return dict(accuracy=100 * float(np.mean(results)))
