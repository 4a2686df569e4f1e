# Copyright (c) mmib contributors. All rights reserved.
"""Why the newest plan keeps an image or leaves it out."""
import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmib.errors import Refusal
from mmib.pruning import (EpochPlan, MeanThreshold, Neyman, QuantileTiers,
                          RandomPruning)
from mmib.stream.schedule import StepSize
from tests.helpers.runs import DrivenRun, of_any_size

SIZE = 24
# Their tiers are bands of scores.
WITH_BANDS = st.sampled_from([
    MeanThreshold,
    QuantileTiers,
    functools.partial(QuantileTiers, (0.1, 0.5, 1.), (0.8, 0.6, 0.2)),
    functools.partial(Neyman, num_tiers=4, min_keep=0.25),
])


def run_of(policy, by_epoch, **kwargs):
    if by_epoch:
        kwargs.update(by_epoch=True, max_steps=6, annealing_step=5)
    return DrivenRun(policy, 5, **dict(dict(size=SIZE), **kwargs))


@given(WITH_BANDS, st.booleans(), st.booleans(), st.integers(6, 40))
@settings(max_examples=40)
def test_an_explanation_is_that_of_the_slots(policy, by_epoch, normalize, at):
    """Also after a state was saved and loaded."""
    training = run_of(policy(), by_epoch, normalize=normalize).train(at)
    run, (record, plan) = training.run, training.plans[-1]
    found = [run.explain(index) for index in range(SIZE)]
    other = run_of(policy(), by_epoch, normalize=normalize)
    training.resumed_by(other)
    assert [other.run.explain(index) for index in range(SIZE)] == found
    indices = plan.indices.tolist()
    for index, each in enumerate(found):
        assert (each.index, each.epoch) == (index, record.epoch)
        assert each.is_full == plan.is_full
        assert each.last_visit == run.table.last_visit[index]
        assert each.visits == run.table.visits[index]
        assert each.pruned == run.table.pruned[index]
        assert each.num_tiers == len(record.tiers)
        if plan.is_full:
            assert each.kept
            continue
        assert each.score == run.reading.scores[index]
        # Annealing may have cut the plan.
        assert each.kept == (index in indices)
        if index in indices:
            slot = indices.index(index)
            assert each.tier == plan.tier_of_slot[slot]
            assert each.weight == pytest.approx(plan.weights[slot], rel=1e-6)
            assert normalize or each.weight == plan.weights[slot]
        tier = record.tiers[each.tier - 1]
        assert each.probability == tier.kept / tier.size
        assert each.lower is None or each.score >= np.float32(each.lower)
        assert each.upper is None or each.score < np.float32(each.upper)
    if not plan.is_full:
        for number, tier in enumerate(record.tiers, 1):
            own = [each for each in found if each.tier == number]
            assert len(own) == tier.size
            if len(plan) == record.kept:
                assert sum(each.kept for each in own) == tier.kept


@pytest.mark.parametrize('policy', [RandomPruning(0.5), QuantileTiers()])
@pytest.mark.parametrize('normalize', [False, True])
def test_a_rest_in_steps_of_another_size(policy, normalize):
    """What is left out of the rest is left out of the plan."""
    training = run_of(policy, True, size=60, normalize=normalize).train(15)
    run, (_, plan) = training.run, training.plans[-1]
    done = run.stream.position - run.stream.newest.first_slot
    assert 0 < done < len(plan)
    before = [run.explain(index).probability for index in range(60)]
    run.go_on_with(run.rest_for(StepSize(7, True)))
    rest = run.stream.slots_left()
    assert len(rest.indices) % 7 == 0 < len(plan) - done - len(rest.indices)
    own = [*plan.indices[:done], *rest.indices]
    found = [run.explain(index) for index in range(60)]
    assert [each.kept for each in found] == np.isin(np.arange(60),
                                                    own).tolist()
    # Of each tier as many as before, less what was left out on average.
    ratios = [each.probability / old for each, old in zip(found, before)]
    assert ratios == pytest.approx([len(own) / len(plan)] * 60)
    for index, weight in zip(rest.indices, rest.weights):
        assert found[index].weight == pytest.approx(weight, 1e-6)


def tiers_of_shuffled_scores(scores, rng):
    plan = QuantileTiers()(rng.permutation(scores), rng)
    return replace(
        plan, tiers=tuple(tier._replace(upper=None) for tier in plan.tiers))


@pytest.mark.parametrize('by_epoch', [True, False])
@pytest.mark.parametrize('policy', [
    tiers_of_shuffled_scores,
    lambda scores, rng: replace(RandomPruning()(scores, rng), tiers=())
])
def test_policies_without_bands(policy, by_epoch):
    """Whether the plan has the image is known, and no tier."""
    training = run_of(policy, by_epoch).train(10)
    (_, plan), kept = training.plans[-1], 0
    for index in range(SIZE):
        each = training.run.explain(index)
        assert each.kept == (index in plan.indices)
        assert each.tier is each.probability is each.weight is None
        kept += each.kept
    assert 0 < kept < SIZE
    # One tier is no band, but that of all images.
    training = run_of(RandomPruning(), by_epoch).train(10)
    each = training.run.explain(7)
    record, _ = training.plans[-1]
    assert (each.tier, each.lower, each.upper) == (1, None, None)
    assert each.probability == record.kept / SIZE


def test_before_the_first_plan():
    assert run_of(QuantileTiers(), True).run.explain(0) is None


def test_an_image_that_the_dataset_repeats():
    """In a stream a pass has each image once, by its first index."""
    training = run_of(
        QuantileTiers(ratios=(0.9, 0.9)),
        False,
        images=np.arange(15) % 5,
        size=5).train(14)
    record, plan = training.plans[-1]
    assert 0 < len(plan) == record.kept < 5
    for index in range(5):
        each = training.run.explain(index)
        assert each.kept == (index in plan.indices)
        assert each.score == training.run.reading.scores[index]
        assert each.visits == training.table.visits[index] > 2
    for index in (5, 14, -1, 1.5, '1', None):
        with pytest.raises(Refusal, match='has the indices 0 to 4'):
            training.run.explain(index)


@given(st.integers(0, 99))
@settings(max_examples=20)
def test_a_plan_with_an_image_twice(seed):
    """Also one that has as many slots as the dataset."""

    def policy(scores, rng):
        plan = of_any_size(scores, np.random.default_rng(seed))
        if seed % 2 == 0:
            return plan
        indices = np.random.default_rng(seed).integers(0, SIZE, SIZE)
        return EpochPlan(indices, np.ones(SIZE, np.float32))

    training = run_of(policy, True).train(6)
    _, plan = training.plans[-1]
    for index in range(SIZE):
        each = training.run.explain(index)
        assert not each.is_full
        assert each.kept == (index in plan.indices)


def test_in_words():
    training = run_of(QuantileTiers(), True).train(10)
    run, (record, plan) = training.run, training.plans[-1]
    index = int(np.setdiff1d(range(SIZE), plan.indices)[0])
    each = run.explain(index)
    assert str(each).startswith(
        f'Epoch {record.epoch} leaves out image {index}. Its score was'
        f' {each.score:.4g}, in tier {each.tier} of 3 (scores ')
    assert f'with weight {each.weight:.4g}.' in str(each)
    assert str(each).endswith(f'{each.visits}; left out: {each.pruned}.')
    assert each.describe('x.png').startswith(
        f'Epoch {record.epoch} leaves out x.png. ')
    kept = run.explain(int(plan.indices[0]))
    assert f'keeps image {kept.index}. ' in str(kept)
    full = run_of(QuantileTiers(), True).train(2).run.explain(3)
    assert str(full).startswith(
        'Epoch 1 keeps all images, so it keeps image 3.')
