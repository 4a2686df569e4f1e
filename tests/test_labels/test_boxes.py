# Copyright (c) mmib contributors. All rights reserved.
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib.labels.boxes import (KINDS, Boxes, limit_of, overlaps, total,
                               without_ignored)

# What is drawn by hand: each 10 x 10, apart but for the third, which is the
# second shifted by half its width (IoU 1/3).
A, B, HALF, FAR = ((0, 0, 10, 10), (20, 0, 30, 10), (25, 0, 35, 10), (50, 50,
                                                                      60, 60))
CAT, DOG = 0, 1


def boxes_of(labelled=(), predicted=()):
    """Boxes of labels, box and class, and of predictions, box, class and
    confidence."""
    return Boxes(
        np.reshape([box for box, _ in labelled], (-1, 4)).astype(float),
        np.array([label for _, label in labelled], int),
        np.reshape([box for box, *_ in predicted], (-1, 4)).astype(float),
        np.array([label for _, label, _ in predicted], int),
        np.array([sure for *_, sure in predicted], float))


def found(boxes):
    """Kind, classes, confidence, IoU and weight of each suspicious box."""
    return [(each.kind, each.label, each.predicted,
             pytest.approx(each.confidence), pytest.approx(each.iou),
             pytest.approx(each.weight)) for find in KINDS.values()
            for each in find(boxes)]


def test_overlaps():
    ious = overlaps(
        np.array([A, B, (5, 5, 5, 5)], float),
        np.array([A, HALF, (5, 0, 15, 5), (5, 5, 5, 5)], float))
    np.testing.assert_allclose(
        ious, [[1, 0, 0.2, 0], [0, 1 / 3, 0, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize(
    'labelled, predicted, expected',
    [
        ([], [], []),
        # Right, however unsure of it the network is.
        ([(A, CAT)], [(A, CAT, 0.3)], []),
        ([], [(A, CAT, 0.9),
              (B, CAT, 0.4)], [('missing', None, CAT, 0.9, 0, 0.9)]),
        # Labels of any class are enough.
        ([(A, DOG)], [(A, CAT, 0.3), (A, DOG, 0.2)], []),
        ([(A, CAT)], [], [('unsupported', CAT, None, 0, 0, 0.3)]),
        ([(A, CAT)], [(A, CAT, 0.1)], [('unsupported', CAT, None, 0, 1, 0.3)]),
        ([(B, CAT)], [(HALF, CAT, 0.7)
                      ], [('unsupported', CAT, CAT, 0.7, 1 / 3, 0.7)]),
        # What is beside it is another label's.
        ([(B, CAT), (HALF, CAT)
          ], [(HALF, CAT, 0.7)], [('unsupported', CAT, None, 0, 1 / 3, 0.3)]),
        ([(A, CAT)], [(A, DOG, 0.8), (A, CAT, 0.3)
                      ], [('other_class', CAT, DOG, 0.8, 1, 0.5)]),
        ([(A, CAT)], [(A, DOG, 0.6), (A, CAT, 0.7)], []),
    ])
def test_what_is_suspicious(labelled, predicted, expected):
    boxes = boxes_of(labelled, predicted)
    assert found(boxes) == expected
    for kind in KINDS:
        assert total(KINDS[kind](boxes)) == pytest.approx(
            sum(each[-1] for each in expected if each[0] == kind))


def test_which_box_is_told():
    """That which is to be repaired."""
    boxes = boxes_of([(B, CAT)], [(HALF, CAT, 0.7), (FAR, DOG, 0.6)])
    assert [each.box for each in KINDS['missing'](boxes)] == [[*FAR]]
    assert [each.box for each in KINDS['unsupported'](boxes)] == [[*B]]


def test_crowds_are_ignored():
    crowd = (0, 0, 40, 40)
    boxes = boxes_of([(crowd, CAT), (A, CAT)], [(A, CAT, 0.9), (B, CAT, 0.9),
                                                (FAR, CAT, 0.9)])
    left = without_ignored(boxes, np.array([True, False]))
    assert left.labelled.tolist() == [[*A]]
    assert left.predicted.tolist() == [[*FAR]]
    same = without_ignored(boxes, np.array([False, False]))
    assert all(map(np.array_equal, same, boxes))


_CORNERS = st.tuples(*[st.integers(0, 40)] * 2, *[st.integers(1, 20)] * 2)
_BOX = _CORNERS.map(lambda c: (c[0], c[1], c[0] + c[2], c[1] + c[3]))


@given(
    st.lists(st.tuples(_BOX, st.integers(0, 2)), max_size=6),
    st.lists(
        st.tuples(_BOX, st.integers(0, 2), st.floats(0.05, 1)), max_size=6),
    st.randoms())
def test_properties(labelled, predicted, random):
    """Weights are positive, the order of the boxes doesn't matter, and a label
    is no suspect of two kinds."""
    boxes = boxes_of(labelled, predicted)
    suspects = {kind: find(boxes) for kind, find in KINDS.items()}
    assert all(0 < each.weight <= 1 and 0 <= each.iou <= 1
               for each in sum(suspects.values(), []))
    random.shuffle(labelled)
    random.shuffle(predicted)
    for kind in KINDS:
        shuffled = KINDS[kind](boxes_of(labelled, predicted))
        assert total(shuffled) == pytest.approx(total(KINDS[kind](boxes)))
    # Labels that are added where the network misses them make none of it, and
    # a prediction of less confidence comes in their place.
    surest = 1.
    while suspects['missing']:
        added = [(each.box, each.predicted) for each in suspects['missing']]
        labelled += added
        weights = [each.weight for each in suspects['missing']]
        assert max(weights) <= surest
        surest = min(weights)
        suspects['missing'] = KINDS['missing'](boxes_of(labelled, predicted))


def test_a_weak_detector_ranks_by_what_it_finds():
    """With confidences far below 0.4, of which some are background."""
    rng = np.random.default_rng(0)
    images = []
    for number in range(40):
        # Three objects, of which eight images lack a label.
        predicted = [
            (box, CAT, sure)
            for box, sure in zip((A, B, FAR), rng.uniform(0.15, 0.35, 3))
        ]
        labelled = [(box, CAT) for box in (A, B, FAR)[:2 if number < 8 else 3]]
        images.append(
            boxes_of(labelled, predicted + [((40, 0, 45, 5), CAT, 0.02)]))
    limit = limit_of(images)
    assert 0.02 <= limit < 0.35
    for fitting in (limit, 0.4):
        values = np.array([
            total(KINDS['missing'](each._replace(limit=fitting)))
            for each in images
        ])
        assert values[:8].min() > 0.15 > values[8:].max()


def test_the_limit_lets_a_fifth_of_the_images_count():
    images = [boxes_of([], [(A, CAT, sure)]) for sure in np.arange(10) / 10]
    # What has a label says nothing, however sure.
    images += [boxes_of([(A, CAT)], [(A, CAT, 0.99)])] * 10
    limit = limit_of(images)
    assert sum(limit < total(KINDS['missing'](each)) for each in images) == 4


def test_the_limit_without_an_image():
    """As when a ranking is stopped before the first one."""
    assert limit_of([]) == boxes_of().limit


@given(st.lists(st.tuples(_BOX, st.integers(0, 2)), max_size=6))
def test_right_labels_are_not_suspicious(labelled):
    assert not found(boxes_of(labelled, [(*each, 0.9) for each in labelled]))
