# Copyright (c) mmib contributors. All rights reserved.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib.clock import EpochClock
from mmib.pruning import Budget, Neyman


@given(
    st.integers(1, 50), st.lists(st.integers(1, 400), min_size=2, max_size=6),
    st.integers(1, 40), st.booleans())
def test_schedulers_make_the_steps_of_the_baseline(iters, sizes,
                                                   slots_per_iter, drop_last):
    """Whatever the epochs keep, each ends where that of the baseline does."""
    clock = EpochClock(400, slots_per_iter, iters, len(sizes), 1)
    position = iteration = missing = 0
    for epoch, size in enumerate(sizes):
        clock.enter(epoch, iteration, position)
        end, missing = position + size, missing + iters
        slots = size - size % slots_per_iter if drop_last else size
        clock.expect(position, slots)
        due, start = [], position
        while position < start + slots:
            position = min(position + slots_per_iter, start + slots)
            iteration += 1
            due.append(clock.steps_due(position))
            assert clock.iteration_at(position) == iteration
        # The next one makes up for an epoch that has no whole batch.
        if slots:
            assert sum(due) == missing and min(due) >= 0
            due[0] -= missing - iters
            assert max(due) - min(due) <= 1 + iters * slots_per_iter // slots
            missing = 0
        # With what `drop_last` leaves.
        position = end
        assert clock.iteration_at(position) == iteration


@given(
    st.integers(1, 50), st.integers(2, 400), st.integers(1, 40),
    st.integers(1, 40), st.floats(0, 1), st.booleans())
def test_a_change_of_batch_size_keeps_the_steps(iters, size, before, after,
                                                stop, drop_last):
    """In the middle of an epoch, which goes on with its rest."""

    def slots_of(size, slots_per_iter):
        return size - size % slots_per_iter if drop_last else size

    clock = EpochClock(400, before, iters, 2, 1)
    clock.enter(0, 0, 0)
    clock.expect(0, slots_of(size, before))
    position = iteration = steps = 0
    while position < stop * slots_of(size, before):
        position = min(position + before, size)
        iteration += 1
        steps += clock.steps_due(position)
    resumed = EpochClock(400, after, 999, 2, 1)
    resumed.load_state_dict(
        clock.state_dict(position / size), iteration, position,
        position / size, 0)
    for epoch in range(2):
        if epoch:
            resumed.enter(1, iteration, size)
            position = size
        end = position + slots_of(size * (epoch + 1) - position, after)
        resumed.expect(position, end - position)
        while position < end:
            position = min(position + after, end)
            iteration += 1
            due = resumed.steps_due(position)
            assert due >= 0
            steps += due
    if position > size:
        assert steps == 2 * iters


def test_savings_and_the_rest_after_a_change_of_batch_size():
    """Iterations are those of the batch size that they have."""
    clock = EpochClock(100, 10, 10, 6, 1)
    clock.enter(0, 0, 0)
    clock.enter(1, 10, 100)
    resumed = EpochClock(100, 20, 5, 6, 0.5)
    changes = resumed.load_state_dict(
        clock.state_dict(2.),
        iteration=16,
        position=160,
        covered=2.,
        pruned_until=160)
    assert changes == [
        'an iteration has 20 images instead of 10',
        'annealing begins at epoch 3 instead of 6'
    ]
    resumed.enter(2, 16, 160)
    assert resumed.full_equivalent(2.) == 20
    assert resumed._iters_left(0.6) == 3 * 5
    resumed.enter(3, 19, 220)
    resumed.expect(220, 100)
    assert resumed.full_equivalent(3.) == 25
    # The rest is annealing.
    assert resumed._iters_left(0.6) == 2 * 5
    # Once more, within this epoch and with the same batch size.
    again = EpochClock(100, 20, 5, 6, 0.5)
    assert again.load_state_dict(resumed.state_dict(3.4), 21, 260, 3.4,
                                 260) == []
    assert again.iteration_at(260) == 21
    assert again.full_equivalent(3.4) == 27


@given(st.integers(1, 1000), st.integers(1, 100), st.booleans())
def test_full_epochs_step_as_the_baseline(size, slots_per_iter, drop_last):
    iters = size // slots_per_iter if drop_last else -(-size // slots_per_iter)
    clock = EpochClock(size, slots_per_iter, iters, 3, 1)
    clock.enter(0, 0, 0)
    slots = iters * slots_per_iter if drop_last else size
    clock.expect(0, slots)
    for i in range(iters):
        assert clock.steps_due(min((i + 1) * slots_per_iter, slots)) == 1


@pytest.mark.parametrize('start, first', [(0, 1), (0.05, 1), (0.3, 6)])
def test_annealing_and_pruning_begin_with_an_epoch(start, first):
    clock = EpochClock(100, 10, 10, 20, 0.85, start)
    position = 0
    for epoch in range(20):
        clock.enter(epoch, position // 10, position)
        assert clock.is_annealing(position) is (epoch >= 17)
        assert clock.covered(None, position) == epoch
        if epoch:
            assert (clock.first_pruned <= position) is (epoch >= first)
        position += 100
    told = [EpochClock(100, 10, 10, 20, d).until_annealing(0) for d in (1, .5)]
    assert told == ['no annealing', '10 epochs until annealing']


@pytest.mark.parametrize('policy', [
    Budget(ratio=0.6, max_ratio=0.9),
    Neyman(ratio=0.8),
    Budget(ratio=0.5, max_ratio=0.95),
    Neyman(),
])
@pytest.mark.parametrize('delta, start', [(0.85, 0.), (1, 0.2)])
def test_the_budget_is_met(policy, delta, start):
    """The shares that follow from what was spent lead to it."""
    clock = EpochClock(1000, 10, 100, 50, delta, start)
    position, shares = 0, []
    for epoch in range(50):
        clock.enter(epoch, position // 10, position)
        kept = 1000
        if (epoch and clock.first_pruned <= position
                and not clock.is_annealing(position)):
            progress = clock.progress(position, epoch, policy)
            policy.begin_plan(progress)
            kept = policy._num_kept(policy._kept_share(), 1000)
            shares.append(kept / 1000)
        position += kept
    ratio = policy.ratio or 0.6
    assert position == pytest.approx(ratio * 50000, abs=100)
    first = clock.first_progress(policy)
    assert policy.expected_share(first) == pytest.approx(
        sum(shares) / len(shares), abs=0.01)
    iters, full_iters, passes = clock.outcome(policy.expected_share(first))
    assert passes == 50
    assert iters == pytest.approx(ratio * 5000, rel=0.01)
    assert full_iters == 5000


def test_what_a_policy_is_told_after_starting_afresh():
    """5 epochs of 80 slots were trained on, and one is full before pruning
    begins. They count as full ones."""
    clock = EpochClock(100, 10, 10, 20, 0.85, epoch=5)
    clock.begin(iteration=40, position=400, full_equivalent=50.)
    clock.enter(5, 40, 400)
    policy = Neyman(ratio=0.6)
    first = clock.first_progress(policy)
    # 1200 slots, of which 600 are gone and 300 belong to annealing.
    assert first == (1200 - 600 - 300, (17 - 6) * 100, None)
    clock.enter(6, 50, 500)
    assert clock.progress(500, 6., policy) == first
    assert clock.outcome(0.5) == (200 - 0.5 * 110, 200, 20)


def test_iterations_before_an_epoch_begins():
    """As where a training that is over starts afresh."""
    clock = EpochClock(100, 10, 10, 6, 1, epoch=6)
    clock.begin(60, 600, 60.)
    assert clock.iteration_at(600) == 60
