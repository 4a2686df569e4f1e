# Copyright (c) mmib contributors. All rights reserved.
"""CIFAR-10 of ``benchmarks.quality`` at 16 x 16, with half of its network and
with rivals.

    python -m research.lengths.cifar10 $CIFAR10
"""
import sys

from mmengine.registry import MODELS
from mmseg.models.backbones.resnet import BasicBlock

from benchmarks.quality import cifar10
from benchmarks.quality.cifar10 import METRIC, PASSES  # noqa: F401
from benchmarks.quality.classification import ResNetOfSmallImages, pack

from . import policies  # noqa: F401

DATA = 'data/cifar10-16x16.npz'


@MODELS.register_module()
class ShallowResNet(ResNetOfSmallImages):
    """One block in each stage: 78,000 weights."""

    arch_settings = {10: (BasicBlock, (1, 1, 1, 1))}


def full_training(data):
    cfg = cifar10.full_training(data)
    cfg.custom_imports.imports += [__name__, policies.__name__]
    cfg.model.backbone.update(type='ShallowResNet', depth=10)
    cfg.model.data_preprocessor.padding = 2
    cfg.custom_hooks = [dict(type='BatchLosses')]
    return cfg


if __name__ == '__main__':
    splits = cifar10.draw_splits(sys.argv[1])
    del splits['rest']
    pack(splits, DATA, (16, 16))
