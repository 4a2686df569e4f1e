# Copyright (c) mmib contributors. All rights reserved.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib.epochs import EpochAccounting
from mmib.pruning import Budget, Neyman


@given(
    st.integers(1, 50), st.lists(st.integers(1, 400), min_size=2, max_size=6),
    st.integers(1, 40), st.booleans())
def test_schedulers_make_the_steps_of_the_baseline(iters, sizes,
                                                   slots_per_iter, drop_last):
    """Whatever the epochs keep, each ends where that of the baseline does."""
    accounting = EpochAccounting(400, slots_per_iter, iters, len(sizes), 1)
    position = iteration = 0
    for epoch, size in enumerate(sizes):
        accounting.begin_epoch(epoch, iteration, position)
        end = position + size
        slots = size - size % slots_per_iter if drop_last else size
        accounting.expect(position, slots)
        due, start = [], position
        while position < start + slots:
            position = min(position + slots_per_iter, start + slots)
            iteration += 1
            due.append(accounting.steps_due(position))
        if slots:
            assert sum(due) == iters and min(due) >= 0
            assert max(due) - min(due) <= 1 + iters * slots_per_iter // slots
        position = end


@given(st.integers(1, 1000), st.integers(1, 100), st.booleans())
def test_full_epochs_step_as_the_baseline(size, slots_per_iter, drop_last):
    iters = size // slots_per_iter if drop_last else -(-size // slots_per_iter)
    accounting = EpochAccounting(size, slots_per_iter, iters, 3, 1)
    accounting.begin_epoch(0, 0, 0)
    slots = iters * slots_per_iter if drop_last else size
    accounting.expect(0, slots)
    for i in range(iters):
        assert accounting.steps_due(min((i + 1) * slots_per_iter, slots)) == 1


@pytest.mark.parametrize('start, first', [(0, 1), (0.05, 1), (0.3, 6)])
def test_annealing_and_pruning_begin_with_an_epoch(start, first):
    accounting = EpochAccounting(100, 10, 10, 20, 0.85, start)
    position = 0
    for epoch in range(20):
        accounting.begin_epoch(epoch, position // 10, position)
        assert accounting.is_annealing(position) is (epoch >= 17)
        assert accounting.covered(None, position) == epoch
        if epoch:
            assert (accounting.pruning_start <= position) is (epoch >= first)
        position += 70


@pytest.mark.parametrize('policy', [
    Budget(ratio=0.6, max_ratio=0.9),
    Neyman(ratio=0.8),
    Budget(ratio=0.5, max_ratio=0.95, ramp=True),
    Neyman(),
])
@pytest.mark.parametrize('delta, start', [(0.85, 0.), (1, 0.2)])
def test_the_budget_is_met(policy, delta, start):
    """The shares that follow from what was spent lead to it."""
    accounting = EpochAccounting(1000, 10, 100, 50, delta, start)
    position, shares = 0, []
    for epoch in range(50):
        accounting.begin_epoch(epoch, position // 10, position)
        kept = 1000
        if (epoch and accounting.pruning_start <= position
                and not accounting.is_annealing(position)):
            progress = accounting.progress(position, epoch, 0)
            policy.begin_plan(progress)
            kept = policy._num_kept(policy._kept_share(), 1000)
            shares.append(kept / 1000)
        position += kept
    ratio = policy.ratio or 0.6
    assert position == pytest.approx(ratio * 50000, abs=100)
    first = accounting.first_progress(0)
    assert policy.expected_share(first) == pytest.approx(
        sum(shares) / len(shares), abs=0.01)
    if policy.ramp:
        assert shares[0] > 0.9 and shares == sorted(shares, reverse=True)
    iters, full_iters = accounting.outcome(policy.expected_share(first), 0)
    assert iters == pytest.approx(ratio * 5000, rel=0.01)
    assert full_iters == 5000


def test_full_iters_are_refused():
    accounting = EpochAccounting(1000, 10, 100, 50, 0.85)
    with pytest.raises(ValueError, match='set `ratio` there'):
        Neyman(full_iters=1000).expected_share(accounting.first_progress(0))
