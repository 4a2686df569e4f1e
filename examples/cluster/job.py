# Copyright (c) mmib contributors. All rights reserved.
"""A run that is stopped and started again by whatever runs the cluster.

    torchrun --nproc-per-node 2 --max-restarts 3 job.py FOLDER

If a process dies, torchrun starts all of them again, and the run goes on from
last.pth in the folder, exactly.
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import mmib

EPOCHS = 8


def train(folder):
    """Train, on one process or in a process group."""
    torch.manual_seed(0)
    points = torch.rand(1000, 2)
    dataset = TensorDataset(points, (3 * points).long().sum(1) % 2)
    network = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    model = DistributedDataParallel(
        network) if dist.is_initialized() else network
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    session = mmib.Session(dataset, epochs=EPOCHS, seed=0)
    parts = dict(model=network, optimizer=optimizer, session=session)
    path = os.path.join(folder, 'last.pth')
    if os.path.exists(path):
        for name, state in torch.load(path).items():
            parts[name].load_state_dict(state)
    while session.epoch < EPOCHS:
        for step, (slots, (inputs, labels)) in enumerate(session.loader(50)):
            logits = model(inputs)
            losses = F.cross_entropy(logits, labels, reduction='none')
            optimizer.zero_grad()
            session.weigh(losses, slots, logits).mean().backward()
            optimizer.step()
            if step % 4 == 3:
                # On all ranks. What is written whole takes the place.
                states = {name: parts[name].state_dict() for name in parts}
                if is_first:
                    torch.save(states, f'{path}.new')
                    os.replace(f'{path}.new', path)
    return network.state_dict(), session.state_dict()


if __name__ == '__main__':
    if 'RANK' in os.environ:
        dist.init_process_group('gloo')
    train(sys.argv[1])
