# Copyright (c) mmib contributors. All rights reserved.
import itertools
import multiprocessing

import numpy as np
import pytest
import torch
from mmseg.registry import DATASETS

from mmib.compat import _SkipsWithoutLoading
from tests.system.small_training import IndexDataset, small_runner
from tests.test_datasets import path_dataset
from tests.test_hook import train

# What workers read is seen by the process that started them.
READ = multiprocessing.Array('q', 11)


@DATASETS.register_module()
class ReadsDataset(IndexDataset):
    """Counts how often each image is read."""

    def __getitem__(self, index):
        with READ.get_lock():
            READ[index] += 1
        return super().__getitem__(index)


def run(work_dir, **changes):
    runner = small_runner(
        work_dir, **{
            'model.type': 'RecordingSegmentor',
            'train_dataloader.dataset.type': 'ReadsDataset',
            'train_cfg.max_iters': 40,
            'default_hooks.checkpoint.interval': 7,
            **changes
        })
    READ[:] = [0] * 11
    spy = train(runner)
    slots = [(i, float(w)) for indices, _, weights in runner.model.steps
             for i, w in zip(indices, weights)]
    return runner, spy, slots


def resume(work_dir, iteration, **changes):
    return run(
        f'{work_dir}/resumed',
        resume=True,
        load_from=f'{work_dir}/iter_{iteration}.pth',
        **changes)


def assert_resumed(work_dir, iteration, spy, slots, **changes):
    """Resume from an iteration of a training: what follows is the same."""
    runner, rest, rest_slots = resume(work_dir, iteration, **changes)
    assert rest_slots == slots[3 * iteration:]
    assert rest.losses == spy.losses[iteration:]
    np.testing.assert_array_equal(rest.tables, spy.tables[iteration:])
    assert rest.epochs == spy.epochs[len(spy.epochs) - len(rest.epochs):]
    return runner


LOADERS = [{
    'train_dataloader.num_workers': workers,
    'train_dataloader.persistent_workers': persistent
} for workers, persistent in ((0, False), (2, False), (2, True))]


@pytest.mark.parametrize('loop', ['IterBasedTrainLoop', 'EagerTrainLoop'])
@pytest.mark.parametrize(
    'loader', LOADERS, ids=lambda loader: str([*loader.values()]))
def test_resume_is_exact(tmp_path, loader, loop):
    """With batches in flight, in a plan, in annealing; also twice."""
    changes = {**loader, 'train_cfg.type': loop}
    whole, spy, slots = run(tmp_path, **changes)
    assert any(weight > 1 for _, weight in slots)
    for iteration in (7, 21, 35):
        runner = assert_resumed(tmp_path, iteration, spy, slots, **changes)
        for name, value in whole.model.state_dict().items():
            assert torch.equal(runner.model.state_dict()[name], value)
        saved, expected = (
            one.message_hub.get_scalar('infobatch/saved_iters').current()
            for one in (runner, whole))
        assert saved == expected
    _, _, rest_slots = resume(f'{tmp_path}/resumed', 14 + 21, **changes)
    assert rest_slots == slots[3 * 35:]


@pytest.mark.parametrize(
    'hook', [
        dict(policy=dict(type='EpsilonGreedy', epsilon=0.3, period=2)),
        dict(policy=dict(type='UpperConfidenceBound', period=2)),
        dict(
            policy=dict(
                type='Neyman', full_iters=56, num_strata=3, min_keep=0.3)),
        dict(ema=0.8),
        dict(delta=1),
    ],
    ids=str)
def test_resume_is_exact_with_other_arguments(tmp_path, hook):
    """What policies and scores remember; also where nothing is annealed."""
    changes = {
        'custom_hooks': [dict(type='InfoBatchHook', **hook)],
        'train_dataloader.num_workers': 2
    }
    whole, spy, slots = run(tmp_path, **changes)
    assert sum(epoch.size < 11 for epoch in spy.epochs) > 4
    for iteration in (7, 14, 28):
        assert_resumed(tmp_path, iteration, spy, slots, **changes)


@pytest.mark.parametrize('kind', ['EpsilonGreedy', 'UpperConfidenceBound'])
def test_another_data_set_needs_no_state_of_the_policy(tmp_path, kind):
    changes = {
        'custom_hooks': [
            dict(type='InfoBatchHook', policy=dict(type=kind, period=100))
        ]
    }
    run(tmp_path, **changes)
    _, spy, _ = resume(tmp_path, 21, **changes,
                       **{'train_dataloader.dataset.size': 7})
    # It selects among these.
    selected, = {epoch.size for epoch in spy.epochs} - {7}
    assert selected == round(0.6 * 7)


def test_a_finished_training_without_annealing_goes_on(tmp_path):
    """Later it ends; what was in flight then is trained on first."""
    changes = {
        'custom_hooks': [dict(type='InfoBatchHook', delta=1)],
        'train_dataloader.num_workers': 2
    }
    _, _, slots = run(tmp_path, **changes)
    _, rest, rest_slots = resume(tmp_path, 35, **changes,
                                 **{'train_cfg.max_iters': 60})
    # Two batches of each worker.
    assert rest_slots[:4 * 3] == slots[35 * 3:39 * 3]
    assert len(rest_slots) == 25 * 3
    assert rest.epochs[-1].size < 11


@pytest.mark.parametrize(
    'loader', LOADERS, ids=lambda loader: str([*loader.values()]))
def test_resume_reads_no_past(tmp_path, loader):
    run(tmp_path)
    _, _, slots = resume(tmp_path, 35, **loader)
    read = sum(READ)
    in_flight = 2 * 2 * 3 if loader['train_dataloader.num_workers'] else 0
    assert len(slots) == 5 * 3 <= read
    # A loop that starts its workers when it is built, as OpenMMLab's, has
    # asked for as many images before the checkpoint is read.
    assert read <= len(slots) + 2 * in_flight
    if not in_flight:
        assert list(READ) == np.bincount([i for i, _ in slots],
                                         minlength=11).tolist()


def test_a_second_training_needs_a_new_runner(tmp_path):
    runner, _, _ = run(tmp_path)
    with pytest.raises(RuntimeError, match='new Runner with `resume=True`'):
        runner.train()


def test_state_is_plain(tmp_path):
    """Tensors and plain values: no pickled class of ours or numpy's."""
    run(tmp_path)
    checkpoint = torch.load(tmp_path / 'iter_21.pth', weights_only=False)
    torch.save(checkpoint['infobatch'], tmp_path / 'state.pth')
    state = torch.load(tmp_path / 'state.pth', weights_only=True)
    assert set(state) == {
        'sampler', 'scores', 'planner', 'images', 'paths_comparable',
        'images_checksum'
    }
    assert state['sampler']['position'] == 21 * 3
    assert state['images']['visits'].sum() == 21 * 3
    # The names of the parameters are those of the baseline.
    assert not any('.loss.' in name for name in checkpoint['state_dict'])


def test_past_is_empty():
    batches = _SkipsWithoutLoading(itertools.count(5), 3)
    assert list(itertools.islice(batches, 5)) == [None, None, None, 5, 6]
    assert iter(batches) is batches


@pytest.mark.parametrize('dataset, said', [
    (dict(name='moved/a'), 'goes on in virtual epoch'),
    (dict(indices=[*range(10, -1, -1)]), 'or of the same in another order. '
     'All scores start at 1'),
])
def test_a_data_set_in_another_folder_or_order(tmp_path, dataset, said):
    """Scores go with the images to another folder. In another order they
    would be those of other images."""

    def changes(**dataset):
        dataset = dict(path_dataset(size=11, **dataset), _delete_=True)
        return {'train_dataloader.dataset': dataset}

    _, _, slots = run(tmp_path, **changes())
    _, _, rest = resume(tmp_path, 21, **changes(**dataset))
    assert (rest == slots[3 * 21:]) is ('goes on' in said)
    log, = (tmp_path / 'resumed').glob('*/*.log')
    assert said in log.read_text()
