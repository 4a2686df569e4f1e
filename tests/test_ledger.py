# Copyright (c) mmib contributors. All rights reserved.
"""The stream of slots against a list of them."""
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmib.ledger import Ledger
from mmib.pruning import EpochPlan
from tests.training import state_of

NAMES = ('deal', 'repeat', 'go_to', 'forget', 'thin_rest', 'forget_tiers', 'save')


def plan_of(rng, size):
    return EpochPlan(
        rng.integers(0, 99, size),
        rng.integers(1, 9, size).astype(np.float32),
        tier_of_slot=rng.integers(1, 4, size).astype(np.int16))


def rows_of(columns):
    return [*zip(*(column.tolist() for column in columns))]


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(1, 9)), max_size=20),
    st.integers(0, 50), st.integers(0, 99))
def test_the_ledger_is_a_list(operations, begin, seed):
    rng = np.random.default_rng(seed)
    ledger, rows, first, position = Ledger(begin), [], begin, begin
    for name, number in operations:
        left = first + len(rows) - position
        if name == 'deal':
            # Annealing may have cut the plan, whose mean weight stays.
            plan, mean = plan_of(rng, number), rng.integers(1, 9) / 4
            ledger.deal(plan, mean)
            rows += zip(plan.indices.tolist(), plan.weights.tolist(),
                        plan.tier_of_slot.tolist(), number * [mean])
        elif name == 'repeat':
            again = rng.integers(0, left, number) if left else np.arange(0)
            ledger.repeat(again)
            rest = rows[position - first:]
            rows += [rest[row] for row in again]
        elif name == 'go_to':
            # Never back.
            target = min(position + number - 4, first + len(rows))
            ledger.go_to(target)
            position = max(position, target)
        elif name == 'forget':
            # Never what is forgotten already.
            target = min(first + number - 2, position)
            ledger.forget(target)
            rows = rows[max(target - first, 0):]
            first = max(target, first)
        elif name == 'thin_rest':
            kept = np.flatnonzero(rng.random(left) < 0.7)
            ledger.thin_rest(kept, number / 4)
            rest = [rows[position - first + row] for row in kept]
            rows = rows[:position - first] + [
                (index, weight * number / 4, tier, mean * number / 4)
                for index, weight, tier, mean in rest
            ]
        elif name == 'forget_tiers':
            ledger.forget_tiers()
            rows = [(index, weight, 0, mean)
                    for index, weight, _, mean in rows]
        elif name == 'save':
            state = state_of(ledger)
            ledger = Ledger()
            ledger.load_state_dict(state)
            # What is trained on was merged before.
            rows, first = rows[position - first:], position
        assert (ledger.first, ledger.position) == (first, position)
        assert ledger.end == first + len(rows)
        assert rows_of(ledger.rest()) == rows[position - first:]
        numbers = np.flatnonzero(rng.random(len(rows)) < 0.6)
        assert rows_of(ledger.at(first +
                                 numbers)) == [rows[n] for n in numbers]
        steps = [row[0] for row in rows[position - first:]]
        steps = steps[:len(steps) // 3 * 3]
        for rank in range(3):
            assert ledger.indices(position, rank, 3,
                                  number) == steps[rank::3][:number]


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 9))
def test_ranks_share_a_batch(world_size, size, begin):
    """Rank k of W has the slots k, k + W, ..."""
    rng = np.random.default_rng(0)
    ledger = Ledger(3)
    ledger.deal(plan_of(rng, 40), 1.5)
    rows = ledger.rest()
    last = 3 + begin + size * world_size
    for rank in range(world_size):
        slots = ledger.batch(3 + begin, size, rank, world_size, rank == 1)
        own = slice(begin + rank, begin + size * world_size, world_size)
        assert slots.numbers.tolist() == list(
            range(3 + begin + rank, last, world_size))
        assert slots.indices.tolist() == rows.indices[own].tolist()
        assert slots.weights.tolist() == rows.weights[own].tolist()
        assert (slots.relative_weights == rows.weights[own] /
                rows.means[own]).all()
        assert (slots.end, slots.token) == (last, ledger.token)
        assert slots.annealing == (rank == 1)
    # Where slots that fill no batch go with the last one.
    assert ledger.batch(3, size, 0, 1, False, 43).end == 43


def test_the_token_changes_where_numbers_are_of_other_slots():
    ledger, rng = Ledger(), np.random.default_rng(0)
    ledger.deal(plan_of(rng, 9), 1.5)
    token = ledger.token
    ledger.go_to(3)
    ledger.forget(2)
    ledger.repeat(np.arange(2))
    ledger.deal(plan_of(rng, 5), 1.5)
    assert ledger.token is token
    ledger.thin_rest(np.arange(3), 1.5)
    assert ledger.token is not token is not Ledger().token


@pytest.mark.parametrize('number, end', [(2, 5), (7, 7), (9, 9), (12, 9)])
def test_only_slots_of_the_rest_are_dropped(number, end):
    """A run may be shorter than the run of the state, or over already."""
    ledger = Ledger()
    ledger.deal(plan_of(np.random.default_rng(0), 9), 1.5)
    ledger.go_to(5)
    token = ledger.token
    ledger.end_at(number)
    assert (ledger.position, ledger.end) == (5, end)
    # Numbers that are free again are given to other slots.
    assert (ledger.token is token) == (end == 9)


def test_memory_does_not_grow():
    """What is forgotten is free."""
    ledger, rng = Ledger(), np.random.default_rng(0)
    for _ in range(30):
        ledger.deal(plan_of(rng, 100), 1.5)
        ledger.go_to(ledger.end)
        ledger.forget(ledger.end - 5)
        for column in ledger.at(np.arange(ledger.first, ledger.end)):
            base = column if column.base is None else column.base
            assert len(base) == 5


def test_a_state_is_a_copy():
    ledger = Ledger()
    ledger.deal(plan_of(np.random.default_rng(0), 5), 1.5)
    state = ledger.state_dict()
    before = str(state)
    ledger.thin_rest(np.arange(2), 1.5)
    ledger.go_to(3)
    ledger.forget_tiers()
    assert str(state) == before
    assert {type(value) for value in state.values()} == {int, torch.Tensor}
