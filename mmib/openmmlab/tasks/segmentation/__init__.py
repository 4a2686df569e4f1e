# Copyright (c) mmib contributors. All rights reserved.
"""MMSegmentation: its heads and its losses."""
from . import losses  # noqa: F401
from .heads import TASK, register_head, register_segmentor

__all__ = ['TASK', 'register_head', 'register_segmentor']
