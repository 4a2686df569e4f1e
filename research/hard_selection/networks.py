# Copyright (c) mmib contributors. All rights reserved.
"""A network without residual connections."""
from typing import Sequence, Tuple

from mmengine.model import BaseModule
from mmpretrain.registry import MODELS
from torch import Tensor, nn


@MODELS.register_module()
class PlainCNN(BaseModule):
    """Convolutions of 3 x 3 with batch normalization, halved in size by
    pooling between two of them.

    Args:
        widths (Sequence[int]): Channels of each convolution. Defaults to
            (16, 32, 64, 64).
    """

    def __init__(self, widths: Sequence[int] = (16, 32, 64, 64)) -> None:
        super().__init__()
        stages = [
            nn.Sequential(
                nn.Conv2d(before, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width), nn.ReLU(inplace=True))
            for before, width in zip((3, *widths), widths)
        ]
        layers = [stages[0]]
        for stage in stages[1:]:
            layers += [nn.MaxPool2d(2), stage]
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tuple[Tensor]:
        return (self.layers(inputs), )
