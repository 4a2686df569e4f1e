# Copyright (c) mmib contributors. All rights reserved.
"""A training goes on from a checkpoint as if nothing had happened, or says
what is other than before."""
import functools
import inspect
import itertools
import multiprocessing
import re

import numpy as np
import pytest
import torch
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import IterBasedTrainLoop
from mmseg.registry import DATASETS

from mmib.errors import Refusal
from mmib.openmmlab.runner.checkpoint import seal
from mmib.report.read import read_run
from mmib.stream.stream import Stream
from tests.helpers.epochs import (MAX_EPOCHS, SCHEDULES, SIZE, EdgeLog,
                                  by_epoch, edges)
from tests.helpers.processes import run_ranks
from tests.helpers.segmentors import (BASELINE, MAX_ITERS, VALIDATION,
                                      IndexDataset, StepLog, build,
                                      check_resumed, column, infobatch_hook,
                                      load, read_lines, read_log, train,
                                      train_rank)

# What workers read is seen by the process that started them.
READ = multiprocessing.Array('q', 11)


@DATASETS.register_module()
class ReadsDataset(IndexDataset):
    """Counts how often each image is read."""

    def __getitem__(self, index):
        with READ.get_lock():
            READ[index] += 1
        return super().__getitem__(index)


def loader(num_workers, persistent=False, size=11):
    return dict(
        train_dataloader=dict(
            num_workers=num_workers,
            persistent_workers=persistent,
            dataset=dict(size=size)))


def hook(**arguments):
    """A training whose hook has other arguments."""
    return dict(
        loader(2), custom_hooks=[dict(type='InfoBatchHook', **arguments)])


@HOOKS.register_module()
class SaveAtEdge(Hook):
    """Saves when the second epoch is over, before InfoBatchHook has ended that
    epoch."""

    priority = 'HIGH'

    def after_train_epoch(self, runner):
        if runner.epoch == 2:
            runner.save_checkpoint(runner.work_dir, 'edge.pth')


def of_epochs(**changes):
    """A training by epochs, with a checkpoint after each iteration and each
    second epoch."""
    policy = dict(type='Neyman', ratio=0.6, num_tiers=3, min_keep=0.3)
    return by_epoch(
        custom_hooks=[
            dict(type='InfoBatchHook', policy=policy),
            dict(
                type='CheckpointHook',
                by_epoch=False,
                interval=1,
                save_last=False),
            dict(type='SaveAtEdge')
        ],
        param_scheduler=SCHEDULES['warm-up and cosine'],
        **{
            'default_hooks.checkpoint': dict(interval=2, by_epoch=True),
            **changes
        })


EAGER = {'train_cfg.type': 'EagerTrainLoop'}
OPENMMLAB = {'train_cfg.type': 'SkippingTrainLoop'}
FLEXIBLE = dict(env_cfg={}, strategy=dict(type='SingleDeviceStrategy'))
# In the first pass, in a plan, in annealing; at the edge of an epoch, after
# the last iteration of the epoch and within others.
ITERS = ('iter_7', 'iter_21', 'iter_35')
WITHIN = ('iter_1', 'iter_7', 'iter_8', 'iter_13', 'edge', 'epoch_4',
          'iter_26', 'iter_31')
# Changes of the training, and the checkpoints that it goes on from.
TRAININGS = {
    'persistent workers': (loader(2, True), ITERS),
    'eager, workers': (dict(loader(2), **EAGER), ITERS),
    'OpenMMLab, no workers': (dict(loader(0), **OPENMMLAB), ITERS),
    'OpenMMLab, persistent workers': (dict(loader(2, True),
                                           **OPENMMLAB), ITERS),
    # Several plans are in one batch.
    'less than a batch, workers': (loader(2, size=2), ITERS),
    'Neyman, averages, no annealing': (hook(
        ema=0.8,
        delta=1,
        policy=dict(type='Neyman', ratio=0.7, num_tiers=3,
                    min_keep=0.3)), ITERS),
    'FlexibleRunner': (FLEXIBLE, ITERS),
    'epochs, FlexibleRunner': (of_epochs(**FLEXIBLE), WITHIN),
    'epochs, workers, drop_last': (of_epochs(
        **{
            'train_dataloader.num_workers': 2,
            'train_dataloader.drop_last': True
        }), WITHIN[1:7:2]),
}
SKIPS_NOTHING = {
    'train_cfg.fast_forward_on_resume': True,
    'train_dataloader.num_workers': 2
}
if 'fast_forward_on_resume' in inspect.signature(
        IterBasedTrainLoop).parameters:
    TRAININGS['a loop that skips nothing'] = (SKIPS_NOTHING, ITERS)


@pytest.mark.parametrize('name', TRAININGS)
def test_resume_is_exact(tmp_path, name):
    """Each time from a checkpoint of the resumed training."""
    changes, checkpoints = TRAININGS[name]
    if name[:6] != 'epochs':
        changes = {**changes, 'default_hooks.checkpoint.interval': 7}
    runner = build(tmp_path, **changes)
    steps = train(runner)
    if 'less than a batch' not in name:
        assert infobatch_hook(runner).run.table.pruned.sum() > 11
    folder, runners = tmp_path, []
    for checkpoint in checkpoints:
        # Until the end of the test, which stops their workers at once.
        runners.append(
            check_resumed(folder, runner, steps, checkpoint, **changes))
        folder = folder / 'resumed'


def resume(work_dir, checkpoint, **changes):
    """Go on from a checkpoint of another folder."""
    runner = build(work_dir, resume=True, load_from=str(checkpoint), **changes)
    return runner, train(runner)


def slots(steps):
    """Images and weights."""
    return [
        slot for step in steps
        for slot in zip(step['images'], step['weights'], strict=True)
    ]


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    """Folder and steps of a training by iterations."""
    folder = tmp_path_factory.mktemp('finished')
    return folder, train(
        build(folder, **{'default_hooks.checkpoint.interval': 7}))


@pytest.mark.parametrize('num_workers, loop', [(0, {}), (2, EAGER),
                                               (0, OPENMMLAB), (2, OPENMMLAB)])
def test_resume_reads_no_past(finished, tmp_path, num_workers, loop):
    READ[:] = [0] * 11
    _, steps = resume(
        tmp_path, finished[0] / 'iter_35.pth', **{
            **loader(num_workers),
            **loop, 'train_dataloader.dataset.type': 'ReadsDataset'
        })
    images, read = sum(column(steps, 'images'), []), sum(READ)
    in_flight = 2 * 3 * num_workers
    assert len(images) == 5 * 3 <= read
    # A loop that starts its workers when it is built, as OpenMMLab's, has
    # asked for as many images before the checkpoint is read.
    assert read <= len(images) + 2 * in_flight
    if not in_flight:
        assert list(READ) == np.bincount(images, minlength=11).tolist()


def test_a_second_training_needs_a_new_runner(tmp_path):
    runner = build(tmp_path)
    runner.train()
    with pytest.raises(Refusal, match='new Runner with `resume=True`'):
        runner.train()


# Another setup -------------------------------------------------------------


def test_a_finished_training_without_annealing_goes_on(tmp_path):
    """Later it ends; what was in flight then is trained on first."""
    changes = {**hook(delta=1), 'default_hooks.checkpoint.interval': 35}
    # Until the end of the test, which stops its workers at once.
    runner = build(tmp_path, **changes)
    steps = train(runner)
    changes['train_cfg.max_iters'] = 60
    _, later = resume(tmp_path / 'longer', tmp_path / 'iter_35.pth', **changes)
    # Two batches of each worker.
    assert slots(later[:4]) == slots(steps[35:39])
    assert len(later) == 25 and max(later[-1]['weights']) > 1


@pytest.mark.parametrize(
    'size, loop', [
        (11, dict(OPENMMLAB, **{'train_dataloader.num_workers': 2})),
        (13, {}),
        (13, dict(EAGER, **{'train_dataloader.num_workers': 2})),
    ],
    ids=str)
def test_a_checkpoint_without_scores_of_these_images(finished, tmp_path, size,
                                                     loop):
    """Of the baseline, or of a dataset of another length: the stream is
    that of the baseline, and nothing is pruned in the first full pass."""
    changes = {'train_dataloader.dataset.size': size}
    baseline = train(
        build(tmp_path, **BASELINE, **changes,
              **{'default_hooks.checkpoint.interval': 14}))
    expected = sum(column(baseline, 'images')[14:], [])
    saved = (tmp_path if size == 11 else finished[0]) / 'iter_14.pth'
    _, steps = resume(tmp_path / 'resumed', saved, **changes, **loop)
    log = read_log(tmp_path / 'resumed')
    reason = ('the checkpoint is of a run without InfoBatchHook'
              if size == 11 else 'the checkpoint is of 11 images, and the '
              'dataset has 13 images')
    assert (f'WARNING - InfoBatch: {reason}. All scores start at 1, and '
            'nothing is pruned until every image') in log
    # What was saved before stays.
    path, = (tmp_path / 'resumed').glob('*/infobatch.jsonl')
    iterations = load(saved).get('infobatch', {}).get('iterations', {})
    assert column(read_lines(path), 'saved_iters')[0] == pytest.approx(
        iterations.get('saved', 0))
    images, weights = zip(*slots(steps))
    # Until the first slot that stands for another image.
    full = next(i for i, weight in enumerate(weights) if weight > 1)
    assert set(images[:full]) == set(range(size))
    assert list(images[:size]) == expected[:size]
    pruned, visits = map(int,
                         re.search(r'; (\d+) of (\d+) visits ', log).groups())
    assert abs(visits - pruned - 3 * (MAX_ITERS - 14)) <= 1


@pytest.mark.parametrize('changes, name, epochs', [
    (by_epoch(None, **{'default_hooks.checkpoint.interval': 3}), 'epoch_3', 5),
    ({
        'train_dataloader.dataset.size': SIZE,
        'default_hooks.checkpoint.interval': 24
    }, 'iter_24', MAX_EPOCHS),
])
def test_an_epoch_without_scores_begins_anew(tmp_path, changes, name, epochs):
    """Of a checkpoint of the baseline, or of a training by iterations."""
    build(tmp_path, **changes).train()
    folder = tmp_path / 'pruned'
    runner, steps = resume(folder, tmp_path / f'{name}.pth', **by_epoch())
    images = column(steps, 'images')
    # A full epoch first.
    assert sorted(sum(images[:8], [])) == list(range(SIZE))
    assert len(steps) < epochs * 8
    path, = folder.glob('*/infobatch.jsonl')
    ends = read_lines(path)[-1]['ends']
    assert ends['visits'] == epochs * SIZE
    assert ends['pruned'] == epochs * SIZE - sum(map(len, images))
    assert read_run(str(folder)).annealing_iter == runner.iter - 8
    assert max(map(max, column(steps, 'weights'))) > 1


def test_another_policy(finished, tmp_path):
    """The open plan ends, then the new policy draws the next one. The seed is
    the one in the checkpoint."""
    folder, steps = finished
    left = load(folder / 'iter_21.pth')['infobatch']['stream']['indices']
    policy = dict(type='QuantileTiers')
    _, later = resume(tmp_path, folder / 'iter_21.pth', **{
        **hook(policy=policy), 'randomness.seed': 5
    })
    assert len(left) > 2
    assert slots(later)[:len(left)] == slots(steps[21:])[:len(left)]
    log = read_log(tmp_path)
    assert 'the next plans are drawn by QuantileTiers(' in log
    assert re.search(r'\(\d+\.\d %, pruned below \d', log)


def with_state(checkpoint, path, without=(), **changes):
    """Write a checkpoint with another state of mmib."""
    content = load(checkpoint)
    state = {**content['infobatch'], **changes}
    for name in ('checksum', *without):
        del state[name]
    content['infobatch'] = seal(state)
    torch.save(content, path)
    return path


def test_other_images(finished, tmp_path):
    """Or the same in another order, as the checksum of their paths tells."""
    path = with_state(
        finished[0] / 'iter_14.pth', tmp_path / 'other.pth', images_checksum=1)
    _, steps = resume(tmp_path, path)
    assert ('the checkpoint is of other images than '
            '`train_dataloader.dataset` has') in read_log(tmp_path)
    # A full pass first.
    assert {weight for _, weight in slots(steps)[:11]} == {1}


def test_other_images_and_a_damaged_state(finished, tmp_path):
    path = with_state(
        finished[0] / 'iter_14.pth',
        tmp_path / 'other.pth',
        images_checksum=1,
        iterations='x')
    with pytest.raises(Refusal, match='`iterations` is'):
        resume(tmp_path, path)


def test_a_state_of_another_version(finished, tmp_path):
    """As of before 1.0.0: refused before the first step."""
    path = with_state(
        finished[0] / 'iter_14.pth',
        tmp_path / 'other.pth',
        version=1,
        schedule=None,
        stream=None)
    runner = build(tmp_path, resume=True, load_from=str(path))
    with pytest.raises(Refusal, match='version 1, and this mmib reads'):
        runner.train()
    assert runner.iter == 14


KEYS = ('tables', 'schedule', 'reading', 'records', 'stream', 'baseline',
        'lacks_norms', 'iterations', 'paths_comparable')


@pytest.mark.parametrize('loop, name', [
    *((loop, name) for loop in ('iterations', 'epochs') for name in KEYS),
    ('epochs', 'schedule_steps'),
])
def test_a_state_that_is_damaged(finished, saved, tmp_path, loop, name):
    """It is refused before the first step. The text names the key."""
    path, changes = {
        'iterations': (finished[0] / 'iter_14.pth', {}),
        'epochs': (saved[0] / 'iter_10.pth', by_epoch())
    }[loop]
    for damage in (dict(without=[name]), {name: 'x'}):
        damaged = with_state(path, tmp_path / 'damaged.pth', **damage)
        runner = build(
            tmp_path, resume=True, load_from=str(damaged), **changes)
        with pytest.raises(Refusal, match=f'`{name}` is (missing|of type|no)'):
            runner.train()


def test_an_error_of_mmib_is_no_damage(finished, tmp_path, monkeypatch):
    """It is told as it is."""

    def fail(*args):
        raise TypeError('a fault of mmib')

    monkeypatch.setattr(Stream, 'load_state_dict', fail)
    with pytest.raises(TypeError, match='a fault of mmib'):
        resume(tmp_path, finished[0] / 'iter_14.pth')


def test_load_from_is_a_fresh_start(finished, tmp_path):
    folder, expected = finished
    runner = build(tmp_path, load_from=str(folder / 'iter_14.pth'))
    steps = train(runner)
    assert slots(steps)[:11] == slots(expected)[:11]
    # With other weights of the model.
    assert steps[0]['loss'] != expected[0]['loss']
    assert len(steps) == MAX_ITERS
    assert 'the run goes on' not in read_log(tmp_path)


def test_the_baseline_goes_on_from_a_checkpoint_of_infobatch(
        finished, tmp_path):
    expected = train(build(tmp_path / 'baseline', **BASELINE))[14:]
    _, steps = resume(tmp_path, finished[0] / 'iter_14.pth', **BASELINE)
    assert column(steps, 'images') == column(expected, 'images')


def test_testing(finished, tmp_path):
    """With a config of InfoBatch and its checkpoint."""
    runner = build(
        tmp_path,
        load_from=str(finished[0] / 'iter_14.pth'),
        test_cfg=dict(type='TestLoop'),
        test_dataloader=VALIDATION['val_dataloader'],
        test_evaluator=VALIDATION['val_evaluator'],
        **{'model.test_cfg': VALIDATION['model.test_cfg']})
    log = StepLog()
    runner.register_hook(log)
    assert np.isfinite(runner.test()['mIoU'])
    assert log.steps == []


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    """Folder of a training by epochs, its steps and what its edges were."""
    folder = tmp_path_factory.mktemp('saved')
    runner, log = build(
        folder,
        **by_epoch(
            param_scheduler=SCHEDULES['warm-up and cosine'],
            **{'default_hooks.checkpoint.interval': 4})), EdgeLog()
    runner.register_hook(log)
    runner.register_hook(CheckpointHook(by_epoch=False, interval=10))
    steps = train(runner)
    return folder, steps, [*log.rates, runner.optim_wrapper.get_lr()['lr'][0]]


@pytest.mark.parametrize('loop', ['iterations', 'epochs'])
def test_other_ranks(finished, saved, tmp_path, loop):
    """The rest of the plan goes to them. What follows are the plans of both:
    ``tests/test_openmmlab/test_sampler.py``, ``test_ranks.py``."""
    (folder, steps), name, end, changes = {
        'iterations': (finished, 'iter_21', f'iter_{MAX_ITERS}', {}),
        'epochs': (saved[:2], 'iter_10', f'epoch_{MAX_EPOCHS}', by_epoch()),
    }[loop]
    path = str(folder / f'{name}.pth')
    changes = dict(changes, resume=True, load_from=path)
    ranks = run_ranks(
        functools.partial(train_rank, work_dir=str(tmp_path), changes=changes),
        2)
    # Rank k has the slots k, k + 2, ...
    seen = []
    for together in zip(*ranks, strict=True):
        seen += itertools.chain(*zip(*(slots([step]) for step in together)))
    checkpoint = load(path)
    left = checkpoint['infobatch']['stream']
    rest = zip(left['indices'].tolist(), left['weights'].tolist())
    assert seen[:len(left['indices'])] == list(rest) != []
    images, _ = zip(*slots(steps[:checkpoint['meta']['iter']]), *seen)
    visits = load(tmp_path / f'{end}.pth')['infobatch']['tables']['visits']
    assert visits.tolist() == np.bincount(images).tolist()


@pytest.mark.parametrize('name, batch_size, drop_last',
                         [('iter_10', 1, False), ('iter_10', 8, True),
                          ('epoch_4', 8, False)])
def test_another_batch_size_by_epochs(saved, tmp_path, name, batch_size,
                                      drop_last):
    """The learning rate goes on as it was, and what is to come is known."""
    folder, _, rates = saved
    log = edges(
        tmp_path,
        **by_epoch(
            param_scheduler=SCHEDULES['warm-up and cosine'],
            resume=True,
            load_from=str(folder / f'{name}.pth'),
            **{
                'train_dataloader.batch_size': batch_size,
                'train_dataloader.drop_last': drop_last,
            }))
    # Where nothing is left of an epoch that fills a batch, the next one makes
    # up for its learning rates.
    np.testing.assert_allclose(log.rates[2:], rates[-len(log.rates) + 2:])
    assert log.expected[-1] == log.iters[-1]
    # Epochs are of 4 or 5 iterations of 3 images.
    assert abs(log.expected[0] - log.iters[-1]) <= 4 * 3 / batch_size + 4


@pytest.mark.parametrize('max_epochs', [MAX_EPOCHS, 14])
def test_a_training_by_epochs_that_has_ended(saved, tmp_path, max_epochs):
    _, steps = resume(tmp_path, saved[0] / f'epoch_{MAX_EPOCHS}.pth',
                      **by_epoch(**{'train_cfg.max_epochs': max_epochs}))
    log = read_log(tmp_path)
    assert ('prunes until' in log) is (max_epochs > MAX_EPOCHS)
    assert ('annealing begins at epoch 12 instead of 7' in log) is bool(steps)
    if steps:
        weights = np.concatenate(column(steps, 'weights'))
        assert weights.sum() == pytest.approx(6 * SIZE, rel=0.01)
        images = column(steps, 'images')
        assert all(
            sorted(sum(part, [])) == list(range(SIZE))
            for part in (images[-8:], images[-16:-8]))
        assert len(steps) < 0.8 * 6 * 8
