# Copyright (c) mmib contributors. All rights reserved.
"""What frameworks do to slots and loaders, without them."""
import copy
import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterable, Mapping, Sequence

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils._pytree import tree_map

from tests.helpers.audit import Audit, Samples, Trainer

Batch = namedtuple('Batch', 'slots inputs')


@dataclasses.dataclass
class Data:
    slots: object
    inputs: object


def apply_to_collection(data, kind, function):
    """Apply a function to all objects of a kind, as Lightning does."""
    if isinstance(data, kind):
        return function(data)
    others = kind, function
    if isinstance(data, Mapping):
        return type(data)({
            key: apply_to_collection(value, *others)
            for key, value in data.items()
        })
    if isinstance(data, tuple) and hasattr(data, '_asdict'):
        return type(data)(*(apply_to_collection(value, *others)
                            for value in data))
    if isinstance(data, Sequence) and not isinstance(data, str):
        return type(data)([apply_to_collection(x, *others) for x in data])
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        result = copy.copy(data)
        for field in dataclasses.fields(data):
            value = getattr(data, field.name)
            setattr(result, field.name, apply_to_collection(value, *others))
        return result
    return data


def move(tensor):
    return tensor.to('meta')


def send_to_device(data):
    """Move what has a method `to`, as accelerate does."""
    if isinstance(data, (tuple, list)):
        moved = [send_to_device(each) for each in data]
        is_named = hasattr(data, '_asdict')
        return type(data)(*moved) if is_named else type(data)(moved)
    if isinstance(data, Mapping):
        return type(data)(
            (key, send_to_device(value)) for key, value in data.items())
    return data.to('meta') if hasattr(data, 'to') else data


@pytest.mark.parametrize('apply', [
    lambda data: apply_to_collection(data, torch.Tensor, move),
    lambda data: tree_map(lambda x: move(x)
                          if torch.is_tensor(x) else x, data),
    send_to_device,
])
@pytest.mark.parametrize('wrap', [
    lambda *pair: pair,
    lambda *pair: [*pair],
    lambda *pair: Batch(*pair),
    lambda *pair: dict(slots=pair[0], inputs=pair[1]),
    lambda *pair: OrderedDict(slots=pair[0], inputs=pair[1]),
])
def test_batches_are_moved_and_slots_stay(apply, wrap):
    slots, (inputs, *_) = next(iter(Audit(20).session.loader(4)))
    moved = apply(wrap(slots, dict(x=[inputs])))
    if isinstance(moved, Mapping):
        moved = tuple(moved.values())
    assert moved[0] is slots
    assert moved[1]['x'][0].is_meta


def test_a_batch_in_a_dataclass():
    slots, (inputs, *_) = next(iter(Audit(20).session.loader(4)))
    moved = apply_to_collection(Data(slots, inputs), torch.Tensor, move)
    assert moved.slots is slots and moved.inputs.is_meta


class Fields(dict):
    pass


class Rows(list):
    pass


@dataclasses.dataclass(frozen=True)
class Frozen:
    inputs: list


class MovesItself:
    """As a graph of some libraries."""

    def __init__(self, inputs):
        self.inputs = inputs

    def to(self, device):
        self.inputs = self.inputs.to(device)


class Copies(MovesItself):

    def to(self, device):
        return Copies(self.inputs.to(device))


@pytest.mark.parametrize('wrap, unwrap', [
    (lambda x: dict(x=x), lambda batch: batch['x']),
    (lambda x: Fields(x=[x]), lambda batch: batch['x'][0]),
    (lambda x: dict(y=Fields(x=x)), lambda batch: batch['y']['x']),
    (lambda x: Rows([Fields(x=x)]), lambda batch: batch[0]['x']),
    (lambda x: UserDict(x=[x]), lambda batch: batch['x'][0]),
    (lambda x: Frozen([x]), lambda batch: batch.inputs[0]),
    (lambda x: Batch('name', x), lambda batch: batch.inputs),
    (lambda x: pack_sequence([*x]), lambda batch: batch.data),
    (lambda x: [pack_sequence([*x])], lambda batch: batch[0].data),
    (MovesItself, lambda batch: batch.inputs),
    (lambda x: dict(x=Copies(x)), lambda batch: batch['x'].inputs),
])
def test_a_loader_moves_batches(wrap, unwrap):
    """It changes none of their types, and leaves the batch of the user."""
    made = []

    def collate(items):
        made.append(wrap(torch.stack([inputs for inputs, *_ in items])))
        return made[0]

    loader = Audit(20).session.loader(4, device='meta', collate_fn=collate)
    _, batch = next(iter(loader))
    assert type(batch) is type(made[0]) and unwrap(batch).is_meta
    if not isinstance(made[0], MovesItself):
        assert not unwrap(made[0]).is_meta


def test_slots_have_nothing_to_look_into():
    slots, _ = next(iter(Audit(20).session.loader(4)))
    assert not hasattr(slots, 'to')
    assert not isinstance(slots, (Iterable, Mapping, Sequence))
    with pytest.raises(TypeError, match='not iterable'):
        iter(slots)
    assert len(slots) == 4


def test_copies_of_slots():
    """They may be weighed."""
    audit = Audit(20)
    trainer = Trainer(audit)
    for _ in trainer.iterators():
        for slots, batch in audit.loader(4):
            trainer.step(copy.copy(slots), batch)
    audit.check(audit.planned)


class Prepared:
    """A loader as accelerate's, which is told of its batches by duck typing.
    """

    def __init__(self, loader):
        self._loader = loader

    def __iter__(self):
        return iter(self._loader)

    def __getattr__(self, name):
        return getattr(self._loader, name)


def test_a_loader_is_wrapped():
    """It has neither a sampler to replace nor a length to rely on."""
    audit = Audit(Samples(20))
    loader = Prepared(audit.loader(4))
    for name in ('sampler', 'batch_sampler', 'dataset', 'batch_size',
                 'set_epoch', 'collate_fn', 'num_workers'):
        assert not hasattr(audit.session.loader(4), name)
    with pytest.raises(TypeError):
        len(audit.session.loader(4))
    Trainer(audit).train(loader)
    audit.check(audit.planned)
