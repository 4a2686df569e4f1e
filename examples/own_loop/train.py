# Copyright (c) mmib contributors. All rights reserved.
"""Train a loop in plain PyTorch with InfoBatch.

    python train.py [EPOCHS]
    torchrun --nproc-per-node 2 train.py [EPOCHS]

Run the script again, and it resumes from last.pth.
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import mmib

if 'RANK' in os.environ:
    dist.init_process_group('gloo')
torch.manual_seed(0)
points = torch.rand(4000, 2)
dataset = TensorDataset(points, (3 * points).long().sum(1) % 2)
network = torch.nn.Sequential(
    torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
model = network
if dist.is_initialized():
    model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

session = mmib.Session(dataset, epochs=20, seed=0)
loader = session.loader(batch_size=50)

if os.path.exists('last.pth'):
    last = torch.load('last.pth')
    network.load_state_dict(last['model'])
    optimizer.load_state_dict(last['optimizer'])
    session.load_state_dict(last['session'])
epochs = int(sys.argv[1]) if sys.argv[1:] else 20
while session.epoch < epochs:
    for slots, (inputs, labels) in loader:
        logits = model(inputs)
        losses = F.cross_entropy(logits, labels, reduction='none')
        optimizer.zero_grad()
        session.weigh(losses, slots, logits).mean().backward()
        optimizer.step()
    state = session.state_dict()  # On all ranks.
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(
            dict(
                model=network.state_dict(),
                optimizer=optimizer.state_dict(),
                session=state), 'last.pth')
        print(f'epoch {session.epoch}, kept share {session.kept_share:.2f}, '
              f'V {session.worth.value:.2f}')
