# Copyright (c) mmib contributors. All rights reserved.
"""A loop of one's own in plain torch trains as the hook does."""
import os
import os.path as osp
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.dist import get_dist_info
from mmengine.hooks import Hook
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.runner import Runner
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from mmib import InfoBatchHook, Session
from mmib.pruning import Neyman

from .processes import run_ranks

EPOCHS, BATCH_SIZE = 6, 8
EXAMPLE = osp.join(
    osp.dirname(__file__), '..', '..', 'examples', 'own_loop', 'train.py')


def make_dataset():
    random = torch.Generator().manual_seed(0)
    table = torch.randn(130, 4, generator=random)
    return TensorDataset(table, (table[:, 0] * table[:, 1] > 0).long())


class Classifier(BaseModel):
    infobatch_predictions = 'layer'

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        with torch.no_grad():
            self.layer.weight.fill_(0.1)
            self.layer.bias.zero_()

    def forward(self, inputs, labels, mode='loss'):
        logits = self.layer(inputs)
        return dict(loss=F.cross_entropy(logits, labels, reduction='none'))


class Slots(Hook):
    priority = 'HIGH'

    def __init__(self, infobatch):
        self.infobatch, self.steps = infobatch, []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.steps.append(
            (*slots_of(self.infobatch.training), outputs['loss'].item()))


def slots_of(session):
    slots = session.own_slots
    return slots.indices.tolist(), slots.weights.tolist()


def train_with_hook(rank, results):
    hook = InfoBatchHook(Neyman(), delta=0.7)
    slots = Slots(hook)
    with tempfile.TemporaryDirectory() as work_dir:
        runner = Runner(
            Classifier(),
            work_dir,
            train_dataloader=dict(
                batch_size=BATCH_SIZE,
                dataset=make_dataset(),
                collate_fn=dict(type='default_collate'),
                sampler=dict(type='InfoBatchSampler', seed=5)),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.5)),
            train_cfg=dict(by_epoch=True, max_epochs=EPOCHS),
            experiment_name=f'own_loop_{rank}')
        for each in (hook, slots):
            runner.register_hook(each)
        if get_dist_info()[1] > 1:
            runner.model = MMDistributedDataParallel(runner.model)
        runner.train()
    results[rank] = slots.steps


def train_in_own_loop(rank, results):
    dataset, model = make_dataset(), Classifier()
    if get_dist_info()[1] > 1:
        model = DistributedDataParallel(model)
    session = Session(dataset, Neyman(), EPOCHS, delta=0.7, seed=5)
    loader = DataLoader(dataset, BATCH_SIZE, sampler=session.sampler)
    layer = getattr(model, 'module', model).layer
    outputs = []
    layer.register_forward_hook(lambda *args: outputs.append(args[-1]))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    steps = []
    for _ in range(session.epoch, EPOCHS):
        for inputs, labels in loader:
            losses = model(inputs, labels)['loss']
            loss = session.mean(losses, outputs.pop())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append((*slots_of(session), loss.item()))
    results[rank] = steps


@pytest.mark.parametrize('world_size', [1, 2])
def test_slot_for_slot(world_size):
    by_hook, own = (
        run_ranks(train, world_size)
        for train in (train_with_hook, train_in_own_loop))
    for ours, theirs in zip(by_hook, own, strict=True):
        assert len(ours) < 0.9 * EPOCHS * -(-130 // BATCH_SIZE // world_size)
        for step, other in zip(ours, theirs, strict=True):
            assert step[:2] == other[:2]
            np.testing.assert_allclose(step[2], other[2], rtol=1e-5)


def run_example(folder, *args):
    env = dict(os.environ, PYTHONPATH=osp.join(osp.dirname(__file__), '../..'))
    subprocess.run(
        [sys.executable, osp.abspath(EXAMPLE), *args],
        cwd=folder,
        env=env,
        check=True,
        capture_output=True)
    return torch.load(folder / 'last.pth', weights_only=True)


def test_the_example_goes_on_where_it_stopped(tmp_path):
    folders = tmp_path / 'whole', tmp_path / 'stopped'
    for folder in folders:
        folder.mkdir()
    whole = run_example(folders[0], '3')
    run_example(folders[1], '2')
    rest = run_example(folders[1], '3')
    assert rest['session']['iteration'] == whole['session']['iteration']
    for name, value in whole['model'].items():
        assert torch.equal(value, rest['model'][name])
