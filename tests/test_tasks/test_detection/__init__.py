# Copyright (c) mmib contributors. All rights reserved.
"""MMDetection doesn't import without compiled operations of mmcv, and OneDL's
has none. Few detectors call them in training, so here they are there by name.
All tests of this folder are skipped without MMDetection.
"""
import sys
import types
from importlib.util import find_spec

import pytest


class NoOperations(types.ModuleType):

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)

        def operation(*args, **kwargs):
            raise RuntimeError(f'`{name}` is not compiled')

        return operation


COMPILED = bool(find_spec('mmcv') and find_spec('mmcv._ext'))
# Without MMDetection these tests are skipped, and others have mmcv as it is.
if find_spec('mmdet') and not COMPILED:
    sys.modules['mmcv._ext'] = NoOperations('mmcv._ext')
    import mmdet.models  # noqa: F401
    del sys.modules['mmcv._ext']
pytest.importorskip('mmdet.models', exc_type=ImportError)
