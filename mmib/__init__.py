# Copyright (c) mmib contributors. All rights reserved.
"""InfoBatch, unbiased dynamic data pruning, for PyTorch and MMEngine.

A :class:`Session` needs torch and numpy, and is loaded at its first use.
:mod:`mmib.pruning` and :mod:`mmib.worth` need numpy alone. Where MMEngine is
installed, ``import mmib`` registers the hook, the sampler and the loss
wrapper, so that a config needs no more than
``custom_imports = dict(imports=['mmib'])``.
"""
import importlib
from typing import TYPE_CHECKING, Any, List

from .version import __version__

if TYPE_CHECKING:
    from .openmmlab import (POLICIES, InfoBatchHook, InfoBatchLoss,
                            InfoBatchSampler, convert, register_task, shorten)
    from .session import Session

__all__ = [
    'POLICIES', 'InfoBatchHook', 'InfoBatchLoss', 'InfoBatchSampler',
    'Session', '__version__', 'convert', 'register_task', 'shorten'
]

# Submodules, which are loaded at their first use as well.
_MODULES = ('errors', 'labels', 'pruning', 'worth')

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f'.{name}', __name__)
        if name == 'Session':
            return importlib.import_module('.session', __name__).Session
        if name not in __all__:
            raise AttributeError(
                f'module {__name__!r} has no attribute {name!r}')
        try:
            openmmlab = importlib.import_module('.openmmlab', __name__)
        except ImportError as error:
            raise ImportError(
                f'`mmib.{name}` needs MMEngine, which cannot be imported '
                f'({error}): install the package that is missing. '
                '`mmib.Session` works without MMEngine.',
                name=error.name) from error
        return getattr(openmmlab, name)

    def __dir__() -> List[str]:
        return sorted({*globals(), *__all__, *_MODULES})


def _register() -> None:
    """Register the parts for MMEngine, if MMEngine can be imported."""
    try:
        importlib.import_module('mmengine.runner')
    # A broken installation may raise anything.
    except Exception:
        return
    importlib.import_module('.openmmlab', __name__)


_register()
