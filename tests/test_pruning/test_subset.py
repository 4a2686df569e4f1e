# Copyright (c) mmib contributors. All rights reserved.
import codecs
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib import InfoBatchSampler
from mmib.pruning import (Budget, EpochPlan, MeanThreshold, Neyman, Progress,
                          QuantileTiers, RandomPruning, Subset)
from mmib.registry import build_policy

# As data sets have them.
PATHS = [
    f'data/{name}.jpg'
    for name in ('cat/1', 'cat/2', 'dog/1', 'dog/my 3', 'dog/a,4')
]
PROGRESS = Progress(
    slots_per_iter=4,
    max_iters=100,
    slots_left=300,
    annealing_slots=60,
    full_equivalent=5)


def select(subset, paths=PATHS):
    return subset.select(len(paths), lambda: paths)


@pytest.fixture
def listed(tmp_path):
    """Returns what is listed in a file of these lines."""

    def read(*lines, paths=PATHS, begin=b''):
        file = tmp_path / 'list.txt'
        file.write_bytes(begin +
                         b''.join(os.fsencode(line) + b'\n' for line in lines))
        images, weights, note = select(Subset(str(file)), paths)
        assert weights is None
        return images.tolist(), note

    return read


@pytest.mark.parametrize('begin', [b'', codecs.BOM_UTF8])
@pytest.mark.parametrize('lines, images', [
    (('3', '0', '', '2'), [0, 2, 3]),
    ((PATHS[2], PATHS[0]), [0, 2]),
    (PATHS, [0, 1, 2, 3, 4]),
])
def test_lists_in_files(listed, lines, images, begin):
    assert listed(*lines, begin=begin) == (images, '')


@pytest.mark.parametrize('lines', [
    [f'{path} {label}' for path, label in zip(PATHS, (0, 0, 1, 1, 2))],
    [f'{path}, {label}' for path, label in zip(PATHS, (0, 0, 1, 1, 2))],
    ['cat/1.jpg 3'],
    ['3\t1.5', '2\t1e-1'],
])
def test_annotations_are_no_lists(listed, lines):
    """Labels aren't taken for weights."""
    with pytest.raises(ValueError, match='line 1 of .* an image alone, so'):
        listed(*lines)


def test_lists_in_configs():
    for indices in ([3, 0], ['3', '0'], np.array([3, 0]), (3, 0)):
        images, weights, _ = select(Subset(indices, weights=[2, 1]))
        assert images.tolist() == [0, 3] and weights.tolist() == [1, 2]
    assert images.dtype == np.int64 and weights.dtype == np.float32
    images, weights, _ = select(Subset([PATHS[4]]))
    assert images.tolist() == [4] and weights is None


@pytest.mark.parametrize('line', [
    'cat/2.jpg', '/home/somebody/train/cat/2.jpg', r'C:\images\cat\2.jpg',
    './data/cat/2.jpg'
])
def test_paths_of_another_machine(listed, line):
    images, note = listed(line, PATHS[0])
    assert images == [0, 1]
    assert note == ('they were found by the last 2 parts of their paths, such '
                    f'as {PATHS[1]} for {line}')


def test_paths_that_differ_by_name():
    paths = ['a/1.jpg', 'b/2.jpg', None]
    images, _, note = select(Subset(['/elsewhere/2.jpg']), paths)
    assert images.tolist() == [1] and 'found by the names' in note


def test_a_path_that_is_no_text(listed):
    name = os.fsdecode(b'data/\xff.jpg')
    assert listed(name, paths=[*PATHS, name])[0] == [5]


@pytest.mark.parametrize('lines, match', [
    (('0', '5'), 'line 2 of .*list.txt is image 5, but the data set has '
     'images 0 to 4'),
    (('-1', ), 'line 1 of .* is image -1'),
    (('0', '', '2', '0'), 'line 4 of .* is the image of line 1 of .* again'),
    ((PATHS[0], 'cat/1.jpg'), 'line 2 of .* is the image of line 1'),
    ((), 'the list has no images'),
    (('', ' '), 'the list has no images'),
    ((PATHS[0], '/x/cow/1.jpg'), r'line 2 of .*, `/x/cow/1.jpg`, is no image '
     r'of the data set, whose first one is `data/cat/1.jpg`'),
    ((PATHS[0], '1.jpg'), 'is the end of 2 of the paths'),
    ((PATHS[0], 'my 3.jpg'), 'is the end of 1 of the paths'),
    ((PATHS[0], '9 b.jpg'), 'first one is `data/cat/1.jpg`. It is the list'),
    ((PATHS[0], '1'), '`1`, is no image'),
])
def test_errors_name_the_line(listed, lines, match):
    with pytest.raises(ValueError, match=match) as error:
        listed(*lines)
    assert '`policy` of InfoBatchHook in `custom_hooks`' in str(error.value)


@pytest.mark.parametrize('arguments, paths, match', [
    (dict(indices='none.txt'), PATHS, "none.txt can't be read "),
    (dict(indices=[0, 1], weights=[1]), PATHS, '1 entries, and the list 2'),
    (dict(indices=[0, 1], weights=[1, 'x']), PATHS, 'entry 1 of `weights`'),
    (dict(indices=[0], weights=[0]), PATHS, '`weights` is 0: .* positive'),
    (dict(indices=[0], weights=[-2]), PATHS, '`weights` is -2'),
    (dict(indices=[0], weights=[1e99]), PATHS, r'`weights` is 1e\+99'),
    (dict(indices=[0, 7]), PATHS, 'entry 1 of `indices` is image 7'),
    (dict(indices=['a.jpg']), [None, None], "doesn't tell `img_path`"),
    (dict(indices=['a.jpg']), ['a.jpg', 'a.jpg'], 'path of several images'),
    (dict(indices=['a.jpg']), ['x/a.jpg', 'y/a.jpg'],
     'the end of 2 of .* `x/a.jpg`, .* their last 2 parts'),
])
def test_errors_name_the_entry(arguments, paths, match):
    with pytest.raises(ValueError, match=match):
        select(Subset(**arguments), paths)


@pytest.mark.parametrize('policy, error, match', [
    (dict(), TypeError, 'indices.*InfoBatchHook'),
    (dict(indices=3), TypeError, 'name of a file or a list .* but got 3'),
    (dict(indices=[0], policy='Neyman'), TypeError, 'a dict of one'),
    (dict(indices=[0], policy=dict(type='Nothing')), KeyError, 'none of the'),
    (dict(indices=[0], policy=dict(
        type='Subset', indices=[0])), ValueError, 'another Subset'),
    (dict(indices=[0], policy=dict(type='Neyman',
                                   min_keep=2)), ValueError, 'min_keep'),
])
def test_arguments(policy, error, match):
    with pytest.raises(error, match=match):
        build_policy(dict(type='Subset', **policy))


def test_in_words():
    assert repr(Subset('a.txt')) == 'Subset(indices=a.txt)'
    assert repr(Subset(
        [1, 2], [1, 2],
        MeanThreshold())) == ('Subset(indices=<2 images>, weights=<given>, '
                              'policy=MeanThreshold(ratio=0.5))')


def test_alone_it_prunes_nothing(rng=np.random.default_rng(0)):
    subset = Subset([0, 1])
    assert subset(np.arange(2.), rng).is_full
    assert not subset.prunes and subset.expected_share(PROGRESS) == 1
    assert Subset([0], policy=MeanThreshold(rescale=False)).rescale is False


def test_a_policy_within_it_is_asked_and_remembers():
    scores = np.random.default_rng(0).random(50).astype(np.float32)
    plans = []
    for policy in (Neyman(200, num_strata=3), ):
        within = Subset(range(50), policy=Neyman(200, num_strata=3))
        for one in (policy, within):
            one.begin_plan(PROGRESS)
            plans.append(one(scores, np.random.default_rng(1)))
            assert one.expected_share(PROGRESS) < 1 and one.prunes
            assert 'no more than the 300' in one.note_on_schedule(300)
        policy._means = np.arange(3.)
        within.load_state_dict({'Neyman': policy.state_dict()})
        np.testing.assert_array_equal(within._inner._means, policy._means)
        assert within.state_dict().keys() == {'Neyman'}
        # A checkpoint of another policy with the same list.
        within.load_state_dict(dict(Budget={}))
    np.testing.assert_array_equal(plans[0].indices, plans[1].indices)
    assert len(plans[0]) < 50


@given(
    st.integers(5, 60), st.integers(0, 99), st.booleans(),
    st.sampled_from([
        MeanThreshold(),
        QuantileTiers(),
        RandomPruning(0.3),
        Neyman(200, num_strata=3),
        Budget(200)
    ]))
def test_it_prunes_within_the_list_and_unbiased(size, seed, weighted, policy):
    """Of a tier, images are kept at random, with weight size / kept."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(size)[:rng.integers(2, size + 1)]
    given = rng.uniform(0.5, 2, len(chosen)) if weighted else None
    subset = Subset(chosen.tolist(), given, policy)
    listed = subset.select(size, lambda: [])
    scores = rng.random(len(chosen)).astype(np.float32)
    sampler = InfoBatchSampler(range(size), seed=seed)
    sampler.restrict(listed.images, listed.weights)
    plans = []

    def draw(start, rng):
        if not start:
            return None
        subset.begin_plan(PROGRESS)
        plans.append(subset(scores, rng))
        return plans[-1]

    sampler.connect(draw)
    stream = iter(sampler)
    first = [next(stream) for _ in chosen]
    assert sorted(first) == sorted(chosen)
    taken = sampler.take(len(first))
    weight_of = dict(
        zip(chosen,
            np.ones(len(chosen)) if given is None else given))
    np.testing.assert_allclose(
        sampler.loss_weights(taken, False), [weight_of[i] for i in first],
        rtol=1e-6)
    pruned = [next(stream) for _ in range(len(chosen) // 4 + 1)]
    plan = plans[0]
    assert set(pruned) <= set(chosen)
    if len(pruned) <= len(plan):
        assert len(set(pruned)) == len(pruned)
        slots = sampler.take(len(pruned))
        weights = sampler.loss_weights(slots, False)
        np.testing.assert_allclose(
            weights, slots.weights * [weight_of[i] for i in pruned], rtol=1e-6)
    for number, tier in enumerate(plan.tiers, 1):
        in_tier = plan.weights[plan.tier_of_slot == number]
        np.testing.assert_allclose(in_tier.sum(), tier.size, rtol=1e-5)
    assert isinstance(plan, EpochPlan)
