# Copyright (c) mmib contributors. All rights reserved.
"""What connects mmib to MMEngine. The import registers the hook, the sampler
and the wrapper of losses."""
from .config.convert import convert
from .config.schedule import shorten
from .hook import InfoBatchHook
from .losses import InfoBatchLoss
from .registry import POLICIES
from .sampler import InfoBatchSampler
from .step_scale import StepScaleHook  # noqa: F401
from .tasks import register_task

__all__ = [
    'POLICIES', 'InfoBatchHook', 'InfoBatchLoss', 'InfoBatchSampler',
    'convert', 'register_task', 'shorten'
]
