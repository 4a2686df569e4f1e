# Copyright (c) mmib contributors. All rights reserved.
"""How long a run is in slots, and when its plans may prune."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib.errors import Refusal
from mmib.pruning import Neyman
from mmib.stream.schedule import Place, Schedule, check_fractions, outcome


def by_epochs(start=0.):
    """20 epochs of 100 slots, of which the last 3 are annealing."""
    return Schedule(100, 20, 100, 0.85, start, by_epoch=True)


@pytest.mark.parametrize('start, first', [(0, 1), (0.05, 1), (0.3, 6)])
def test_annealing_and_pruning_begin_with_an_epoch(start, first):
    schedule = by_epochs(start)
    for epoch in range(20):
        # Whatever the epochs before have pruned.
        place = Place(70 * epoch, 100 * epoch)
        assert schedule.clock(place) == 100 * epoch
        assert schedule.may_prune(100 * epoch) == (first <= epoch < 17)
        assert schedule.is_annealing(100 * epoch) == (epoch >= 17)
        assert schedule.room(place) is None
    assert (schedule.prune_from, schedule.annealing_from) == (100 * first,
                                                              1700)
    assert schedule.by_epoch and schedule.length == 2000


@given(
    st.integers(1, 50), st.integers(1, 300), st.integers(1, 9),
    st.floats(0, 1), st.floats(0, 0.99))
def test_a_stream_prunes_from_the_edge_of_a_pass(pass_length, count, size,
                                                 delta, start):
    """Pruning begins with the first pass at or after `start`, and annealing
    within a pass. Both fractions are rounded to steps."""
    schedule = Schedule(pass_length, count, size, delta, start, by_epoch=False)
    assert schedule.length == count * size
    assert schedule.annealing_from == round(delta * count) * size
    edges = range(pass_length, count * size + 2 * pass_length, pass_length)
    assert schedule.prune_from == next(edge for edge in edges
                                       if edge >= round(start * count) * size)
    assert schedule.prunes_nothing == (
        schedule.prune_from >= schedule.annealing_from)
    for spent in {0, *edges, schedule.annealing_from, schedule.length}:
        now = schedule.clock(Place(spent, 3 * spent))
        assert now == spent
        assert schedule.is_annealing(now) == (now >= schedule.annealing_from)
        assert schedule.may_prune(now) == (
            schedule.prune_from <= now < schedule.annealing_from)
        room = schedule.room(Place(spent, 3 * spent))
        if now >= schedule.annealing_from:
            # The loop ends the run.
            assert room is None
        else:
            assert room == schedule.annealing_from - now
            assert type(room) is int


def test_the_room_until_a_stream_ends():
    """Annealing has no other bound than the end of the stream."""
    schedule = Schedule(100, 250, 1, 0.8, 0, by_epoch=False, stream_end=250)
    rooms = [
        schedule.room(Place(spent, spent)) for spent in (0, 199, 200, 249)
    ]
    assert rooms == [200, 1, 50, 1]


@pytest.mark.parametrize('by_epoch', [True, False])
@pytest.mark.parametrize('policy', [
    Neyman(ratio=0.6),
    Neyman(ratio=0.8),
    Neyman(ratio=0.5, min_keep=0.05),
])
@pytest.mark.parametrize('delta, start', [(0.85, 0.), (1, 0.2)])
def test_the_budget_is_met(by_epoch, policy, delta, start):
    """The shares that follow from what was spent lead to the budget, and the
    run ends as was forecast."""
    length = round(50_000 * policy.ratio)
    if by_epoch:
        schedule = Schedule(1000, 50, 1000, delta, start, by_epoch=True)
    else:
        schedule = Schedule(
            1000, length // 10, 10, delta, start, by_epoch=False)
    place, shares = Place(0, 0), []
    while schedule.clock(place) < schedule.length:
        now, kept = schedule.clock(place), 1000
        if schedule.may_prune(now):
            share = schedule.progress(place).kept_share(policy.ratio)
            kept = int(1000 * share + 1e-6)
            shares.append(kept / 1000)
        limit = schedule.room(place)
        dealt = kept if limit is None else min(kept, limit)
        if not by_epoch:
            dealt = min(dealt, length - place.spent)
        place = Place(place.spent + dealt, place.covered + 1000 * dealt / kept)
    assert place.spent == pytest.approx(length, rel=0.01)
    assert place.covered == pytest.approx(50_000, rel=0.01)
    first = policy.expected_share(schedule.first_progress())
    assert first == pytest.approx(sum(shares) / len(shares), abs=0.01)
    assert outcome(schedule, first) == pytest.approx((length, 50_000),
                                                     rel=0.01)


def afresh(epochs, unspent=0.):
    """A schedule that goes on without scores after so many epochs."""
    schedule = by_epochs()
    schedule.fresh_from = 100 * epochs
    schedule.zero = Place(unspent, 0)
    return schedule


def test_what_a_policy_gets_after_starting_afresh():
    """5 epochs were trained on, and one is full before pruning begins. If it
    isn't known what they saved, they count as full ones."""
    schedule = afresh(5)
    first = schedule.first_progress()
    assert schedule.prune_from == 600
    # 1200 slots, of which 600 are gone and 300 belong to annealing.
    assert first.kept_share(0.6) == (1200 - 600 - 300) / ((17 - 6) * 100)
    assert schedule.progress(Place(600, 600)) == first
    schedule = afresh(5, unspent=60.)
    later = schedule.first_progress()
    assert later == first._replace(spent=540)
    assert schedule.progress(Place(600, 600)) == later
    assert outcome(schedule, 0.5) == (2000 - 0.5 * 1100, 2000)
    # At the edge of annealing, and after the end.
    for epoch in (16, 17, 20):
        schedule = afresh(epoch)
        assert schedule.prunes_nothing
        assert outcome(schedule, 0.5) == (2000, 2000)


@given(st.integers(0, 40), st.integers(-300, 300), st.integers(-300, 300))
def test_a_stream_that_began_elsewhere(fresh_from, spent, covered):
    """After a resume with steps of another size, the clock shows what a run of
    this size would have spent. Passes begin at multiples of their length in
    the stream all the same, and all indices of a repeated dataset are dealt
    once before."""
    schedule = Schedule(10, 600, 1, 1, 0.1, by_epoch=False, first_pass=30)
    schedule.fresh_from, schedule.zero = fresh_from, Place(spent, covered)
    first = schedule.prune_from + spent
    slots = range(0, 1000, 10)
    assert first == next(
        slot for slot in slots
        if slot >= spent + 60 and (slot >= -(-fresh_from // 30) * 30 + 30))
    place = Place(first, 2 * first)
    assert schedule.clock(place) == first - spent
    progress = schedule.progress(place)
    assert (progress.spent, progress.covered) == (first - spent,
                                                  2 * first - covered)
    # Until then, all plans are full.
    begun = schedule.first_progress()
    assert (begun.spent, begun.covered) == (first - spent, first - spent)
    other = Schedule(10, 60, 10, 1, 0.1, by_epoch=False, first_pass=30)
    other.load_state_dict(schedule.state_dict())
    assert (other.zero, other.fresh_from) == (schedule.zero, fresh_from)
    assert other.prune_from == schedule.prune_from


FITS = dict(delta=0.85, start=0.)


@pytest.mark.parametrize('changes, match', [
    (dict(delta='1'), "`delta` of a Session must be a number, but got '1'"),
    (dict(start=None), '`start` of a Session must be a number, but got None'),
    (dict(delta=-0.1), r'`delta` of .* must be in \[0, 1\], but got -0.1'),
    (dict(delta=1.01), r'`delta` of .* must be in \[0, 1\], but got 1.01'),
    (dict(delta=float('nan')), '`delta` of'),
    (dict(start=-0.1), r'`start` of .* must be in \[0, 1\).*got -0.1'),
    (dict(start=1, delta=1), r'`start` of .* must be in \[0, 1\).*got 1'),
    (dict(start=0.85), '`start` of .* less than `delta=0.85`'),
    (dict(start=float('nan')), '`start` of'),
])
def test_fractions_out_of_range(changes, match):
    with pytest.raises(Refusal, match=match):
        check_fractions(**{**FITS, **changes}, where='of a Session')
    check_fractions(**FITS, where='of a Session')
    # Without a part that prunes, `start` is of no account.
    check_fractions(0, 0.5, 'of a Session')
