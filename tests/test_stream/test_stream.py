# Copyright (c) mmib contributors. All rights reserved.
"""The stream of slots against lists of them."""
import copy
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmib.pruning import EpochPlan
from mmib.ranks import World
from mmib.stream.schedule import Place, StepSize
from mmib.stream.slots import Columns
from mmib.stream.stream import Stream
from tests.helpers.runs import state_of

SIZE = 12  # Slots of a full pass.
OPERATIONS = st.tuples(
    st.sampled_from([
        'deal', 'deal', 'deal', 'full', 'advance', 'advance', 'forget_trained',
        'forget_tiers', 'drop_from', 'fit', 'fit', 'save'
    ]), st.integers(1, 15))
RECORDS = itertools.count()
WORLDS = st.integers(1, 5).map(lambda size: World(0, size))


@dataclass
class Model:
    """A plan as lists: rows of index, weight, tier and relative weight."""

    first_slot: int
    covered: float
    kept: int
    annealing: bool
    mean_weight: np.float32
    keeps: np.ndarray
    record: int
    known_from: int
    rows: list
    is_whole: bool

    @property
    def end(self):
        return self.known_from + len(self.rows)

    def covered_at(self, slot):
        done = (slot - self.first_slot) / max(self.kept, 1)
        return self.covered + SIZE * min(done, 1)


class Models:
    """What a stream is, as lists."""

    def __init__(self, position, covered):
        self.plans, self.position, self.repeated = [], position, 0
        self.begins = Place(position, covered)

    @property
    def current(self):
        begun = [
            plan for plan in self.plans if plan.first_slot < self.position
        ]
        return [*self.plans[:1], *begun][-1] if self.plans else None

    @property
    def known_from(self):
        return self.plans[0].known_from if self.plans else self.position

    @property
    def end(self):
        return self.plans[-1].end if self.plans else self.position

    @property
    def rows(self):
        return [row for plan in self.plans for row in plan.rows]

    @property
    def rest(self):
        return self.rows[self.position - self.known_from:]

    def place(self, plan, slot):
        if plan is None:
            return self.begins
        return Place(slot, plan.covered_at(slot))

    def drop_from(self, number):
        while self.plans and self.end > max(number, self.position):
            last = self.plans[-1]
            self.repeated -= last.end > max(last.first_slot + last.kept,
                                            last.known_from)
            last.is_whole = False
            if last.rows:
                last.rows = last.rows[:-1]
            # At least one plan stays.
            if not last.rows and len(self.plans) > 1:
                self.plans.pop()


def rows_of(columns):
    return [*zip(*(column.tolist() for column in columns))]


def mask_of(rows):
    return np.isin(np.arange(SIZE), [row[0] for row in rows])


def check(stream, models):
    """Compare a stream with its model in all that can be asked of a stream."""
    assert stream.position == models.position
    assert (stream.known_from, stream.end) == (models.known_from, models.end)
    assert stream.left == models.end - models.position == len(models.rest)
    assert rows_of(stream.slots_left()) == models.rest
    assert len(stream.plans) == len(models.plans)
    for plan, model in zip(stream.plans, models.plans):
        for name in ('first_slot', 'covered', 'kept', 'annealing',
                     'mean_weight', 'record', 'known_from', 'end'):
            assert getattr(plan, name) == getattr(model, name), name
        assert (plan.keeps is None) == (model.keeps is None)
        assert plan.keeps is None or (plan.keeps == model.keeps).all()
        assert rows_of(plan.columns) == model.rows
        for column, empty in zip(plan.columns, Columns()):
            assert column.dtype == empty.dtype
        for slot in {plan.known_from, plan.end}:
            assert plan.covered_at(slot, SIZE) == model.covered_at(slot)
    newest, current = (models.plans or [None])[-1], models.current
    for found, model in ((stream.newest, newest), (stream.current, current)):
        assert (found is None) == (model is None)
        assert found is None or found.record == model.record
    assert stream.place == models.place(current, models.position)
    spent, covered = models.place(newest, models.end)
    assert stream.end_place == (spent - models.repeated, covered)


def check_slots(stream, models, rng, number):
    """Compare some of the slots."""
    rows, first = models.rows, models.known_from
    numbers = np.flatnonzero(rng.random(len(rows)) < rng.choice([0.2, 1.]))
    assert rows_of(stream.at(first +
                             numbers)) == [rows[row] for row in numbers]
    begin = int(rng.integers(first, models.end + 1))
    assert [plan.record for plan in stream.begun(begin, begin + number)] == [
        plan.record for plan in models.plans
        if begin <= plan.first_slot < begin + number
    ]
    after, of_begin = rows[begin - first:], [
        plan for plan in models.plans if plan.known_from <= begin < plan.end
    ]
    size = int(rng.integers(1, 4))
    for rank in range(size):
        world = World(rank, size)
        whole = after[:len(after) // size * size]
        indices = [row[0] for row in whole]
        assert stream.indices(begin, world,
                              number) == indices[rank::size][:number]
        count = min(number, len(whole) // size)
        slots = stream.batch(begin, count, world)
        own = whole[:count * size][rank::size]
        assert slots.numbers.tolist() == [
            begin + rank + size * each for each in range(count)
        ]
        assert rows_of(
            (slots.indices, slots.weights, slots.relative_weights)) == [
                (row[0], row[1], row[3]) for row in own
            ]
        assert slots.end == begin + count * size
        assert slots.annealing == any(plan.annealing for plan in of_begin)
        assert slots.numbering is stream.numbering


def deal(stream, models, rng, size, full=False):
    """Deal a plan, which annealing may have cut short. Each slot has a weight
    of its own, by which the slot is known again."""
    record = next(RECORDS)
    indices = rng.permutation(SIZE) if full else rng.integers(0, SIZE, size)
    ones = np.ones(len(indices), np.float32)
    weights = ones if full else ones + np.arange(size, dtype=np.float32) / 4
    tiers = rng.integers(0 if full else 1, 4, len(indices)).astype(np.int16)
    plan = EpochPlan(indices, weights, tier_of_slot=tiers)
    cut = 0 if full else int(rng.choice([0, 0, 0, 3]))
    mean = np.float32(1 if full else rng.choice([1, 1.5, 7 / 3]))
    keeps = None
    if not full and rng.random() < 0.8:
        keeps = np.packbits(np.isin(np.arange(SIZE), indices))
    models.plans.append(
        Model(models.end,
              models.place((models.plans or [None])[-1], models.end).covered,
              len(indices) + cut, bool(rng.random() < 0.3), mean, keeps,
              record, models.end,
              rows_of((indices, weights, tiers, weights / mean)), not cut))
    model = models.plans[-1]
    stream.deal(plan, model.kept, float(mean), model.annealing, keeps, record)


def fit(stream, models, rng, step, world, seed):
    """Fit the rest, compare what becomes of the stream, and return the new
    stream."""
    newest, before = models.plans[-1], copy.copy(stream)
    before.plans, rest = [*stream.plans], models.rest
    chooser = np.random.default_rng(seed + 1)
    state = chooser.bit_generator.state
    fitted = stream.rest_for(step, chooser, world, seed)
    # What was there is left as it was.
    assert vars(stream) == vars(before)
    check(stream, models)
    prunes = newest.keeps is not None or newest.kept != SIZE
    own = rest[:max(newest.first_slot + newest.kept - models.position, 0)]
    tail = step.tail(len(own), SIZE) if prunes else 0
    found = rows_of(fitted.stream.slots_left())
    left = found[:len(own) - tail]
    repeated = found[len(left):]
    assert (fitted.left_out is not None) == (tail > 0)
    assert chooser.bit_generator.state == state
    assert (fitted.rng.bit_generator.state == state) == (tail == 0)
    newest.rows = newest.rows[:models.position + len(own) - newest.known_from]
    if tail:
        scale = len(own) / len(left) if newest.mean_weight != 1 else 1.
        assert fitted.scale == scale
        # The other slots stay in their order.
        factor = np.float32(scale)
        newest.mean_weight = newest.mean_weight * factor
        scaled = [(index, float(np.float32(weight) * factor), tier,
                   float(np.float32(weight) * factor / newest.mean_weight))
                  for index, weight, tier, _ in own]
        others = iter(scaled)
        assert all(row in others for row in left)
        newest.rows[len(newest.rows) - len(own):] = left
        newest.kept -= tail
        left_out = mask_of(own) & ~mask_of(left)
        assert fitted.left_out.tolist() == left_out.tolist()
        if newest.keeps is not None:
            newest.keeps = newest.keeps & ~np.packbits(left_out)
    else:
        assert left == own and fitted.scale == 1
    # Slots are repeated until all ranks have equally many.
    assert len(repeated) == (-len(left) % world.size if left else 0)
    if not tail and len(found) == len(rest):
        # Those of an earlier fit stay.
        assert found == rest
    elif not prunes:
        assert repeated == (left * world.size)[:len(repeated)]
    elif repeated:
        assert {*repeated} <= {*left}
        if len(repeated) <= len(left) == len({*left}):
            assert len({*repeated}) == len(repeated)
    newest.rows += repeated
    models.repeated += len(repeated) - (len(rest) - len(own))
    # Numbers are given to other slots where slots of the rest have gone.
    is_same = not tail and len(rest) in (len(own), len(found))
    assert (fitted.stream.numbering is stream.numbering) == is_same
    check(fitted.stream, models)
    # The choice of the slots that are repeated depends on seed and position.
    again = stream.rest_for(step, np.random.default_rng(seed + 1), world, seed)
    assert rows_of(again.stream.slots_left()) == found
    # The second time, there is nothing to do.
    twice = fitted.stream.rest_for(step, chooser, world, seed)
    assert rows_of(
        twice.stream.slots_left()) == found and twice.left_out is None
    return fitted.stream


@given(
    st.lists(OPERATIONS, max_size=30), st.integers(0, 50), st.integers(0, 99),
    WORLDS, st.booleans())
@settings(max_examples=200)
@example([('deal', 9), ('save', 1), ('fit', 4)], 5, 0, World(0, 4), False)
@example([('full', 9), ('fit', 1), ('advance', 15), ('fit', 2)], 0, 0,
         World(0, 5), False)
@example([('full', 9), ('advance', 5), ('fit', 1), ('advance', 6), ('fit', 1)],
         0, 0, World(0, 2), False)
def test_a_stream_is_a_list(operations, begin, seed, world, drop_last):
    rng = np.random.default_rng(seed)
    begins = Place(begin, begin + seed / 8)
    stream, models = Stream(SIZE, begins), Models(*begins)
    check(stream, models)
    for name, number in operations:
        numbering = stream.numbering
        keeps_numbers = name != 'save'
        if name in ('deal', 'full'):
            deal(stream, models, rng, number, name == 'full')
        elif name == 'advance':
            # Never back.
            target = min(models.position + number - 4, models.end)
            stream.advance(target)
            models.position = max(models.position, target)
        elif name == 'forget_trained':
            stream.forget_trained()
            while models.plans and models.plans[0] is not models.current:
                models.plans.pop(0)
        elif name == 'forget_tiers':
            stream.forget_tiers()
            for plan in models.plans:
                plan.rows = [(*row[:2], 0, row[3]) for row in plan.rows]
        elif name == 'drop_from':
            target = models.position + number - 4
            keeps_numbers = max(target, models.position) >= models.end
            stream.drop_from(target)
            models.drop_from(target)
        elif name == 'fit' and models.plans and models.plans[-1].is_whole:
            # By epochs, the rest is of one plan.
            models.position = max(models.position, models.plans[-1].first_slot)
            stream.advance(models.position)
            numbering = stream.numbering
            stream = fit(stream, models, rng, StepSize(number, drop_last),
                         world, seed)
            keeps_numbers = stream.numbering is numbering
        elif name == 'save':
            state = state_of(stream)
            records = [plan.record for plan in stream.plans]
            stream = Stream(SIZE)
            stream.load_state_dict(
                state, records[len(records) - len(state['plans']):])
            # What is trained on was merged before.
            models.begins = models.place(models.current, models.position)
            assert (state['position'], state['covered']) == models.begins
            while models.plans and models.plans[0] is not models.current:
                models.plans.pop(0)
            for plan in models.plans:
                done = max(models.position - plan.known_from, 0)
                plan.rows = plan.rows[done:]
                plan.known_from += done
        assert (stream.numbering is numbering) == keeps_numbers
        check(stream, models)
        check_slots(stream, models, rng, number)


def plan_of(rng, size, **kwargs):
    return EpochPlan(
        rng.integers(0, SIZE, size),
        rng.integers(1, 9, size).astype(np.float32),
        tier_of_slot=rng.integers(1, 4, size).astype(np.int16),
        **kwargs)


def stream_of(*sizes, begin=0):
    """A stream with plans of these sizes."""
    stream, rng = Stream(SIZE, Place(begin, begin)), np.random.default_rng(0)
    for size in sizes:
        stream.deal(plan_of(rng, size), size, 1.5)
    return stream


@given(
    st.integers(1, 4), st.integers(1, 5), st.integers(0, 9),
    st.integers(1, 39))
def test_ranks_share_a_batch(world_size, size, begin, edge):
    """Rank k of W has the slots k, k + W, ... of a batch, of two plans too.
    Annealing begins with a batch, by its first slot."""
    rng, stream = np.random.default_rng(0), Stream(SIZE, Place(3, 3))
    stream.deal(plan_of(rng, edge), edge, 1.5)
    stream.deal(plan_of(rng, 40 - edge), 40 - edge, 0.5, annealing=True)
    rows, means = stream.slots_left(), np.repeat([1.5, 0.5], [edge, 40 - edge])
    last = 3 + begin + size * world_size
    for rank in range(world_size):
        slots = stream.batch(3 + begin, size, World(rank, world_size))
        own = slice(begin + rank, begin + size * world_size, world_size)
        assert slots.numbers.tolist() == list(
            range(3 + begin + rank, last, world_size))
        assert slots.indices.tolist() == rows.indices[own].tolist()
        assert slots.weights.tolist() == rows.weights[own].tolist()
        assert (slots.relative_weights == rows.weights[own] /
                np.float32(means[own])).all()
        assert (slots.end, slots.numbering) == (last, stream.numbering)
        assert slots.annealing == (begin >= edge)
    # Where slots that fill no batch go with the last one.
    assert stream.batch(3, size, World(), 43).end == 43


def test_the_numbering_changes_where_numbers_are_of_other_slots():
    stream, rng = stream_of(9, 5), np.random.default_rng(0)
    numbering = stream.numbering
    stream.advance(10)
    stream.forget_trained()
    stream.forget_tiers()
    stream.drop_from(14)
    # Slots are repeated, and none is left out.
    stream = stream.rest_for(StepSize(1, False), rng, World(0, 3), 0).stream
    assert stream.end == 16
    stream.deal(plan_of(rng, 5), 5)
    assert stream.numbering is numbering
    stream.advance(17)
    cut = stream.rest_for(StepSize(3, True), rng, World(), 0).stream
    assert (cut.end, cut.left) == (20, 3)
    assert cut.numbering is not numbering is not Stream(SIZE).numbering
    assert stream.numbering is numbering
    state = stream.state_dict()
    stream.load_state_dict(state, [None])
    assert stream.numbering is not numbering


@pytest.mark.parametrize('number, ends', [(2, [5]), (5, [5]), (7, [7]),
                                          (8, [8]), (9, [8, 9]), (12, [8, 12]),
                                          (15, [8, 12])])
def test_only_slots_of_the_rest_are_dropped(number, ends):
    """A run may be shorter than the run of the state, or over already. The
    plans that are left follow each other."""
    stream = stream_of(8, 4)
    stream.advance(5)
    numbering = stream.numbering
    stream.drop_from(number)
    assert (stream.position, stream.end) == (5, ends[-1])
    assert [plan.end for plan in stream.plans] == ends
    # Numbers that are free again are given to other slots.
    assert (stream.numbering is numbering) == (number >= 12)
    assert stream.end_place == (ends[-1], SIZE * (1 + (ends[-1] - 8) / 4)
                                if len(ends) == 2 else SIZE * ends[-1] / 8)


def test_one_plan_is_always_there():
    """Of a state at the edge of a plan, the plan that is over."""
    stream, other = stream_of(8, 4), Stream(SIZE)
    stream.advance(8)
    other.load_state_dict(stream.state_dict(), ['over', 'next'])
    for number in (9, 8):
        other.drop_from(number)
        assert (other.known_from, other.end) == (8, number)
        assert other.current.record == 'over'
    assert [plan.record for plan in other.plans] == ['over']
    assert other.place == other.end_place == (8, SIZE)


def test_what_a_plan_of_a_stream_covers():
    """Each a pass, if annealing doesn't cut the plan short. Slots that are
    repeated for other ranks cover nothing."""
    stream, rng = Stream(SIZE, Place(7, 31.5)), np.random.default_rng(0)
    assert stream.place == stream.end_place == (7, 31.5)
    stream.deal(plan_of(rng, 7), 7)
    stream = stream.rest_for(StepSize(1, False), rng, World(0, 4), 0).stream
    # One of its 8 slots is repeated.
    assert (stream.end, stream.end_place) == (15, (14, 31.5 + SIZE))
    assert stream.place == (7, 31.5)
    places = []
    for position in (8, 10, 14, 15):
        stream.advance(position)
        places.append(stream.place)
    np.testing.assert_allclose(
        np.subtract(places, (0, 31.5)), [(8, SIZE / 7), (10, SIZE * 3 / 7),
                                         (14, SIZE), (15, SIZE)],
        rtol=1e-12)
    # Of 10 slots, annealing leaves 4.
    stream.deal(plan_of(rng, 4), 10)
    assert stream.end_place == pytest.approx((18, 31.5 + SIZE * 1.4))


def test_repeated_slots_depend_on_the_seed_and_the_position():
    """And not on what plans are drawn with. Each slot of the rest is repeated
    about as often."""
    chosen = {}
    for begin, seed in itertools.product(range(20), repeat=2):
        stream, repeated = stream_of(7, begin=begin), []
        for number in range(2):
            rest = stream.rest_for(
                StepSize(1, False), np.random.default_rng(number), World(0, 5),
                seed)
            numbers = np.arange(begin + 7, begin + 10)
            repeated.append(rest.stream.at(numbers).weights.tolist())
        assert repeated[0] == repeated[1]
        weights = stream.slots_left().weights.tolist()
        chosen[begin, seed] = [*map(weights.index, repeated[0])]
    for axis in range(2):
        rows = [chosen[key] for key in chosen if key[axis] == 7]
        assert len({*map(tuple, rows)}) > 10
    counts = np.bincount(np.concatenate([*chosen.values()]), minlength=7)
    # The plan has weights that come twice, of which the first is counted.
    weights = stream_of(7).slots_left().weights
    expected = np.bincount([*map(weights.tolist().index, weights)],
                           minlength=7) * counts.sum() / 7
    np.testing.assert_allclose(counts, expected, rtol=0.25)


def test_memory_does_not_grow():
    """What is forgotten is free."""
    stream, rng = Stream(SIZE), np.random.default_rng(0)
    for _ in range(30):
        stream.deal(plan_of(rng, 100), 100, 1.5)
        stream.advance(stream.end)
        stream.forget_trained()
        plan, = stream.plans
        for column in plan.columns:
            base = column if column.base is None else column.base
            assert len(base) == 100


def test_a_state_is_a_copy():
    stream, plan = stream_of(5), EpochPlan(np.arange(7), np.ones(7, 'f'))
    stream.deal(plan, 7, 1.5, keeps=np.packbits(np.arange(SIZE) < 7))
    stream.advance(2)
    state = stream.state_dict()
    before = str(state)
    stream.advance(6)
    stream = stream.rest_for(
        StepSize(4, True), np.random.default_rng(0), World(), 0).stream
    stream.forget_tiers()
    assert (stream.newest.keeps != state['plans'][1]['keeps'].numpy()).any()
    assert str(state) == before
    other = Stream(SIZE)
    other.load_state_dict(state, [None, None])
    other.advance(5)
    other = other.rest_for(
        StepSize(4, True), np.random.default_rng(0), World(), 0).stream
    other.forget_tiers()
    assert str(state) == before
    assert {
        type(state.pop(name))
        for name in ('position', 'repeated', 'covered')
    } == {int, float}
    assert isinstance(state.pop('plans'), list)
    assert {*state} == {*Columns._fields}
    assert {type(value) for value in state.values()} == {torch.Tensor}
