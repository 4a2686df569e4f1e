# Copyright (c) mmib contributors. All rights reserved.
"""All of mmib that imports MMEngine. Importing the package registers its hook,
sampler and loss wrapper, and the wrapper of datasets."""
from .config.convert import convert
from .config.schedule import shorten
from .hook import InfoBatchHook
from .losses import InfoBatchLoss
from .registry import POLICIES
from .sampler import InfoBatchSampler
from .tasks import register_task

__all__ = [
    'POLICIES', 'InfoBatchHook', 'InfoBatchLoss', 'InfoBatchSampler',
    'convert', 'register_task', 'shorten'
]
