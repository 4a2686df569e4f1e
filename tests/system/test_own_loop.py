# Copyright (c) mmib contributors. All rights reserved.
"""A loop of one's own in plain torch trains as the hook does."""
import os.path as osp
import runpy
import tempfile

import numpy as np
import pytest
import torch
from mmengine.dist import get_dist_info
from torch.nn.parallel import DistributedDataParallel

from mmib import Session
from mmib.pruning import Neyman
from tests.helpers.processes import run_ranks
from tests.helpers.segmentors import distribute, infobatch_hook, train_and_note
from tests.test_tasks import test_per_sample as per_sample

EPOCHS, BATCH_SIZE, SEED = 8, 4, 5
ROOT = osp.abspath(osp.join(osp.dirname(__file__), '../..'))


def note(slots, loss):
    return slots.indices.tolist(), slots.weights.tolist(), loss.item()


def train_with_hook(rank, results):
    with tempfile.TemporaryDirectory() as work_dir:
        runner = per_sample.build(work_dir,
                                  **{'train_dataloader.sampler.seed': SEED})
        distribute(runner)
        results[rank] = train_and_note(
            runner, lambda runner, batch, outputs: note(
                infobatch_hook(runner)._slots, outputs['loss']))


def train_in_own_loop(rank, results):
    dataset, model = per_sample.Rows(), per_sample.TwoLosses()
    if get_dist_info()[1] > 1:
        model = DistributedDataParallel(model)
    policy = Neyman(ratio=0.6, num_tiers=3)
    session = Session(dataset, policy, EPOCHS, seed=SEED)
    loader = session.loader(BATCH_SIZE)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    results[rank] = []
    while session.epoch < EPOCHS:
        for slots, (rows, values) in loader:
            outputs = model(rows, values, mode='loss')
            one, two = outputs['losses']
            losses = outputs['loss_of_all'].mean(1) + one + two
            loss = session.weigh(losses, slots).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            results[rank].append(note(slots, loss))


@pytest.mark.parametrize('world_size', [1, 2])
def test_slot_for_slot(world_size):
    by_hook, own = (
        run_ranks(train, world_size)
        for train in (train_with_hook, train_in_own_loop))
    for ours, theirs in zip(by_hook, own, strict=True):
        assert len(ours) < 0.9 * EPOCHS * -(-23 // BATCH_SIZE // world_size)
        for step, other in zip(ours, theirs, strict=True):
            assert step[:2] == other[:2]
            np.testing.assert_allclose(step[2], other[2], rtol=1e-5)


def test_the_example_goes_on_where_it_stopped(tmp_path, monkeypatch):

    def run_example(folder, epochs):
        monkeypatch.chdir(folder)
        monkeypatch.setattr('sys.argv', ['train.py', epochs])
        runpy.run_path(
            osp.join(ROOT, 'examples/own_loop/train.py'), run_name='__main__')
        return torch.load('last.pth', weights_only=True)

    folders = tmp_path / 'whole', tmp_path / 'stopped'
    for folder in folders:
        folder.mkdir()
    whole = run_example(folders[0], '2')
    run_example(folders[1], '1')
    rest = run_example(folders[1], '2')
    assert rest['session']['stream']['position'] == (
        whole['session']['stream']['position'])
    for name, value in whole['model'].items():
        assert torch.equal(value, rest['model'][name])
