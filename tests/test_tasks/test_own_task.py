# Copyright (c) mmib contributors. All rights reserved.
"""A task of a user, as the README of the example has it."""
import re
from pathlib import Path

import pytest
import torch
import torch.nn as nn
from mmengine.model import BaseModel

from mmib.errors import Refusal
from mmib.openmmlab import losses, tasks

from .contract import check_weights

README = Path(__file__).parents[2] / 'examples/any_model/README.md'


class Restorer(BaseModel):
    """A model whose loss is a mean over the whole batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.criterion = nn.MSELoss()

    def forward(self, inputs, targets, mode='tensor'):
        out = self.layer(inputs)
        if mode != 'loss':
            return out
        return dict(loss=self.criterion(out, targets))


@pytest.fixture
def _registered(monkeypatch):
    """Run the lines of the README, and forget what they have registered."""
    monkeypatch.setattr(tasks, '_TASKS', [*tasks._TASKS])
    monkeypatch.setattr(losses, '_UNREDUCED', {**losses._UNREDUCED})
    section = README.read_text('utf-8').partition(
        '## The models of another')[2]
    code, = re.findall('```python\n(.*?)```', section, re.S)
    exec(code, dict(Restorer=Restorer))


def test_weights_and_scores(_registered):
    generator = torch.Generator().manual_seed(1)
    inputs, targets = (
        torch.randn(3, size, generator=generator) for size in (3, 2))
    known, parts = check_weights(Restorer, inputs, targets,
                                 torch.tensor([1., 3., 0.5]))
    torch.testing.assert_close(known.scores, 3 * parts)
    assert (known.norms > 0).all()


def test_without_the_task_a_mean_is_refused():
    model, batch = Restorer(), tasks.BatchContext()
    tasks.attach(model, batch)
    batch.set_weights(torch.ones(3), torch.ones(3))
    with pytest.raises(Refusal, match=r'`loss` has the shape \(\)'):
        model.parse_losses(
            model(torch.zeros(3, 3), torch.zeros(3, 2), mode='loss'))
