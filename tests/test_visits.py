# Copyright (c) mmib contributors. All rights reserved.
import numpy as np
import pytest
import torch

from mmib.batch import BatchContext
from mmib.pruning import EpochPlan
from mmib.scores import ScoreTable
from mmib.visits import VisitCounter
from mmib.worth import variance_ratio
from tests.visits import make_visits

CPU = torch.device('cpu')
NAN, INF = float('nan'), float('inf')


def counted(tiers, weights, norms, before=None, scores=None):
    counter = VisitCounter(ScoreTable(np.arange(3), CPU))
    counter.expect(3)
    add(counter, tiers, weights, norms, before, scores)
    return counter


def add(counter, tiers, weights, norms, before=None, scores=None):
    visits = make_visits(tiers, scores or norms, 0, tiers, weights, norms)
    counter.add([visits], torch.tensor(before or norms).float())


def test_sums_tell_ratio_norms_and_reliability():
    rng = np.random.default_rng(0)
    tiers = rng.integers(1, 4, 60)
    weights = np.array([4, 2, 1.])[tiers - 1]
    norms = rng.gamma(2, size=60).astype(np.float32)
    before = rng.normal(size=60).astype(np.float32)
    scores = before + rng.normal(size=60).astype(np.float32)
    counter = VisitCounter(ScoreTable(np.arange(3), CPU))
    counter.expect(3)
    for part in np.split(np.arange(60), 60):
        add(
            counter,
            *(x[part].tolist()
              for x in (tiers, weights, norms, before, scores)))
    sums = counter.take()
    assert sums.count == 60
    np.testing.assert_allclose(
        sums.ratio, variance_ratio(1 / weights, norms), rtol=1e-6)
    means = sums.norms.mean_squares
    np.testing.assert_allclose(
        means, [(norms[tiers == t]**2).mean() for t in (1, 2, 3)], rtol=1e-6)
    assert sums.reliability == pytest.approx(
        np.corrcoef(before, scores)[0, 1], rel=1e-5)
    # Taken once.
    nothing = counter.take()
    assert nothing.count == 0
    assert nothing.ratio is nothing.reliability is None


@pytest.mark.parametrize('tier, weight, norm', [(0, 2, 1), (1, 2, NAN),
                                                (1, 2, INF), (1, 0, 1),
                                                (4, 2, 1)])
def test_what_does_not_count(tier, weight, norm):
    """Full passes, gradients that aren't finite, weight 0, and tiers for
    which there is no room."""
    counter = counted([1, tier], [2, weight], [3, norm])
    alone = counted([1], [2], [3])
    np.testing.assert_array_equal(counter.take().by_tier, alone.take().by_tier)


def test_first_visits_do_not_count():
    sums = counted([1, 1], [1, 1], [1, 1], [NAN, 2.], [5., 3.]).take()
    np.testing.assert_array_equal(sums.pairs[0], [1, 2, 3])
    assert sums.count == 1


def test_room_for_more_tiers_keeps_what_is_known():
    counter = counted([1], [2], [3])
    counter.expect(5)
    counter.expect(2)
    add(counter, [5], [1], [2])
    by_tier = counter.take().by_tier
    np.testing.assert_array_equal(by_tier[:, 0, 3], [18, 0, 0, 0, 4])


@pytest.mark.parametrize('same_tiers', [True, False])
def test_state(same_tiers):
    counter = counted([1, 2], [2, 1], [3, 1])
    loaded = VisitCounter(ScoreTable(np.arange(3), CPU))
    loaded.load_state_dict(dict(rows=None), True)
    assert not loaded.take().by_tier.any()
    loaded.load_state_dict(counter.state_dict(), same_tiers)
    if not same_tiers:
        assert not loaded.take().by_tier.any()
        return
    for x in (counter, loaded):
        add(x, [3], [1], [4])
    expected, sums = counter.take(), loaded.take()
    np.testing.assert_array_equal(sums.by_tier, expected.by_tier)
    np.testing.assert_array_equal(sums.pairs, expected.pairs)


def test_state_of_other_ranks():
    state = counted([1], [2], [3]).state_dict()
    state['rows'] = torch.cat([state['rows'], 2 * state['rows']])
    loaded = VisitCounter(ScoreTable(np.arange(3), CPU))
    loaded.load_state_dict(state, True)
    assert loaded.take().by_tier[0, 0, 3] == 3 * 18


def record(counter, tiers, norms, weights=None):
    """A batch of as many images with weight 2 and score 5."""
    size = len(tiers)
    weights = np.float32(weights or [2] * size)
    batch = BatchContext()
    batch.begin(torch.from_numpy(weights))
    scores = torch.full((size, ), 5.)
    if norms is not None:
        # Of a prediction of two numbers, one of which doesn't count.
        pred, watched = batch.watch(torch.ones(size, 2).requires_grad_(), 1)
        scores = scores + (pred[:, 0] - 1) * torch.tensor(norms)
    loss = batch.mean(scores)
    if norms is not None:
        loss.backward()
    slots = EpochPlan(
        np.arange(size), weights, tier_of_slot=np.array(tiers, np.int16))
    counter.record(slots, batch, np.array(tiers) < 9, 1., 0)


def squares(counter):
    """Sums of the squared norms, times the weights."""
    return counter.take().by_tier[:, 0, 3].tolist()


def test_what_stands_in_for_norms():
    """Losses, if the first batch has none; later such batches don't count."""
    counter = VisitCounter(ScoreTable(np.arange(3), CPU))
    record(counter, [0, 0], [1., 1.])
    record(counter, [1, 9], [3., 7.])  # The second one isn't delivered.
    record(counter, [1, 1], None)
    assert not counter.lacks_norms and squares(counter) == [2 * 9]
    counter = VisitCounter(ScoreTable(np.arange(3), CPU))
    record(counter, [0], None)
    record(counter, [1], [3.])
    assert counter.lacks_norms and squares(counter) == [2 * 25]


@pytest.mark.parametrize('score, weights, expected', [
    ('loss', [2, 0], [5, 5]),
    ('gradient', [2, 1], [3, 4]),
    ('gradient', [2, 0], [3, 1]),
    ('gradient', [0, 0], [1, 1]),
])
def test_weight_0_has_a_loss_and_no_gradient(score, weights, expected):
    """The score stays, and this is no loss that isn't finite."""
    scores = ScoreTable(np.arange(2), CPU)
    record(VisitCounter(scores, score), [1, 1], [3., 4.], weights=weights)
    assert scores.numpy().tolist() == expected
    assert scores.num_non_finite() == 0
