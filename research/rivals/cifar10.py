# Copyright (c) mmib contributors. All rights reserved.
"""CIFAR-10 of ``benchmarks.quality``, with rivals."""
from benchmarks.quality import cifar10
from benchmarks.quality.cifar10 import DATA, METRIC, PASSES  # noqa: F401

from . import policies  # noqa: F401


def full_training(data):
    cfg = cifar10.full_training(data)
    cfg.custom_imports.imports.append('research.rivals.policies')
    cfg.custom_hooks = [dict(type='BatchLosses')]
    return cfg
