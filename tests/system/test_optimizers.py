# Copyright (c) mmib contributors. All rights reserved.
"""What a weight of 2 does with each optimizer is what the page says."""
import os.path as osp

import numpy as np
import pytest

from research.optimizers.optimizers import (OPTIMIZERS, compare,
                                            needs_mmpretrain)

from ..test_benchmarks.utils import ROOT, rows_of


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_rows_of_the_page(name):
    if needs_mmpretrain(OPTIMIZERS[name]):
        pytest.importorskip('mmpretrain', exc_type=ImportError)
    page = osp.join(ROOT, 'research', 'optimizers', 'README.md')
    with open(page) as file:
        rows = {row[0]: row[1:] for row in rows_of(file.read())}
    expected = [float(cell) for cell in rows[name]]
    np.testing.assert_allclose(
        compare(OPTIMIZERS[name]), expected, rtol=0, atol=0.02)
