# Copyright (c) mmib contributors. All rights reserved.
"""A log that steps write in place is one of entries, whatever comes between.
"""
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmib.plans import EpochPlan
from mmib.ranks import World
from mmib.scores.log import Entry, VisitLog
from mmib.stream.stream import Stream

SIZE = 30
CPU = torch.device('cpu')


def stream_of(num_plans, size=SIZE):
    """Plans whose slots have weights of their own."""
    stream, rng = Stream(size), np.random.default_rng(0)
    for _ in range(num_plans):
        weights = rng.random(size, np.float32) + np.float32(0.5)
        plan = EpochPlan(rng.permutation(size), weights)
        stream.deal(plan, size, plan.mean_weight)
    return stream


class Visited:
    """A log, and the entries whose backward pass is still to come."""

    def __init__(self, in_place):
        self.log, self.in_place, self.open = VisitLog(), in_place, []

    def visit(self, slots, scores):
        views = self.log.views(slots, CPU) if self.in_place else None
        if views is None:
            entry = Entry(slots, scores.clone())
        else:
            expected = slots.relative_weights, slots.weights
            for weights, each in zip(views[:2], expected):
                assert weights.tolist() == each.tolist()
            views.scores.copy_(scores)
            entry = Entry(slots, views.scores, views=views)
        entry.awaits_norms = True
        self.log.record(entry)
        self.open.append(entry)

    def backward(self, number, flow, gradient, stays_open):
        entry = self.open[number] if stays_open else self.open.pop(number)
        entry.note_flow(flow)
        entry.note_gradient(gradient)
        # As of a gradient at the losses alone.
        entry.note_flow(2 * flow)

    def merge(self, first, position):
        merged = self.log.merge(first, position, 0)
        return [
            value.tolist() if isinstance(value, np.ndarray) else value
            for value in merged
        ]


PARTS = st.sampled_from([
    slice(None),
    slice(0, 2),
    slice(2, None),
    slice(None, None, 2),
    slice(None, None, -1), [1, 0],
    torch.tensor([0])
])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just('visit'), st.integers(1, 7), PARTS),
        st.tuples(st.just('again'), st.integers(1, 5), PARTS),
        st.tuples(st.just('backward'), st.integers(0, 3), st.booleans()),
        st.tuples(st.just('merge'), st.booleans(), st.none())),
    max_size=30)


@given(OPERATIONS, st.integers(1, 2), st.sampled_from([1., -0.25]))
@settings(max_examples=200)
def test_a_stretch_is_a_list_of_entries(operations, world_size, scale):
    """Parts and permutations of batches, slots that are visited again, late
    and second backward passes, plans that meet within a batch, and merges."""
    stream, world = stream_of(6), World(0, world_size)
    one, other = Visited(True), Visited(False)
    numbers = iter(range(1, 10**6))
    for name, number, what in [*operations, ('merge', False, None)]:
        if name in ('visit', 'again'):
            begin = stream.position
            if name == 'again':
                begin = max(begin - number * world_size, stream.known_from)
            size = min(number, (stream.end - begin) // world_size)
            if size < 2:
                continue
            slots = stream.batch(begin, size, world)[what]
            if name == 'visit':
                stream.advance(slots.end)
            if not len(slots):
                continue
            scores = torch.tensor(
                [float(next(numbers)) for _ in range(len(slots))])
            for each in (one, other):
                each.visit(slots, scores)
        elif name == 'backward':
            if number < len(one.open):
                size = len(one.open[number].scores)
                # Of another size in each backward pass.
                flow = next(numbers) * scale * torch.linspace(1, 2, size)
                gradient = torch.arange(1., 1 + 3 * size).view(size, 3)
                for each in (one, other):
                    each.backward(number, flow, gradient, what)
        else:
            first = stream.position if number else stream.known_from
            merged = [
                each.merge(first, stream.position) for each in (one, other)
            ]
            np.testing.assert_equal(*merged)


def test_batches_share_stretches():
    """Also short and odd ones, on two devices."""
    stream, log, meta = stream_of(1, 3000), VisitLog(), torch.device('meta')
    begin = 0
    for size in [4] * 250 + [3, 1, 4, 2, 7] + [4] * 100:
        slots = stream.batch(begin, size, World())
        for device in (CPU, meta):
            views = log.views(slots, device)
            assert views.scores.shape == (size, )
            assert views.scores.device == device
        log.record(Entry(slots, views.scores, views=views))
        begin = slots.end
    # Of 256 batches each.
    assert len(log._stretches) == 4
    assert len(log) == len(log._stretches[1].written()) + len(
        log._stretches[3].written()) == 2


@pytest.mark.parametrize('size', [0, 5])
def test_what_is_not_in_place(size):
    stream, log = stream_of(1), VisitLog()
    slots = stream.batch(0, 5, World())
    part = slots[:0] if size == 0 else slots[torch.tensor([3, 1, 0, 2, 4])]
    assert log.views(part, CPU) is None
    assert log.views(slots, CPU) is not None
    log.record(Entry(slots, torch.ones(5)))
    assert log.views(slots, CPU) is None and log.has_visited(slots)
    later = stream.batch(5, 5, World())
    assert log.views(later, CPU) is not None and not log.has_visited(later)


def test_a_merge_within_a_step():
    """A hook may save between the views of a batch and its visits."""
    stream, log = stream_of(1), VisitLog()
    slots = stream.batch(0, 5, World())
    views = log.views(slots, CPU)
    log.merge(0, 0, 0)
    views.scores.fill_(3)
    log.record(Entry(slots, views.scores, views.norms.fill_(2), views))
    merged = log.merge(0, 5, 0)
    assert merged.numbers.tolist() == [*range(5)]
    assert merged.scores.tolist() == [3] * 5
    assert merged.norms.tolist() == [2] * 5
