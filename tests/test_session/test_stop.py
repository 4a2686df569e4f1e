# Copyright (c) mmib contributors. All rights reserved.
"""A loop that saves at a signal of the cluster goes on as if nothing had
happened."""
import multiprocessing
import os
import signal
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

import mmib.stop
from mmib import Session
from tests.helpers.processes import (log_of, start_ranks, wait_for_end,
                                     wait_for_thread_of_stop)

EPOCHS = 6


def train_rank(rank, folder, world_size, stop, num_workers):
    """The loop of a user, with dropout. One rank gets a signal in a pruned
    epoch, and with it its workers, as a cluster sends the signal."""
    mmib.stop._INTERVAL = 0.01
    torch.manual_seed(rank)
    images = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(images, images.sum(1) > 0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.5),
        torch.nn.Linear(16, 2))
    for parameter in model.parameters():
        # The same on all ranks.
        torch.nn.init.constant_(parameter, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    session = Session(data, epochs=EPOCHS, seed=0)
    path, own = f'{folder}/state.pth', f'{folder}/random{rank}.pth'
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state['model'])
        optimizer.load_state_dict(state['optimizer'])
        session.load_state_dict(state['session'])
        torch.set_rng_state(torch.load(own))
    steps = open(f'{folder}/steps{rank}', 'a')
    # Handlers are set from the first read on.
    number = int(session.wants_to_stop)
    loader = session.loader(4, num_workers=num_workers)
    while session.epoch < EPOCHS:
        for slots, (inputs, targets) in loader:
            logits = model(inputs)
            losses = F.cross_entropy(logits, targets.long(), reduction='none')
            optimizer.zero_grad()
            session.weigh(losses, slots, logits).mean().backward()
            for parameter in model.parameters():
                if world_size > 1:
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            print(slots.indices.tolist(), losses.tolist(), file=steps)
            number += 1
            if stop and rank == world_size - 1:
                if number == stop:
                    os.killpg(os.getpgid(0), signal.SIGTERM)
                elif number == stop + 2:
                    wait_for_thread_of_stop()
            if session.wants_to_stop:
                state = dict(
                    model=model.state_dict(),
                    optimizer=optimizer.state_dict(),
                    session=session.state_dict())
                torch.save(torch.get_rng_state(), own)
                if rank == 0:
                    torch.save(state, path)
                steps.close()
                sys.exit(mmib.stop.EXIT_CODE)
    # What follows the run hears the signals again.
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    steps.close()
    if rank == 0:
        torch.save([*model.parameters()], f'{folder}/end.pth')


def train(folder, world_size, num_workers, stop=None):
    """Train in real processes, and return their exit codes."""
    folder.mkdir(exist_ok=True)
    # Processes that go on meet at another file.
    prefix = str(folder / f'start{len([*folder.glob("*.log")])}')
    with start_ranks(train_rank, world_size, prefix, str(folder), world_size,
                     stop, num_workers) as processes:
        assert wait_for_end(processes), log_of(prefix, 0)[-3000:]
        codes = [each.exitcode for each in processes]
        assert 1 not in codes, log_of(prefix, codes.index(1))[-3000:]
        return codes


def sleep_for_long(begun):
    begun.set()
    time.sleep(60)


def hear_of_other_runs(rank):
    """A child that doesn't train ends at a signal, and a run is heard after
    another one that broke off. Two signals at one moment are one."""
    broken, run = mmib.stop.StopSignal(), mmib.stop.StopSignal()
    broken.listen()
    fork = multiprocessing.get_context('fork')
    begun = fork.Event()
    child = fork.Process(target=sleep_for_long, args=(begun, ))
    child.start()
    begun.wait(30)
    child.terminate()
    child.join(30)
    assert child.exitcode == -signal.SIGTERM
    run.listen()
    mmib.stop._MOMENT, kill = 3., (os.getpid(), signal.SIGTERM)
    threading.Timer(1., os.kill, kill).start()
    os.kill(*kill)
    assert run.after_step() and not broken.after_step()
    broken.close()
    run.close()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_other_processes_and_runs(tmp_path):
    prefix = str(tmp_path / 'run')
    with start_ranks(hear_of_other_runs, 1, prefix) as processes:
        assert wait_for_end(processes)
        assert processes[0].exitcode == 0, log_of(prefix, 0)


def lose_a_rank(rank):
    """One rank is gone without a word before the other gets a signal."""
    mmib.stop._INTERVAL, mmib.stop._PATIENCE = 0.01, 0.3
    stop = mmib.stop.StopSignal()
    stop.listen()
    dist.barrier()
    if rank == 1:
        os._exit(0)
    os.kill(os.getpid(), signal.SIGTERM)
    start = time.monotonic()
    for _ in range(100):
        assert not stop.after_step()
        time.sleep(0.01)
    assert stop.name == 'SIGTERM'
    stop.close()
    # It waits once, and not after each step.
    assert time.monotonic() - start < 20


def test_a_rank_that_is_gone(tmp_path):
    prefix = str(tmp_path / 'run')
    with start_ranks(lose_a_rank, 2, prefix) as processes:
        assert wait_for_end(processes)
        assert processes[0].exitcode == 0, log_of(prefix, 0)


@pytest.mark.parametrize('world_size, num_workers', [(1, 2), (2, 0)])
def test_a_loop_goes_on_after_a_signal(tmp_path, world_size, num_workers):
    whole, part = tmp_path / 'whole', tmp_path / 'part'
    assert train(whole, world_size, num_workers) == [0] * world_size
    stop = 24 // world_size
    assert train(part, world_size, num_workers, stop) == [75] * world_size
    made = [
        len((part / f'steps{rank}').read_text().splitlines())
        for rank in range(world_size)
    ]
    assert {*made} == {made[0]} and made[0] >= stop
    assert train(part, world_size, num_workers) == [0] * world_size
    for rank in range(world_size):
        one, other = ((folder / f'steps{rank}').read_text().splitlines()
                      for folder in (part, whole))
        assert one == other and len(one) > made[0]
    one, other = (torch.load(folder / 'end.pth') for folder in (part, whole))
    assert all(map(torch.equal, one, other))
