# Copyright (c) mmib contributors. All rights reserved.
"""InfoBatch, unbiased dynamic data pruning, for MMSegmentation.

``import mmib`` registers every part, so that a config needs no more than
``custom_imports = dict(imports=['mmib'])``.
"""
try:
    import mmcv  # noqa: F401
    import mmengine  # noqa: F401
    import mmseg  # noqa: F401
except ModuleNotFoundError as error:
    missing = error.name.partition('.')[0]
    if missing not in ('mmcv', 'mmengine', 'mmseg'):
        raise
    raise ModuleNotFoundError(
        f'mmib needs MMSegmentation, and `{missing}` is missing: run '
        "`pip install -e '.[onedl]'` in mmib's folder, or see README.md for "
        'the stack of OpenMMLab.',
        name=missing) from None

from .hook import InfoBatchHook
from .losses import InfoBatchLoss
from .sampler import InfoBatchSampler
from .schedule import convert, shorten
from .version import __version__

__all__ = [
    'InfoBatchHook', 'InfoBatchLoss', 'InfoBatchSampler', '__version__',
    'convert', 'shorten'
]
