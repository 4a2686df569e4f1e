# Copyright (c) mmib contributors. All rights reserved.
import numpy as np
import pytest

from mmib.pruning import EpochPlan, ScoreHistogram


def test_all_kept_and_by_weight():
    scores = np.arange(60, dtype=np.float32)
    plan = EpochPlan(np.arange(1, 60, 2), np.full(30, 2, np.float32))
    histogram = ScoreHistogram.of(scores, plan)
    assert histogram.edges[0] == 0 and histogram.edges[-1] == 59
    assert histogram.all == [2] * 30
    assert histogram.kept == [1] * 30
    assert histogram.weighted == [2.] * 30


@pytest.mark.parametrize('steps', [0, 1, 7])
def test_scores_that_are_nearly_equal(steps):
    """As of a network that predicts the same everywhere."""
    scores = np.full(9, 2.3, np.float32)
    for _ in range(steps):
        scores[4] = np.nextafter(scores[4], np.float32(9))
    histogram = ScoreHistogram.of(scores, EpochPlan.full(np.arange(9)))
    assert sum(histogram.all) == sum(histogram.kept) == 9
