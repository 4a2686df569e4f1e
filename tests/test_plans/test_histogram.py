# Copyright (c) mmib contributors. All rights reserved.
import numpy as np
import pytest

from mmib.pruning import EpochPlan, Neyman, Progress, ScoreHistogram


def test_all_kept_and_by_weight():
    scores = np.arange(60, dtype=np.float32)
    plan = EpochPlan(np.arange(1, 60, 2), np.full(30, 2, np.float32))
    histogram = ScoreHistogram.of(scores, plan)
    assert histogram.edges[0] == 0 and histogram.edges[-1] == 59
    assert histogram.all == [2] * 30
    assert histogram.kept == [1] * 30
    assert histogram.weighted == [2.] * 30


def test_of_many_images_a_part_is_counted():
    rng = np.random.default_rng(0)
    scores = rng.lognormal(size=600_000).astype(np.float32)
    plan = Neyman(ratio=0.6)
    plan.begin_plan(Progress(spent=6, covered=6, annealing=0, length=24))
    plan = plan(scores, rng)
    found = ScoreHistogram.of(scores, plan)
    edges = np.array(found.edges)
    assert (edges[0], edges[-1]) == (scores.min(), scores.max())
    kept = scores[plan.indices]
    for name, values, weights in (('all', scores, None), ('kept', kept, None),
                                  ('weighted', kept, plan.weights)):
        counts = np.histogram(values, edges, weights=weights)[0]
        np.testing.assert_allclose(
            getattr(found, name), counts, atol=0.005 * len(scores))
        assert counts.max() > 0.1 * len(scores)


@pytest.mark.parametrize('steps', [0, 1, 7])
def test_scores_that_are_nearly_equal(steps):
    """As of a network that predicts the same everywhere."""
    scores = np.full(9, 2.3, np.float32)
    for _ in range(steps):
        scores[4] = np.nextafter(scores[4], np.float32(9))
    histogram = ScoreHistogram.of(scores, EpochPlan.full(np.arange(9)))
    assert sum(histogram.all) == sum(histogram.kept) == 9
