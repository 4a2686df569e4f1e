# Copyright (c) mmib contributors. All rights reserved.
"""What only a GPU can show of a loop of one's own."""
import functools
import os
import shutil

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from mmib import Session
from mmib.pruning import RandomPruning
from tests.helpers import processes
from tests.helpers.audit import (EPOCHS, Audit, Samples, Trainer, assert_same,
                                 check_facts, network)
from tests.helpers.processes import _save_result, run_ranks, start_ranks
from tests.helpers.runs import state_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason='there is no GPU')
]
WORKERS = dict(num_workers=2, pin_memory=True)
by_stream = pytest.mark.parametrize('stream', [False, True])


def train(audit, stop=None, model=None, **loader):
    """Train on the GPU until the end, or until so many batches."""
    trainer = Trainer(audit, model or network().cuda())
    go_on(trainer, stop, **loader)
    return trainer


def go_on(trainer, stop=None, **loader):
    batches = trainer.audit.loader(20, device='cuda', **loader)
    for _ in trainer.iterators():
        for slots, batch in batches:
            trainer.step(slots, batch)
            if trainer.audit.calls == stop:
                return


@by_stream
@pytest.mark.parametrize('loader', [{}, WORKERS], ids=str)
def test_the_truth_and_resume(stream, loader):
    """Each weight belongs to its image, and a run that goes on is the run that
    was never stopped."""
    whole = Audit(stream=stream)
    trainer = train(whole, **loader)
    assert next(trainer.model.parameters()).is_cuda
    whole.check(whole.planned)

    part = Audit(stream=stream)
    other = train(part, 2 * whole.calls // 3, **loader)
    part.resume()
    go_on(other, **loader)
    part.check(part.planned)
    assert part.images == whole.images
    assert torch.equal(other.parameters(), trainer.parameters())
    assert_same(state_of(part.session), state_of(whole.session))


def step_of(amp, scaler, model, optimizer, session):
    """Return a function that trains on a batch."""

    def step(slots, inputs, labels):
        with amp:
            logits = model(inputs)
            losses = F.cross_entropy(logits, labels, reduction='none')
        loss = session.weigh(losses, slots, logits).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()

    return step


def session_of(size=700):
    data = Samples(size)
    return Session(data, RandomPruning(0.5), epochs=8, seed=0), data


@pytest.mark.parametrize('dtype', [None, torch.float16, torch.bfloat16])
def test_the_step_does_not_wait_for_the_gpu(dtype):
    """Neither does the next batch, in passes of more than 32 batches: what was
    seen of these is packed."""
    session, _ = session_of()
    model = network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(enabled=dtype == torch.float16)
    amp = torch.autocast('cuda', dtype, enabled=dtype is not None)
    step = step_of(amp, scaler, model, optimizer, session)
    # Without pinned memory torch itself waits for the copy of a batch.
    loader = session.loader(16, device='cuda', pin_memory=True)
    longest = 0
    while session.epoch < 8:
        number = 0
        batches = iter(loader)
        batch = next(batches)
        while batch is not None:
            slots, (inputs, labels, _) = batch
            if session.epoch + number:  # The first step sets the GPU up.
                torch.cuda.set_sync_debug_mode('error')
            try:
                step(slots, inputs, labels)
                batch = next(batches, None)
            finally:
                torch.cuda.set_sync_debug_mode('default')
            # The scaler reads whether gradients are finite.
            scaler.step(optimizer)
            scaler.update()
            number += 1
        longest = max(number, longest)
    assert longest > 40
    tables = session._run.table
    assert np.isfinite(tables.scores).all() and tables.visits.all()


def worth_of(dtype, compiled=False):
    """Return scores and V of a run of a network that never changes."""
    session, _ = session_of()
    model = network().cuda()
    scaler = torch.amp.GradScaler(enabled=dtype == torch.float16)
    amp = torch.autocast('cuda', dtype, enabled=dtype is not None)
    optimizer = torch.optim.SGD(model.parameters(), 0.)
    step = step_of(amp, scaler, model, optimizer, session)
    if compiled:
        step = torch.compile(step)
    gradients = []
    loader = session.loader(20, device='cuda', drop_last=True)
    while session.epoch < 8:
        for slots, (inputs, labels, _) in loader:
            step(slots, inputs, labels)
            gradients.append(
                torch.cat([p.grad.flatten()
                           for p in model.parameters()]) / scaler.get_scale())
    return (session._run.table.scores, session.worth.value,
            torch.stack(gradients).cpu())


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_mixed_precision(dtype):
    scores, mean_v, gradients = worth_of(None)
    ours, v, others = worth_of(dtype)
    np.testing.assert_allclose(ours, scores, rtol=0.05, atol=0.02)
    assert v == pytest.approx(mean_v, rel=0.02)
    torch.testing.assert_close(others, gradients, rtol=0.1, atol=0.02)


def test_compiled():
    """By torch's default backend."""
    pytest.importorskip('triton')
    if not (shutil.which('cc') or shutil.which('gcc')):
        pytest.skip('there is no C compiler')
    scores, mean_v, gradients = worth_of(None)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        ours, v, others = worth_of(None, compiled=True)
    np.testing.assert_allclose(ours, scores, rtol=1e-4, atol=1e-5)
    assert v == pytest.approx(mean_v, rel=1e-3)
    torch.testing.assert_close(others, gradients, rtol=1e-3, atol=1e-5)


def test_a_process_group_of_nccl(tmp_path):
    """The rows of the log are gathered on the GPU."""
    plain = train(Audit())
    torch.cuda.set_device(0)
    dist.init_process_group(
        'nccl', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    try:
        audit = Audit()
        trainer = train(audit, model=DistributedDataParallel(network().cuda()))
        audit.check(audit.planned)
        assert torch.equal(trainer.parameters(), plain.parameters())
    finally:
        dist.destroy_process_group()


@pytest.fixture
def spawned(monkeypatch):
    """CUDA can't begin in a process that was forked from one that has asked
    for GPUs."""
    monkeypatch.setattr(processes, 'CONTEXT', mp.get_context('spawn'))


def train_on_ranks(rank, results, path, killed_at=None):
    """Train, and save after each tenth batch. Go on where there is a state."""
    audit = Audit()
    model = DistributedDataParallel(network().cuda(), device_ids=[0])
    trainer = Trainer(audit, model)
    done = 0
    if os.path.exists(path):
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state['model'])
        audit.session.load_state_dict(state['session'])
        done = state['done']
    loader = audit.session.loader(10, device='cuda')
    while audit.session.epoch < EPOCHS:
        for slots, (inputs, labels, _) in loader:
            logits = model(inputs)
            losses = F.cross_entropy(logits, labels, reduction='none')
            trainer.update(audit.session.weigh(losses, slots, logits).mean())
            done += 1
            if done == killed_at and rank == 1:
                os.kill(os.getpid(), 9)
            if done % 10 == 0:
                # Collective, and a rank may be gone.
                state = dict(
                    model=model.state_dict(),
                    session=audit.session.state_dict(),
                    done=done)
                if rank == 0:
                    torch.save(state, f'{path}.new')
                    os.replace(f'{path}.new', path)
    state = audit.session.state_dict()
    results[rank] = trainer.parameters().cpu(), state, done


def test_two_ranks_on_a_gpu_and_a_kill(tmp_path, spawned):
    """Over gloo: NCCL has one rank for each GPU."""
    whole = run_ranks(
        functools.partial(train_on_ranks, path=f'{tmp_path}/whole.pth'), 2)
    path = f'{tmp_path}/state.pth'
    prefix = f'{tmp_path}/killed'
    with start_ranks(
            _save_result, 2, prefix,
            functools.partial(train_on_ranks, path=path, killed_at=17),
            prefix) as processes:
        processes[1].join(120)
        assert processes[1].exitcode == -9
    assert torch.load(path, weights_only=True)['done'] == 10
    resumed = run_ranks(functools.partial(train_on_ranks, path=path), 2)
    for (parameters, state, done), (ours, our_state,
                                    ours_done) in zip(whole, resumed):
        assert done == ours_done > 20
        torch.testing.assert_close(ours, parameters, rtol=0, atol=0)
        assert_same(our_state, state)


def audit_ranks(rank, results):
    audit = Audit()
    model = DistributedDataParallel(network().cuda(), device_ids=[0])
    go_on(Trainer(audit, model))
    results[rank] = audit.facts()


def test_the_truth_on_two_ranks(spawned):
    facts = check_facts(run_ranks(audit_ranks, 2))
    assert len(facts.images) >= sum(len(plan.weights) for plan in facts.plans)
