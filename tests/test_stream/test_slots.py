# Copyright (c) mmib contributors. All rights reserved.
"""The slots of a batch, and of a part of it."""
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from mmib.stream.slots import Columns, Slots


def slots_of(count):
    numbers = np.arange(count)
    columns = Columns(numbers + 5, np.float32(numbers / 2),
                      np.ones(count, np.int16), np.float32(numbers / 4))
    return Slots(3 * numbers, (), 99, False, 'one', columns)


MASK = [True, False, True, True, False, False]
ORDER = [5, 2, 2, 0]


@pytest.mark.parametrize('part, rows', [
    (slice(1, 4), [1, 2, 3]),
    (slice(None, None, -2), [5, 3, 1]),
    (MASK, [0, 2, 3]),
    (np.array(MASK), [0, 2, 3]),
    (torch.tensor(MASK), [0, 2, 3]),
    (torch.tensor(MASK).to(torch.uint8), [0, 2, 3]),
    (np.uint8(MASK), [0, 2, 3]),
    (np.uint8(MASK)[::-1], [2, 3, 5]),
    (ORDER, ORDER),
    (torch.tensor(ORDER), ORDER),
    (torch.tensor(4), [4]),
    (-1, [5]),
    (slice(2, 2), []),
    ([], []),
])
@pytest.mark.filterwarnings('ignore:indexing with dtype torch.uint8')
def test_a_part_of_a_batch(part, rows):
    """Each slot takes along all that is known of it. The slots are those that
    torch chooses from the losses, by a mask of uint8 too."""
    slots, whole = slots_of(6)[part], slots_of(6)
    assert len(slots) == len(rows)
    for name in ('numbers', 'indices', 'weights', 'relative_weights'):
        column, expected = getattr(slots, name), getattr(whole, name)
        assert column.dtype == expected.dtype
        assert column.tolist() == expected[rows].tolist()
    assert (slots.end, slots.annealing, slots.numbering) == (99, False, 'one')
    assert repr(slots) == (f'Slots(indices={slots.indices.tolist()}, '
                           f'weights={slots.weights.tolist()})')


def test_frameworks_leave_slots_as_they_are():
    """They look into what can be iterated over, and move what has a `to`."""
    slots = slots_of(2)
    assert not isinstance(slots, (Iterable, tuple))
    assert not hasattr(slots, 'to') and not hasattr(slots, '__dict__')
    assert not hasattr(slots, '__dataclass_fields__')
    with pytest.raises(TypeError, match='not iterable'):
        iter(slots)


def test_columns():
    rows = np.arange(4)
    columns = Columns(rows, np.float32(rows), np.int16(rows),
                      np.float32(rows + 1))
    both = columns.at([3, 1]).followed_by(columns.at(slice(2)))
    for column, name in zip(both, Columns._fields):
        assert column.dtype == getattr(Columns(), name).dtype
    assert both.indices.tolist() == both.tiers.tolist() == [3, 1, 0, 1]
    assert both.weights.tolist() == [3, 1, 0, 1]
    assert both.relative_weights.tolist() == [4, 2, 1, 2]
    for none in (Columns.joined([]), Columns.joined([Columns(), Columns()])):
        for column, empty in zip(none, Columns()):
            assert column.dtype == empty.dtype and column.shape == (0, )
    # A single part isn't copied.
    assert Columns.joined([both]) is both
