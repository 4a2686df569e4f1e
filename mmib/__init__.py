# Copyright (c) mmib contributors. All rights reserved.
"""InfoBatch, unbiased dynamic data pruning, for MMEngine.

``import mmib`` registers every part, so that a config needs no more than
``custom_imports = dict(imports=['mmib'])``. mmib needs MMEngine alone: the
task of a library such as MMSegmentation is loaded where models of the library
are trained.
"""
try:
    import mmengine  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != 'mmengine':
        raise
    raise ModuleNotFoundError(
        'mmib needs MMEngine, and `mmengine` is missing: run '
        "`pip install 'mmib[onedl]'`, or see docs/install.md for the "
        'stack of OpenMMLab.',
        name='mmengine') from None

from .config.convert import convert
from .config.schedule import shorten
from .hook import InfoBatchHook
from .losses import InfoBatchLoss
from .registry import POLICIES
from .sampler import InfoBatchSampler
from .session import Session
from .tasks import register_task
from .version import __version__

__all__ = [
    'POLICIES', 'InfoBatchHook', 'InfoBatchLoss', 'InfoBatchSampler',
    'Session', '__version__', 'convert', 'register_task', 'shorten'
]
