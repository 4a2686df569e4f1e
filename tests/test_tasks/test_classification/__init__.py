# Copyright (c) mmib contributors. All rights reserved.
"""All tests of this folder are skipped without MMPretrain."""
import pytest

pytest.importorskip('mmpretrain.models', exc_type=ImportError)
