# Copyright (c) mmib contributors. All rights reserved.
"""The table of heads, with a library of its own. The tests of each library
check the rows."""
import pytest
import torch.nn as nn

from mmib.errors import Refusal
from mmib.openmmlab.batch import BatchContext
from mmib.openmmlab.losses import InfoBatchLoss, register_unreduced
from mmib.openmmlab.tasks.heads import HeadTable


class Loss(nn.MSELoss):
    pass


register_unreduced(Loss)(lambda loss, pred, target: None)


class Head(nn.Module):

    def __init__(self, **losses):
        super().__init__()
        for name, loss in (losses or dict(loss_a=Loss())).items():
            self.add_module(name, loss)

    def loss(self):
        pass


class Model(nn.Module):

    def __init__(self, **heads):
        super().__init__()
        for name, head in (heads or dict(head=Head())).items():
            self.add_module(name, head)

    def loss(self):
        pass

    def part(self):
        pass


def own(kind, method='loss'):
    """A subclass that overrides a method."""
    return type('Own' + kind.__name__, (kind, ), {method: lambda self: None})


@pytest.fixture
def table():
    return HeadTable('mmib.openmmlab.tasks.mine', ('loss', 'part'),
                     {Model: ('head', 'others')}, {Head: ('loss_a', )},
                     'register_network')


def wrap(table, model):
    """Names of the losses that are wrapped."""
    batch = BatchContext()
    found = table.wrap(model, batch)
    names = {x: name for name, x in model.named_modules()}
    losses = [x for _, wrapped in found for y in wrapped.values() for x in y]
    assert all(loss.batch is batch for loss in losses)
    assert all(not isinstance(loss.loss, InfoBatchLoss) for loss in losses)
    return [names[loss] for loss in losses]


def test_heads_are_found_wherever_they_are(table):
    model = Model(
        head=Head(),
        others=nn.ModuleList(
            [Model(others=nn.ModuleDict(dict(x=Head()))),
             Head()]))
    for _ in range(2):  # What is wrapped stays so.
        assert wrap(table, model) == [
            'head.loss_a', 'others.0.others.x.loss_a', 'others.1.loss_a'
        ]


@pytest.mark.parametrize('make, message', [
    (lambda: own(Model)(), 'OwnModel, which is `model`, .* with '
     '`mmib.openmmlab.tasks.mine.register_network`'),
    (lambda: own(Model, 'part')(), 'OwnModel, which is `model`'),
    (lambda: Model(head=own(Model)()), 'OwnModel, which is `model.head`'),
    (lambda: nn.Linear(1, 1), 'Linear, which is `model`'),
    (lambda: Model(head=own(Head)
                   ()), 'none for OwnHead.* change `model.head`.*'
     '`mmib.openmmlab.tasks.mine.register_head`'),
    (lambda: Model(others=nn.ModuleList([nn.Linear(1, 1)])),
     'none for Linear.* change `model.others.0`'),
    (lambda: Model(head=None), 'Model has no head'),
    (lambda: Model(head=Head(loss_a=nn.MSELoss())),
     '`model.head.loss_a` of Head: .*none for MSELoss'),
    (lambda: Model(head=Head(loss_b=Loss())), 'Head has no loss `loss_a`'),
    (lambda: Model(head=Head(loss_a=Loss(), loss_b=Loss())),
     'loss `model.head.loss_b` was not registered'),
    (lambda: Model(head=Head(), edge_head=Head()),
     'loss `model.edge_head.loss_a` was not reg'),
])
def test_what_is_not_known_is_refused(table, make, message):
    with pytest.raises(Refusal, match=message):
        table.wrap(make(), BatchContext())


def test_users_register_their_own(table):
    head, model = own(Head), own(Model)
    table.register_head(head, 'loss_a', 'loss_b')
    table.register_model(model, 'edge_head')
    network = model(edge_head=head(loss_a=Loss(), loss_b=Loss()))
    assert wrap(table, network) == ['edge_head.loss_a', 'edge_head.loss_b']
    # Without names they are the usual ones.
    table.register_head(head)
    table.register_model(model)
    assert wrap(table, model(others=head())) == ['others.loss_a']
    # Subclasses are meant too, until they override something again.
    assert wrap(table, type('Sub', (model, ), {})()) == ['head.loss_a']
    with pytest.raises(Refusal, match='OwnOwnModel, which is `model`'):
        wrap(table, own(model)())
