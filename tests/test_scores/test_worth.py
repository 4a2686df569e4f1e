# Copyright (c) mmib contributors. All rights reserved.
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib.worth import (MOMENTS, MeanRatio, from_sums, mean_squares, moments,
                        tier_sums, variance_ratio)

# Tier, weight and norm of visits.
VISITS = st.lists(
    st.tuples(
        st.integers(1, 4), st.floats(0.1, 10),
        st.one_of(st.just(0.), st.floats(1e-3, 1e3))),
    max_size=30)


def columns_of(visits):
    tiers, weights, norms = zip(*visits) if visits else 3 * [()]
    return np.array(tiers, np.int16), np.array(weights), np.array(norms)


def sums_of(visits, before=None):
    tiers, weights, norms = columns_of(visits)
    return tier_sums(tiers, weights, norms, tiers.max(initial=0), before)


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.floats(0.01, 100)),
        min_size=6,
        max_size=20), st.floats(0.1, 10))
def test_ratio_of_visits(images, scale):
    """The definition over all images, mean(p) mean(g^2 / p) / mean(g^2), from
    visits that are as frequent as an image is kept. The tiers of the plan, and
    the unit of its weights, don't matter."""
    counts, norms = map(np.array, zip(*images))
    visits, keep = np.repeat(range(len(images)), counts), counts / 8
    ratio = variance_ratio(keep[visits], norms[visits])
    second = np.mean(norms**2)
    expected = keep.mean() * np.mean(norms**2 / keep) / second
    assert ratio.value == pytest.approx(expected)
    assert ratio.limit == pytest.approx(norms.mean()**2 / second)
    assert ratio.value >= ratio.limit - 1e-9
    of_tiers = tier_sums(
        np.arange(len(visits)) % 3 + 1, scale / keep[visits], norms[visits], 5)
    assert from_sums(of_tiers)[::3] == pytest.approx(ratio[::3])


@given(st.lists(st.integers(1, 8), min_size=6, max_size=20))
def test_the_best_choice_reaches_the_limit(counts):
    """Keep probabilities in proportion to the norms."""
    visits = np.repeat(counts, counts) / 8
    best = variance_ratio(visits, 3 * visits)
    assert best.value == pytest.approx(best.limit)


@given(VISITS, st.floats(0.1, 9))
def test_interval_holds_the_value_and_at_random_both_are_1(visits, weight):
    """At random V is exactly 1, whatever the norms are, also where tiers prune
    alike."""
    ratio = from_sums(sums_of(visits))
    at_random = from_sums(
        sums_of([(t, weight, norm) for t, _, norm in visits]))
    if math.isnan(ratio.value):
        assert len(visits) <= 5 or not any(norm for *_, norm in visits)
        assert math.isnan(at_random.value)
    else:
        assert 0 < ratio.low <= ratio.value <= ratio.high < math.inf
        assert ratio.limit <= ratio.value * (1 + 1e-9)
        assert at_random[:3] == (1, 1, 1)


@given(VISITS, VISITS)
def test_sums_of_parts(first, second):
    """To the last bit those of all at once, so that a merge for a checkpoint
    changes nothing."""
    before = sums_of(first)
    parts = sums_of(second, before)
    np.testing.assert_array_equal(parts, sums_of(first + second))
    for tier, sums in enumerate(parts, 1):
        visits = [v for v in first + second if v[0] == tier]
        expected = [sum(w**a * g**b for _, w, g in visits) for a, b in MOMENTS]
        largest = max((norm for *_, norm in visits), default=0)
        np.testing.assert_allclose(sums, [*expected, largest], rtol=1e-9)


def test_sums_of_many_visits():
    """They are added in parts."""
    x, y = np.random.default_rng(0).gamma(2, size=(2, 200_000))
    sums = tier_sums(np.ones(len(x), np.int16), x, y, 2)
    np.testing.assert_allclose(sums[0], [*np.sum(moments(x, y), 1), y.max()])
    assert not sums[1].any()


@pytest.mark.parametrize('sigma, known, truth',
                         [(0.5, 0, 1.18), (1.5, 0, 1.18), (1, 0.9, 0.646)])
def test_interval_holds_the_truth(sigma, known, truth):
    """Of plans of three tiers with lognormal norms, of which the tiers tell
    ``known``. Also of heavy tails, where few images make up most of V."""
    rng, ratios = np.random.default_rng(0), []
    for _ in range(300):
        scores, rest = rng.normal(size=(2, 2000))
        tiers = np.searchsorted([-0.84, 1.04], scores)
        keep = np.array([0.25, 0.5, 1])[tiers]
        rest *= math.sqrt(1 - known**2)
        norms = np.exp(sigma * (known * scores + rest))
        kept = rng.random(2000) < keep
        ratios.append(
            from_sums(
                tier_sums(tiers[kept] + 1, 1 / keep[kept], norms[kept], 3)))
    assert np.mean([v.low <= truth <= v.high for v in ratios]) > 0.95
    # A choice that helps is told from chance.
    assert all(v.high < 1 for v in ratios) == (truth < 1)


def test_nothing_known():
    for count in (0, 1, 3, 5):
        ones = np.ones(count)
        assert math.isnan(variance_ratio(ones, ones).value)
    assert math.isnan(from_sums(np.zeros((3, 11))).value)
    assert math.isnan(MeanRatio().mean().value)


def test_mean_squares_of_tiers():
    norms = np.random.default_rng(0).gamma(2, size=(2, 500)) * [[1.], [3.]]
    tiers, weights = np.repeat([1, 2], 500), np.repeat([3.3, 1], 500)
    means, errors = mean_squares(tier_sums(tiers, weights, norms.ravel(), 3))
    np.testing.assert_allclose(means[:2], (norms**2).mean(1))
    np.testing.assert_allclose(
        errors[:2], (norms**2).std(1) / math.sqrt(500), rtol=1e-6)
    assert np.isnan(means[2]) and np.isnan(errors[2])


def test_mean_of_a_training():
    rng, sums = np.random.default_rng(0), []
    for count in (300, 100):
        tiers = np.arange(count) % 2 + 1
        norms = rng.lognormal(size=count)
        sums.append(tier_sums(tiers, 1. * tiers, norms, 2))
    first, second = (np.array(from_sums(each)) for each in sums)
    unknown = np.zeros((2, 11))
    mean = MeanRatio().add(sums[0]).add(unknown).add(sums[1]).mean()
    assert mean.value == pytest.approx(0.75 * first[0] + 0.25 * second[0])
    # Each end moves with its own ends.
    for end in (1, 2):
        assert abs(mean[end] - mean.value) == pytest.approx(
            math.hypot(0.75 * (first[end] - first[0]),
                       0.25 * (second[end] - second[0])))
