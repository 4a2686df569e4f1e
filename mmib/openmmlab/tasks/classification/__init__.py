# Copyright (c) mmib contributors. All rights reserved.
"""MMPretrain: its heads, losses and batch augmentations."""
from . import losses  # noqa: F401
from .augments import PairedCutMix, PairedMixup, PairedResizeMix
from .heads import TASK, register_classifier, register_head

__all__ = [
    'TASK', 'PairedCutMix', 'PairedMixup', 'PairedResizeMix',
    'register_classifier', 'register_head'
]
