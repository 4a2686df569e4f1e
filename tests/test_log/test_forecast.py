# Copyright (c) mmib contributors. All rights reserved.
import pytest

from mmib.openmmlab.console.forecast import forecast
from mmib.openmmlab.runner.iterations import Iterations
from mmib.pruning import MeanThreshold, RandomPruning, ScoreOnly

HALF = RandomPruning(ratio=0.5)


@pytest.mark.parametrize('start, begins', [(0., 10), (0.2, 20), (0.25, 30)])
def test_from_the_first_edge_at_or_after_start(start, begins):
    """A pass is 10 iterations, and annealing begins after 85."""
    iterations = Iterations(100, 10, 100, 0.85, start)
    expected = forecast(HALF, iterations)
    assert expected.share == 0.5 and expected.mean_weight == 2
    # In what prunes, each iteration covers what two of the baseline do.
    assert expected.full_iters == 100 + 85 - begins
    assert (f'covers {expected.full_iters / 10:.1f} passes over the data'
            in expected.lines[-1])
    # The schedule may be that of the baseline: a saving has its condition.
    assert ' saved if the schedule was ' in expected.lines[-1]


@pytest.mark.parametrize('start, begins', [(0., 1), (0.5, 5)])
def test_by_epochs(start, begins):
    """The baseline has as many, each of 10 iterations."""
    expected = forecast(
        HALF, Iterations(100, 10, 10, 0.8, start, iters_per_epoch=10))
    assert expected.full_iters == 100
    iters = 100 - 5 * (8 - begins)
    # The last iteration of an epoch may have fewer images.
    assert (f'It runs about {iters} iterations and covers 10.0'
            in expected.lines[-1])
    assert f': about {100 - iters} saved.' in expected.lines[-1]


def test_what_prunes_nothing():
    iterations = Iterations(100, 10, 19, 0.5)
    assert forecast(HALF, iterations).share == 1
    assert forecast(MeanThreshold(), iterations).share == 1
    longer = Iterations(100, 10, 100, 0.5)
    assert forecast(MeanThreshold(), longer).share is None
    line, = forecast(ScoreOnly(), longer).lines
    assert line.endswith('prunes nothing: the run is the baseline.')
