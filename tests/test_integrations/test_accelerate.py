# Copyright (c) mmib contributors. All rights reserved.
"""accelerate and Fabric need no code of mmib: the documented loops, with every
call of `weigh` compared with the truth."""
import functools

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.audit import (EPOCHS, Audit, assert_same, check_facts,
                                 network)
from tests.helpers.processes import environment_of, free_port, run_ranks
from tests.helpers.runs import state_of

accelerate = pytest.importorskip('accelerate')
pytestmark = pytest.mark.filterwarnings('ignore')
BATCH_SIZE = 20


@pytest.fixture(autouse=True)
def another_accelerator():
    """A process has one, unless this is undone."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


class Loop:
    """The loop of docs/frameworks.md."""

    def __init__(self,
                 audit,
                 batch_size=BATCH_SIZE,
                 prepared=True,
                 num_workers=0,
                 layers=(),
                 **kwargs):
        self.audit = audit
        self.accelerator = accelerate.Accelerator(cpu=True, **kwargs)
        self.model = network(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.loader = audit.loader(
            batch_size,
            device=self.accelerator.device,
            num_workers=num_workers)
        parts = [self.model, self.optimizer, self.loader]
        # What is no DataLoader comes back as it is.
        self.model, self.optimizer, *loader = self.accelerator.prepare(
            *parts[:3 if prepared else 2])
        assert loader in ([], [self.loader])
        self.accelerator.register_for_checkpointing(audit.session)

    def run(self, stop=None, folder=None):
        audit, accelerator = self.audit, self.accelerator
        while audit.session.epoch < EPOCHS:
            for slots, (inputs, labels, images) in self.loader:
                with accelerator.accumulate(self.model):
                    logits = self.model(inputs)
                    losses = F.cross_entropy(
                        logits.float(), labels, reduction='none')
                    loss = audit.weigh(losses, slots, images, logits).mean()
                    accelerator.backward(loss)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                if audit.calls == stop:
                    accelerator.save_state(folder)
                    return self
        return self

    def parameters(self):
        return torch.cat(
            [p.detach().flatten() for p in self.model.parameters()])


@pytest.mark.parametrize(
    'arguments', [
        {},
        dict(prepared=False),
        dict(num_workers=2),
        dict(gradient_accumulation_steps=4),
        dict(mixed_precision='bf16'),
        dict(
            dataloader_config=accelerate.DataLoaderConfiguration(
                split_batches=True)),
        dict(
            dataloader_config=accelerate.DataLoaderConfiguration(
                dispatch_batches=True)),
    ],
    ids=str)
def test_accelerate(arguments):
    audit = Audit()
    Loop(audit, **arguments).run()
    audit.check(audit.planned)
    assert audit.session.progress == 1 and len(audit.plans) == EPOCHS


@pytest.mark.parametrize('stop, workers', [(8, 0), (9, 0), (13, 0), (9, 2)])
def test_accelerate_resumes(tmp_path, stop, workers):
    """`save_state` and `load_state` are enough, also with dropout."""
    arguments = dict(num_workers=workers, layers=[torch.nn.Dropout()])
    whole = Audit()
    expected = Loop(whole, **arguments).run().parameters()
    part = Audit()
    Loop(part, **arguments).run(stop, tmp_path)
    rest = Audit()
    loop = Loop(rest, **arguments)
    loop.accelerator.load_state(tmp_path)
    rest.follow(part)
    assert torch.equal(loop.run().parameters(), expected)
    rest.check(whole.planned)
    assert rest.images == whole.images
    assert_same(state_of(rest.session), state_of(whole.session))


def train_rank(rank, results, port, folder, **kwargs):
    with environment_of(rank, 2, port):
        audit = Audit()
        loop = Loop(audit, batch_size=10, **kwargs)
        assert loop.accelerator.num_processes == 2
        loop.run()
        loop.accelerator.save_state(folder)
        results[rank] = audit.facts(), loop.parameters()


@pytest.mark.parametrize(
    'arguments',
    [{}, dict(num_workers=2),
     dict(gradient_accumulation_steps=2)],
    ids=str)
def test_accelerate_on_two_ranks(tmp_path, arguments):
    """Also where the loader was prepared."""
    results = run_ranks(
        functools.partial(
            train_rank, port=free_port(), folder=str(tmp_path), **arguments),
        2)
    facts = check_facts([facts for facts, _ in results])
    assert len(facts.images) >= sum(len(plan.weights) for plan in facts.plans)
    if 'gradient_accumulation_steps' not in arguments:
        assert torch.equal(results[0][1], results[1][1])


def train_with_fabric(rank, results, port, num_workers):
    from lightning.fabric import Fabric
    with environment_of(rank, 2, port):
        audit = Audit()
        fabric = Fabric(accelerator='cpu', devices=2, strategy='ddp')
        fabric.launch()
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer = fabric.setup(model, optimizer)
        loader = audit.loader(
            10, device=fabric.device, num_workers=num_workers)
        while audit.session.epoch < EPOCHS:
            for slots, (inputs, labels, images) in loader:
                logits = model(inputs)
                losses = F.cross_entropy(logits, labels, reduction='none')
                loss = audit.weigh(losses, slots, images, logits).mean()
                optimizer.zero_grad()
                fabric.backward(loss)
                optimizer.step()
        results[rank] = audit.facts()


@pytest.mark.parametrize('workers', [0, 2])
def test_fabric_on_two_ranks(workers):
    pytest.importorskip('lightning')
    train = functools.partial(
        train_with_fabric, port=free_port(), num_workers=workers)
    facts = check_facts(run_ranks(train, 2))
    assert len(facts.images) >= sum(len(plan.weights) for plan in facts.plans)


def test_fabric_resumes(tmp_path):
    """`save` and `load` take the Session, and the user the random state."""
    fabric = pytest.importorskip('lightning.fabric').Fabric(
        accelerator='cpu', devices=1)

    def run(stop=None, resumes=False):
        audit = Audit()
        model = network(torch.nn.Dropout())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer = fabric.setup(model, optimizer)
        state = dict(
            model=model,
            optimizer=optimizer,
            session=audit.session,
            random_state=torch.get_rng_state())
        if resumes:
            torch.rand(3)
            fabric.load(tmp_path / 'state', state)
            torch.set_rng_state(state['random_state'])
            audit.follow(resumes)
        while audit.session.epoch < EPOCHS:
            for slots, (inputs, labels, images) in audit.loader(BATCH_SIZE):
                logits = model(inputs)
                losses = F.cross_entropy(logits, labels, reduction='none')
                loss = audit.weigh(losses, slots, images, logits).mean()
                optimizer.zero_grad()
                fabric.backward(loss)
                optimizer.step()
                if audit.calls == stop:
                    state['random_state'] = torch.get_rng_state()
                    fabric.save(tmp_path / 'state', state)
                    return audit
        return model.module[0].weight.detach()

    whole = run()
    assert torch.equal(run(resumes=run(stop=9)), whole)
