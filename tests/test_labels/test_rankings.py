# Copyright (c) mmib contributors. All rights reserved.
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from mmib.errors import Refusal
from mmib.labels.boxes import Boxes
from mmib.labels.rankings import (largest_region, margin, rank_boxes,
                                  rank_labels, rank_masks, region_share)

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


def masks_and_logits():
    """Four masks of two classes, of which the second has a wrong square, and
    the last one has no class."""
    labels = torch.zeros(4, 12, 16, dtype=torch.uint8)
    labels[:, :, 8:] = 1
    logits = 4. * torch.nn.functional.one_hot(labels.long(), 3)
    labels[1, 2:8, 2:8] = 2
    labels[2, 0, :] = labels[3] = 255
    return logits.permute(0, 3, 1, 2), labels


@pytest.mark.parametrize('as_arrays', [False, True])
def test_masks(as_arrays):
    logits, labels = masks_and_logits()
    if as_arrays:
        logits, labels = logits.numpy(), labels.numpy()
    right = math.log(1 + 2 * math.exp(-4))
    pixels = rank_masks(logits, labels)
    assert pixels == pytest.approx([right, 4 + right, right, math.nan],
                                   nan_ok=True,
                                   rel=1e-5)
    gap = math.exp(-right) - math.exp(-4 - right)
    assert rank_masks(logits, labels, 'regions') == pytest.approx(
        [0, 36 * gap / 192, 0, math.nan], nan_ok=True, rel=1e-5)
    # By batches, the numbers are the same.
    parts = [rank_masks(logits[i:i + 1], labels[i:i + 1]) for i in range(4)]
    np.testing.assert_array_equal(np.concatenate(parts), pixels)


def test_labels():
    logits = torch.tensor([[2., 0, 1], [2, 0, 1], [0, 0, 0]])
    logits.requires_grad_()
    assert rank_labels(logits, np.array([0, 1, 2])).tolist() == [-1, 2, 0]


def test_boxes():
    """Where an object has no box, and where all have one."""
    box = np.array([[0., 0, 8, 8], [20, 20, 30, 30]])
    sure = np.array([0.9, 0.8])
    of_class = np.zeros(2, int)
    images = [
        Boxes(box, of_class, box, of_class, sure),
        Boxes(box[:1], of_class[:1], box, of_class, sure),
        Boxes(box, 1 - of_class, box, of_class, sure)
    ]
    assert rank_boxes(images) == pytest.approx([0, 0.8, 0])
    assert rank_boxes(images, 'other_class') == pytest.approx([0, 0, 1.7])


@pytest.mark.parametrize('rank, logits, labels, match', [
    (rank_masks, (2, 3, 4, 5), torch.zeros(2, 5, 4), 'N, C, H, W'),
    (rank_masks, (3, 4, 5), torch.zeros(4, 5), 'N, C, H, W'),
    (rank_masks, (1, 3, 2, 2), torch.full((1, 2, 2), 3), '3, .* 0 to 2'),
    (rank_labels, (2, 3), torch.tensor([0, -1]), '-1, .* 0 to 2'),
    (rank_labels, (2, 3), torch.zeros(3), 'N, C'),
    (rank_labels, (2, 1), torch.zeros(2), 'two classes'),
])
def test_what_does_not_fit(rank, logits, labels, match):
    with pytest.raises(Refusal, match=match):
        rank(torch.zeros(logits), labels)


@pytest.mark.parametrize('rank', [
    lambda: rank_masks(*masks_and_logits(), by='margin'),
    lambda: rank_boxes([], by='pixels')
])
def test_a_ranking_of_another_task(rank):
    with pytest.raises(Refusal, match='`by`.*(pixels|missing)'):
        rank()
