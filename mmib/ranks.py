# Copyright (c) mmib contributors. All rights reserved.
"""The rank of this process, and exchanges between ranks."""
from typing import List, NamedTuple, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


class World(NamedTuple):
    """A rank among others.

    Args:
        rank (int): The rank, from 0. Defaults to 0.
        size (int): Number of ranks. Defaults to 1.
    """

    rank: int = 0
    size: int = 1


def world_of_process() -> World:
    """Return the rank of this process and the number of processes: ``(0, 1)``
    without a process group."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return World()


def all_gather(tensor: Tensor) -> List[Tensor]:
    """Return the tensor of each rank, on the device of this rank's tensor.

    Args:
        tensor (Tensor): A tensor of the same shape and type on all ranks.
    """
    if world_of_process().size == 1:
        return [tensor]
    device = _device_of_group(tensor)
    own = tensor.to(device)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    return [each.to(tensor.device) for each in gathered]


def gather_numbers(numbers: Sequence[int]) -> np.ndarray:
    """Return some integers of each rank, int64 of shape (ranks, K)."""
    if world_of_process().size == 1:
        return np.array([numbers], np.int64)
    own = torch.tensor(numbers, dtype=torch.int64, device='cpu')
    return torch.stack(all_gather(own)).numpy()


def _device_of_group(tensor: Tensor) -> torch.device:
    backend = dist.get_backend()
    if backend in ('gloo', 'mpi'):
        return torch.device('cpu')
    if ':' in backend or tensor.device.type != 'cpu':
        # One backend for each type of device, or the device of the training.
        return tensor.device
    return torch.device('cuda' if backend == 'nccl' else 'cpu')


def random_seed() -> int:
    """Return a random seed, the same on all ranks."""
    own = int(np.random.default_rng().integers(2**31))
    return int(gather_numbers([own])[0, 0])
