# Copyright (c) mmib contributors. All rights reserved.
import copy
import os
import os.path as osp
import subprocess
import sys
import uuid

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import Runner
from torch.utils.data import Dataset, default_collate

from mmib.errors import Refusal
from mmib.openmmlab import tasks
from mmib.openmmlab.batch import BatchContext
from mmib.openmmlab.tasks.per_sample import TASK
from tests.helpers.segmentors import infobatch_hook, train_and_note, weights_of

from .contract import check_weights

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))


@MODELS.register_module()
class TwoLosses(BaseModel):
    """A loss of a number for each sample, and a list of others of several."""

    def __init__(self, reduction='none'):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 2)
        self.reduction = reduction

    def forward(self, rows, values, mode='tensor'):
        out = self.layer(rows)
        errors = F.mse_loss(out, values, reduction=self.reduction)
        if mode != 'loss':
            return out
        if self.reduction == 'mean':
            return dict(loss=errors)
        return dict(
            loss_of_all=errors,
            losses=[errors[:, 0], 0.5 * errors[:, 1]],
            accuracy=out.detach().mean())


@DATASETS.register_module()
class Rows(Dataset):

    def __len__(self):
        return 23

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        return (torch.randn(3, generator=random) * (1 + index % 3),
                torch.randn(2, generator=random))


def expected_norms(model, rows, values):
    """Of the gradient of each sample's own loss at what the layer returns."""
    out = model.layer(rows).detach().requires_grad_()
    errors = (out - values)**2
    (errors.mean(1) + errors[:, 0] + 0.5 * errors[:, 1]).sum().backward()
    return out.grad.norm(dim=1)


def test_the_weight_of_a_sample_multiplies_its_losses():
    rows, values = default_collate([Rows()[0], Rows()[1]])
    known, parts = check_weights(TwoLosses, rows, values,
                                 torch.tensor([1., 3.]))
    torch.testing.assert_close(known.scores, 2 * parts)
    model, batch = TwoLosses(), BatchContext()
    model.infobatch_predictions = 'layer'
    # What is attached stays so, until another training attaches it.
    for each in (BatchContext(), batch, batch):
        tasks.attach(model, each)
    batch.set_weights(*[torch.tensor([1., 3.])] * 2)
    loss, log_vars = model.parse_losses(model(rows, values, mode='loss'))
    torch.testing.assert_close(loss, parts[0] + 3 * parts[1])
    assert list(log_vars) == ['loss', 'loss_of_all', 'losses', 'accuracy']
    loss.backward()
    # They are watched once.
    torch.testing.assert_close(batch.norms,
                               expected_norms(model, rows, values))


def test_a_model_has_a_score_of_its_own():
    losses = dict(loss=torch.tensor([1., 3.]), other=torch.tensor(0.))
    batch = BatchContext()
    batch.set_weights(*[torch.tensor([1., 2.])] * 2)
    result = TASK.weigh(dict(losses, infobatch_score=torch.ones(2)), batch)
    assert result['loss'].tolist() == [1, 6]
    assert batch.scores.tolist() == [1, 1]
    with pytest.raises(Refusal, match=r'infobatch_score` must .* \(2,\)'):
        TASK.weigh(dict(losses, infobatch_score=torch.ones(2, 1)), batch)


@pytest.mark.parametrize('loss, kind', [
    (dict(mse=torch.ones(2)), 'dict'),
    ([1., 2.], 'list'),
    (None, 'NoneType'),
])
def test_losses_that_are_no_tensors(loss, kind):
    batch = BatchContext()
    batch.set_weights(torch.ones(2), torch.ones(2))
    with pytest.raises(Refusal, match=f'`losses` is a {kind}, but .* name'):
        TASK.weigh(dict(losses=loss), batch)


def test_predictions_are_checked():
    model, batch = TwoLosses(), BatchContext()
    model.infobatch_predictions = ('layer', 'last')
    with pytest.raises(Refusal, match="names 'last', which is none of"):
        tasks.attach(model, batch)
    model.last = torch.nn.LSTM(2, 2)
    tasks.attach(model, batch)
    model.last(torch.zeros(1, 1, 2))
    batch.set_weights(torch.ones(1), torch.ones(1))
    with pytest.raises(Refusal, match="'last', which returns a tuple"):
        model.last(torch.zeros(1, 1, 2))
    with pytest.raises(Refusal, match=r"'layer', .* shape \(2, 2\) in a"):
        model.layer(torch.zeros(2, 3))


def build(work_dir,
          policy=dict(type='Neyman', ratio=0.6, num_tiers=3),
          **changes):
    by_epoch = 'InfoBatchSampler' if policy else 'DefaultSampler'
    cfg = Config(
        dict(
            work_dir=str(work_dir),
            experiment_name=f'rows_{uuid.uuid4()}',
            randomness=dict(seed=0),
            model=dict(type='TwoLosses'),
            train_dataloader=dict(
                batch_size=4,
                dataset=dict(type='Rows'),
                collate_fn=dict(type='default_collate'),
                sampler=dict(type=by_epoch)),
            optim_wrapper=dict(
                optimizer=dict(type='SGD', lr=0.01, momentum=0.9)),
            train_cfg=dict(by_epoch=True, max_epochs=8),
            custom_hooks=[dict(type='InfoBatchHook', policy=policy)]
            if policy else []),
        format_python_code=False)
    cfg.merge_from_dict(changes)
    return Runner.from_cfg(cfg)


def train(runner):
    """The losses of a training."""
    return train_and_note(runner, lambda *step: step[-1]['loss'].item())


def test_training(tmp_path):
    runner = build(tmp_path)
    assert len(train(runner)) < 0.75 * 8 * 6
    assert infobatch_hook(runner).run.worth.value > 0


@pytest.mark.parametrize('policy, rtol',
                         [(dict(type='RandomPruning', ratio=0.), 1e-5),
                          (dict(type='ScoreOnly'), 0)])
def test_what_prunes_nothing_is_the_baseline(tmp_path, policy, rtol):
    """ScoreOnly to the last bit."""
    losses = [
        train(build(tmp_path / str(i), each))
        for i, each in enumerate((None, policy))
    ]
    np.testing.assert_allclose(*losses, rtol=rtol)


def test_a_mean_is_refused_before_the_first_step(tmp_path):
    runner = build(tmp_path, **{'model.reduction': 'mean'})
    before = copy.deepcopy(weights_of(runner))
    with pytest.raises(Refusal, match=r'`loss` has the shape \(\) .*none'):
        runner.train()
    torch.testing.assert_close(weights_of(runner), before, rtol=0, atol=0)


def test_example(tmp_path):
    output = subprocess.run(
        [sys.executable,
         osp.join(ROOT, 'examples/any_model/regression.py')],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=ROOT),
        capture_output=True,
        text=True,
        check=True)
    output = output.stdout + output.stderr
    assert 'as many passes as 1260 iterations of the baseline' in output
