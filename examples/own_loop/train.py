# Copyright (c) mmib contributors. All rights reserved.
"""A loop in plain torch, pruned: python train.py [EPOCHS], or torchrun
--nproc-per-node 2 train.py [EPOCHS]. Run again, it goes on with last.pth."""
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import mmib

if 'RANK' in os.environ:
    dist.init_process_group('gloo')
torch.manual_seed(0)
points = torch.rand(4000, 2)
dataset = TensorDataset(points, (3 * points).long().sum(1) % 2)
model = torch.nn.Sequential(
    torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
if dist.is_initialized():
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

session = mmib.Session(dataset, epochs=20, seed=0)
loader = DataLoader(dataset, batch_size=50, sampler=session.sampler)

if os.path.exists('last.pth'):
    last = torch.load('last.pth')
    model.load_state_dict(last['model'])
    optimizer.load_state_dict(last['optimizer'])
    session.load_state_dict(last['session'])
for epoch in range(session.epoch, int(sys.argv[1]) if sys.argv[1:] else 20):
    for inputs, labels in loader:
        logits = model(inputs)
        losses = F.cross_entropy(logits, labels, reduction='none')
        optimizer.zero_grad()
        session.mean(losses, logits).backward()
        optimizer.step()
    state = session.state_dict()  # On all ranks, which it merges.
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(
            dict(
                model=model.state_dict(),
                optimizer=optimizer.state_dict(),
                session=state), 'last.pth')
        print(f'epoch {epoch + 1}, {session.iteration} images, '
              f'V {session.worth.value:.2f}')
