# Copyright (c) mmib contributors. All rights reserved.
"""Optimizers of MMPretrain, as those of torch."""
import pytest

from research.optimizers.optimizers import OPTIMIZERS, needs_mmpretrain

from .test_optimizers import check_row_of_the_page

pytest.importorskip('mmpretrain', exc_type=ImportError)

NAMES = [n for n, cfg in OPTIMIZERS.items() if needs_mmpretrain(cfg)]


@pytest.mark.parametrize('name', NAMES)
def test_rows_of_the_page(name):
    check_row_of_the_page(name)
