# Copyright (c) mmib contributors. All rights reserved.
"""Trainings on a list of images."""
import functools
import tempfile

import numpy as np
import pytest
import torch

from mmib import InfoBatchSampler
from mmib.datasets import image_numbers, image_paths, unwrap_repeats
from mmib.pruning import Subset
from mmib.selection import find_listed
from tests.system.epoch_training import (MAX_EPOCHS, SCHEDULES, SIZE, by_epoch,
                                         edges)
from tests.system.processes import run_ranks
from tests.system.small_training import (ANNEALING_ITER, BASELINE, build,
                                         check_resumed, column, distribute,
                                         infobatch_hook, small_runner, train,
                                         weights_of)
from tests.test_datasets import DATASETS_TO_WRAP, RENAMED
from tests.test_datasets import build as build_dataset
from tests.test_datasets import path_dataset

# Of the 11 images of a small training.
LIST = [1, 2, 4, 7, 8, 10]
GIVEN = dict(zip(LIST, [0.5, 1., 2., 1., 1.5, 3.]))
WITHIN = dict(type='MeanThreshold')


def on(indices=LIST, policy=None, **kwargs):
    """Changes for a training on a list."""
    subset = dict(type='Subset', indices=indices, **kwargs)
    if policy is not None:
        subset['policy'] = policy
    return {'custom_hooks': [dict(type='InfoBatchHook', policy=subset)]}


def images_of(steps):
    return sum(column(steps, 'images'), [])


@pytest.mark.parametrize('loop', ['IterBasedTrainLoop', 'EagerTrainLoop'])
def test_every_pass_has_the_images_of_the_list(tmp_path, loop):
    """The first one too, of which workers may have been asked for others
    already, and annealing. No two passes are needed."""
    runner = small_runner(
        tmp_path, **on(), **{
            'train_cfg.type': loop,
            'train_dataloader.num_workers': 2
        })
    images = images_of(train(runner))
    assert len(images) == 90
    for start in range(0, 90, 6):
        assert sorted(images[start:start + 6]) == LIST
    hook = infobatch_hook(runner)
    np.testing.assert_array_equal(hook.counts.visits,
                                  [15 if i in LIST else 0 for i in range(11)])
    scored = np.isfinite(hook.scores.by_image())
    assert np.flatnonzero(scored).tolist() == LIST
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert ('each pass has 6 of 11 images, those of Subset(indices=<6 images>'
            ').') in log
    assert '30 iterations of the baseline; 0 of 90 visits' in log
    assert 'WARNING - InfoBatch' not in log and 'prunes' not in log


@pytest.mark.parametrize(
    'whole, listed', [
        (BASELINE, on([*range(11)][::-1])),
        (by_epoch(None), by_epoch(dict(type='Subset', indices=[*range(SIZE)
                                                               ]))),
    ],
    ids=['iterations', 'epochs'])
def test_a_list_of_all_images_is_baseline_training(tmp_path, whole, listed):
    baseline = small_runner(tmp_path, **whole)
    steps = train(baseline)
    ours = small_runner(tmp_path, **listed)
    our_steps = train(ours)
    assert images_of(our_steps) == images_of(steps)
    np.testing.assert_allclose(
        column(our_steps, 'loss'), column(steps, 'loss'), rtol=1e-6)
    torch.testing.assert_close(weights_of(ours), weights_of(baseline))


def test_a_policy_prunes_within_the_list(tmp_path):
    """Observers see indices of the data set, and the weights of losses."""
    runner = build(tmp_path, **on(policy=WITHIN))
    drawn = []
    hook = infobatch_hook(runner)
    hook.plan_observers.append(lambda *args: drawn.append(args))
    steps = train(runner)
    assert set(images_of(steps)) == set(LIST)
    assert sorted(images_of(steps)[:6]) == LIST
    # Annealing begins with a pass over the list.
    assert sorted(images_of(steps[ANNEALING_ITER:])[:6]) == LIST
    assert {w
            for ws in column(steps[ANNEALING_ITER:], 'weights')
            for w in ws} == {1}
    plans = [plan for _, plan in drawn if plan is not None]
    seen = list(zip(images_of(steps), sum(column(steps, 'weights'), [])))
    start = drawn[1][0].start
    for plan in plans[:4]:
        assert 3 <= len(plan) < 6
        assert plan.weights.sum() == pytest.approx(6)
        assert list(zip(plan.indices,
                        plan.weights)) == seen[start:start + len(plan)]
        start += len(plan)
    epochs = [epoch for epoch, _ in drawn]
    assert epochs[0].size == epochs[-1].size == 6
    pruned = hook.counts.pruned
    assert pruned[LIST].sum() > 0 == np.delete(pruned, LIST).sum()
    check_resumed(tmp_path, runner, steps, **on(policy=WITHIN))


def test_given_weights_hold_in_every_pass(tmp_path):
    """Scores don't have them, V and the sums of the policy do."""
    changes = on(
        weights=[*GIVEN.values()],
        policy=dict(type='Neyman', full_iters=60, num_strata=2))
    runner = build(tmp_path, **changes)
    steps = train(runner)
    pruned = 0
    for step in steps:
        given = [GIVEN[image] for image in step['images']]
        assert step['loss'] == pytest.approx(
            np.multiply(step['weights'], step['scores']).mean(), rel=1e-5)
        ratios = np.divide(step['weights'], given)
        if not 2 <= step['iter'] < ANNEALING_ITER:
            np.testing.assert_allclose(ratios, 1)
        pruned += (ratios > 1.01).sum()
    assert pruned > 10
    table = infobatch_hook(runner).scores.by_image()
    last = dict(zip(images_of(steps), sum(column(steps, 'scores'), [])))
    np.testing.assert_allclose(table[LIST], [last[image] for image in LIST])
    check_resumed(tmp_path, runner, steps, **changes)


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    """Of a training on the list."""
    folder = tmp_path_factory.mktemp('list')
    small_runner(folder, **on(), **{'train_cfg.max_iters': 12}).train()
    return str(folder / 'iter_12.pth')


def resume(work_dir, checkpoint, changes):
    """The steps that follow, and what is said of InfoBatch."""
    runner = small_runner(
        work_dir, resume=True, load_from=checkpoint, **changes)
    steps = train(runner)
    assert len(steps) == 18
    return steps, next(work_dir.glob('*/*.log')).read_text()


@pytest.mark.parametrize('changes, said', [
    (on([1, 2, 4, 7, 8, 9]), 'of another list of images: the `indices`'),
    ({}, 'of 11 images, 6 of them listed, and `train_dataloader.dataset` has '
     '11 images.'),
])
def test_another_list_starts_afresh_and_says_so(tmp_path, checkpoint, changes,
                                                said):
    steps, log = resume(tmp_path, checkpoint, changes)
    listed = [1, 2, 4, 7, 8, 9] if changes else range(11)
    assert set(images_of(steps)) == set(listed)
    assert f'WARNING - InfoBatch: the checkpoint is {said}' in log


def test_another_policy_goes_on_with_the_list(tmp_path, checkpoint):
    steps, log = resume(tmp_path, checkpoint, on(policy=WITHIN))
    assert set(images_of(steps)) == set(LIST)
    assert max(map(max, column(steps, 'weights'))) > 1
    assert 'next plans are those of Subset(indices=<6 images>, policy=' in log


def test_what_another_list_is():
    checksums = set()
    for indices, weights in (([0, 2], None), ([0, 3], None), ([0, 2], [1, 2]),
                             ([0, 2], [2, 2]), ([0, 2], None)):
        sampler = InfoBatchSampler(range(5))
        assert sampler.checksum == 0
        weights = weights and np.array(weights, np.float32)
        sampler.restrict(np.array(indices), weights)
        checksums.add(sampler.checksum)
    assert len(checksums) == 4 and 0 not in checksums


@pytest.mark.parametrize('policy', [None, dict(type='Budget', ratio=0.6)])
def test_epochs_are_as_many_and_shorter(tmp_path, policy):
    """The learning rate ends where that of the baseline does."""
    listed = [*range(0, SIZE, 2)]
    schedule = {'param_scheduler': SCHEDULES['warm-up and cosine']}
    subset = dict(type='Subset', indices=listed, policy=policy)
    ours = edges(tmp_path / 'a', **by_epoch(subset), **schedule)
    baseline = edges(tmp_path / 'b', **by_epoch(None), **schedule)
    np.testing.assert_allclose(ours.rates, baseline.rates, rtol=1e-6)
    lengths = np.diff(ours.iters).tolist()
    assert len(lengths) == MAX_EPOCHS and lengths[0] == lengths[-1] == 4
    assert (min(lengths) < 4) is (policy is not None)
    assert ours.expected[-1] == ours.iters[-1]


def test_epochs_resume(tmp_path):
    subset = dict(
        type='Subset',
        indices=[*range(0, SIZE, 2)],
        policy=dict(type='Budget', ratio=0.6))
    changes = functools.partial(by_epoch, subset,
                                **{'default_hooks.checkpoint.interval': 3})
    runner = small_runner(tmp_path, **changes())
    steps = train(runner)
    again = small_runner(
        tmp_path / 'resumed',
        **changes(resume=True, load_from=str(tmp_path / 'epoch_3.pth')))
    rest = train(again)
    assert 0 < len(rest) < len(steps) and rest == steps[-len(rest):]
    torch.testing.assert_close(
        weights_of(again), weights_of(runner), rtol=0, atol=0)


@pytest.mark.parametrize('before', [None, [*range(0, SIZE, 3)]])
def test_epochs_go_on_with_another_list(tmp_path, before):
    """Passes until then had other images, and count as full ones."""
    listed = [*range(0, SIZE, 2)]
    before = dict(type='Subset', indices=before) if before else None
    small_runner(
        tmp_path,
        **by_epoch(before,
                   **{'default_hooks.checkpoint.interval': 4})).train()
    policy = dict(type='Neyman', ratio=0.6)
    runner = small_runner(
        tmp_path / 'resumed',
        **by_epoch(dict(type='Subset', indices=listed, policy=policy)),
        resume=True,
        load_from=str(tmp_path / 'epoch_4.pth'))
    told = []
    ours = infobatch_hook(runner).policy
    ours.begin_plan = lambda progress: (told.append(progress),
                                        Subset.begin_plan(ours, progress))
    runner.train()
    planner = infobatch_hook(runner).planner
    assert planner.accounting.first_epoch == 5
    # The first of them is full.
    assert told[0].spent == 5 * len(listed)
    assert told[0].full_slots == MAX_EPOCHS * len(listed)
    assert all(0 <= progress.done <= 1 for progress in told)
    assert planner.epoch.covered == MAX_EPOCHS - 1


def train_rank(rank, results):
    with tempfile.TemporaryDirectory() as work_dir:
        runner = small_runner(work_dir, **on(policy=WITHIN))
        distribute(runner)
        results[rank] = train(runner)


def test_two_ranks_share_the_list():
    """Slots k, k + W, ... of one stream, of which a pass has each image of
    the list once."""
    ranks = run_ranks(train_rank, 2)
    images = [
        image for steps in zip(*ranks)
        for pair in zip(*(step['images'] for step in steps)) for image in pair
    ]
    assert sorted(images[:6]) == LIST
    assert set(images) == set(LIST)
    assert max(map(max, column(ranks[0], 'weights'))) > 1


def test_ranks_that_read_other_lists(tmp_path, monkeypatch):
    monkeypatch.setattr('mmib.selection.all_gather',
                        lambda checksum: [checksum, checksum + 1])
    with pytest.raises(ValueError, match='ranks have read different lists'):
        small_runner(tmp_path, **on()).train()


@pytest.mark.parametrize('name', DATASETS_TO_WRAP)
def test_data_sets_with_repeats(name):
    """Each repeat of a listed image is one. Paths are those of the images."""
    dataset = build_dataset(DATASETS_TO_WRAP[name][0])
    images = image_numbers(dataset)[:len(unwrap_repeats(dataset))]
    paths = image_paths(dataset, images)
    listed = Subset([paths[5], paths[0]])
    if 'mosaic' in name:
        with pytest.raises(ValueError, match='MultiImageMixDataset in `train'):
            find_listed(listed, dataset, images)
        return
    found, indices = find_listed(listed, dataset, images)
    assert found.images.tolist() == [0, 5] and found.note == ''
    assert images[indices].tolist() == [i for i in images if i in (0, 5)]


def test_repeats_have_the_weight_of_their_image(tmp_path):
    """In a data set that repeats rare images, 0 and 5."""
    cfg, _, _ = DATASETS_TO_WRAP['repeat of class balanced']
    runner = small_runner(
        tmp_path, **{
            'train_dataloader.dataset': dict(cfg, _delete_=True),
            **on([5, 2], weights=[3., 2.])
        })
    steps = train(runner)
    # Two repeats of image 5 in a pass of three slots.
    for step in steps:
        assert sorted(step['images']) == [2, 5, 5]
        assert sorted(step['weights']) == [2, 3, 3]
    assert infobatch_hook(runner).counts.visits[[2, 5]].tolist() == [30, 60]


def test_images_whose_paths_tell_nothing(tmp_path):
    """All that are listed were tried, so they are scored."""
    cfg = path_dataset(size=14, pipeline=RENAMED)
    runner = small_runner(
        tmp_path, **{
            'train_dataloader.dataset': dict(cfg, _delete_=True),
            **on([3, 11])
        })
    runner.train()
    assert (infobatch_hook(runner).scores.numpy() != 1).all()


def test_a_list_that_is_wrong_stops_before_the_first_step(tmp_path):
    (tmp_path / 'list.txt').write_text('1\n11\n')
    runner = small_runner(tmp_path, **on(str(tmp_path / 'list.txt')))
    with pytest.raises(ValueError, match='line 2 of .*list.txt is image 11'):
        runner.train()
    assert runner.iter == 0
