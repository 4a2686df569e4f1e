# Copyright (c) mmib contributors. All rights reserved.
"""The same with the ResNet, for which research/cifar10 has found that 0.2 is
far from the best learning rate, and 1.6 too."""
from .arms_cifar10 import ARMS, ORDER, RATIO, TUNED, TUNING_SEEDS  # noqa: F401

RATES = (0.4, 0.8)
