# Copyright (c) mmib contributors. All rights reserved.
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib.log.reporter import worth_in_words
from mmib.worth import (MeanRatio, VarianceRatio, correlation, from_sums, gain,
                        mean_squares, terms, variance_ratio)

# Four images, twice.
ALL = dict(
    keep=np.array(2 * [0.25, 0.5, 1., 0.5]),
    norms=np.array(2 * [1., 2., 6., 3.]))


def test_ratio_over_all_images():
    """The definition: mean(p) mean(g^2 / p) / mean(g^2)."""
    ratio = variance_ratio(**ALL, weights=np.ones(8))
    expected = (2.25 / 4) * ((4 + 8 + 36 + 18) / 4) / (50 / 4)
    assert ratio.value == pytest.approx(expected)
    assert ratio.limit == pytest.approx((12 / 4)**2 / (50 / 4))


def test_visits_tell_of_all_images():
    """Each visit stands for as many images as its weight says."""
    visits = np.repeat(range(8), 2 * [1, 2, 4, 2])  # As often as it is kept.
    ratio = variance_ratio(ALL['keep'][visits], ALL['norms'][visits])
    assert ratio.value == pytest.approx(
        variance_ratio(**ALL, weights=np.ones(8)).value)


@given(
    st.lists(st.floats(0.01, 100), min_size=6, max_size=20),
    st.floats(0.05, 1), st.floats(0.1, 10))
def test_no_choice_is_below_the_limit(norms, mean_keep, scale):
    norms = np.array(norms)
    ones = np.ones(len(norms))
    flat = variance_ratio(mean_keep * ones, norms, ones)
    assert flat.value == pytest.approx(1)
    best = variance_ratio(norms / norms.max(), norms, ones)
    assert best.value == pytest.approx(best.limit) == pytest.approx(flat.limit)
    other = variance_ratio(np.linspace(0.1, 1, len(norms)), norms, ones)
    assert other.value >= other.limit - 1e-9
    # Nor does it depend on the unit of the norms.
    assert variance_ratio(best.value * ones, scale * norms,
                          ones).value == pytest.approx(1)


@given(
    st.floats(0.1, 3), st.floats(0.1, 1), st.floats(1, 2), st.floats(-10, 10),
    st.floats(0.1, 10))
def test_a_choice_gives_back_what_its_steps_would(value, low, high, slope,
                                                  length):
    """A training of 1 / V times the steps would gain as much, whatever plain
    training says what steps bring."""
    ratio = VarianceRatio(value, low * value, high * value, math.nan)
    curve = 50 + slope * np.log([1000, 1000 / value, 1000 * length])
    found = gain(ratio, math.log(length), curve[2] - curve[1])
    if found is None:
        # The choice and the length are worth nearly the same.
        assert (abs(math.log(length)) < 0.05
                or min(1 + math.log(v) / math.log(length)
                       for v in ratio[:3]) < 0.3)
        return
    brought, least, most = found
    assert brought == pytest.approx(curve[1] - curve[0], abs=1e-9)
    assert least <= brought <= most
    # The interval of a mean V may reach below 0.
    assert gain(ratio._replace(low=-0.1), 1., 1.) is None
    assert np.isfinite(gain(ratio._replace(low=-0.1), -9., 1.)).all()


def test_interval_holds_the_truth():
    """In 95 % of draws, up to chance: 3 standard errors are 2 %."""
    rng = np.random.default_rng(0)
    scores = rng.gamma(2, size=4000)
    keep = np.where(scores < np.median(scores), 0.3, 0.8)
    norms = scores * rng.uniform(0.5, 1.5, len(scores))
    truth = variance_ratio(keep, norms, np.ones(len(scores))).value
    assert truth < 0.95
    hits = []
    for _ in range(1000):
        kept = rng.random(len(scores)) < 0.1 * keep
        ratio = variance_ratio(keep[kept], norms[kept])
        hits.append(ratio.low <= truth <= ratio.high)
    assert 0.92 < np.mean(hits) < 0.98


def test_few_visits_have_a_wider_interval():
    """Ten, and each of them a hundred times."""
    rng = np.random.default_rng(0)
    keep, norms = rng.uniform(0.2, 1, 10), rng.gamma(2, size=10)
    few = variance_ratio(keep, norms)
    many = variance_ratio(np.tile(keep, 100), np.tile(norms, 100))
    assert many.value == pytest.approx(few.value)
    assert math.log(few.high / few.low) == pytest.approx(
        10 * math.sqrt(10 / 5 * 995 / 1000) * math.log(many.high / many.low))


def test_nothing_known():
    assert math.isnan(from_sums(np.zeros(5), np.zeros((5, 5)), 0).value)
    # Five visits for five terms tell nothing.
    assert math.isnan(variance_ratio(np.ones(5), np.ones(5)).value)
    assert math.isnan(correlation(np.zeros((3, 3))))
    # Three visits with equal scores.
    assert math.isnan(correlation(np.full((3, 3), 3.)))
    assert math.isnan(MeanRatio().mean().value)


def products(*columns):
    matrix = np.stack(columns)
    return matrix @ matrix.T


def test_mean_squares_of_tiers():
    rng = np.random.default_rng(0)
    norms = rng.gamma(2, size=(2, 500)) * [[1.], [3.]]
    by_tier = np.stack([
        products(*terms(np.full(500, keep), x, np.full(500, 1 / keep)))
        for keep, x in zip((0.3, 1.), norms)
    ] + [np.zeros((5, 5))])
    means, errors = mean_squares(by_tier)
    np.testing.assert_allclose(means[:2], (norms**2).mean(1))
    np.testing.assert_allclose(
        errors[:2], (norms**2).std(1) / math.sqrt(500), rtol=1e-6)
    assert np.isnan(means[2]) and np.isnan(errors[2])


@pytest.mark.parametrize('value, effect', [
    (0.94, 'was worth up to 6 % of the steps (V 0.94,'),
    (0.966, 'was worth up to 3 % of the steps (V 0.97,'),
    (0.98, "can't be told from chance (V 0.98,"),
    (1.02, "can't be told from chance (V 1.02,"),
    (1.12, 'cost up to 12 % of the steps (V 1.12,'),
])
def test_in_words(value, effect):
    """The percentage and V are rounded alike."""
    ratio = VarianceRatio(value, value - 0.03, value + 0.03, 0.5)
    text = worth_in_words(ratio, 'The', '.')
    assert text.startswith(f'The choice of images {effect} ')
    if value == 1.12:
        assert text.endswith('1.12, 1.09 to 1.15; at random it is 1).')


def test_nothing_is_said_of_an_unknown_ratio():
    assert worth_in_words(None, 'The', '.') == ''
    assert worth_in_words(MeanRatio().mean(), 'The', '.') == ''


def test_mean_of_a_training():
    first = VarianceRatio(0.8, 0.8 * math.exp(-0.1), 0.8 * math.exp(0.1), 0.5)
    second = VarianceRatio(1., math.exp(-0.1), math.exp(0.1), 0.5)
    mean = MeanRatio().add(first, 300).add(second, 100).mean()
    assert mean.value == pytest.approx(0.85)
    # Half as wide, about, as that of one of four equal parts.
    assert mean.high - mean.value == pytest.approx(
        0.1 * math.hypot(0.75 * 0.8, 0.25 * 1))
