# Copyright (c) mmib contributors. All rights reserved.
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from mmib.labels.rankings import largest_region, margin, region_share

SQUARE = np.ones((3, 3), bool)


def gaps_of(shape=(20, 30), **areas):
    gaps = np.zeros(shape, np.float32)
    for (top, left, bottom, right), gap in areas.values():
        gaps[top:bottom, left:right] = gap
    return gaps


@given(
    arrays(
        np.float32, (9, 12),
        elements=st.sampled_from([0, 0.25, 0.75, 0.875, math.nan])),
    st.integers(0, 6))
def test_regions_are_those_of_scipy(gaps, at):
    """A square makes sure that there is one."""
    gaps[at:at + 3, at:at + 4] = 1
    differs = np.nan_to_num(gaps) > 0.5
    eroded = ndimage.binary_erosion(differs, SQUARE, border_value=1)
    regions, count = ndimage.label(ndimage.binary_dilation(eroded, SQUARE))
    sums = ndimage.sum_labels(
        np.nan_to_num(gaps), regions, range(1, count + 1))
    share = sums.max() / (~np.isnan(gaps)).sum()
    assert region_share(gaps) == pytest.approx(share)
    found = largest_region(gaps)
    assert np.nan_to_num(gaps)[found].sum() == pytest.approx(sums.max())
    assert len(np.unique(regions[found])) == 1


def test_what_a_region_is():
    """An area of whole pixels, not a border however long; among two the one
    of which the network is surer."""
    border = ((0, 0, 20, 2), 1)
    unsure, sure = ((4, 4, 9, 9), 0.6), ((12, 20, 17, 25), 0.9)
    gaps = gaps_of(a=border, b=unsure, c=sure)
    expected = np.zeros((20, 30), bool)
    expected[12:17, 20:25] = True
    # At its edge the image doesn't end a line.
    gaps[:, :2] = np.where(np.arange(20)[:, None] % 3, 1, 0)
    np.testing.assert_array_equal(largest_region(gaps), expected)
    assert region_share(gaps) == pytest.approx(25 * 0.9 / 600)
    for nothing in gaps_of(), gaps_of(a=((3, 3, 9, 5), 1)):
        assert not largest_region(nothing).any()
        assert region_share(nothing) == 0
    assert math.isnan(region_share(np.full((3, 3), np.nan)))


def test_margin():
    log = np.log([0.2, 0.5, 0.3])
    for label, expected in ((0, 2.5), (1, 0.6), (2, 5 / 3)):
        leads = log - log[label]
        leads[label] = math.nan
        assert margin(leads) == pytest.approx(math.log(expected))
