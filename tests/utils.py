# Copyright (c) mmib contributors. All rights reserved.
"""What several test files use."""
import socket

import torch.distributed as dist
import torch.multiprocessing as mp


def _free_port():
    with socket.socket() as server:
        server.bind(('localhost', 0))
        return server.getsockname()[1]


def _run_rank(rank, function, world_size, port, results):
    dist.init_process_group(
        'gloo',
        init_method=f'tcp://localhost:{port}',
        rank=rank,
        world_size=world_size)
    function(rank, results)
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(function, world_size):
    """Run ``function(rank, results)`` in real processes over gloo.

    Each writes ``results[rank]``.

    Returns:
        list: The results in the order of the ranks.
    """
    with mp.get_context('spawn').Manager() as manager:
        results = manager.dict()
        mp.spawn(
            _run_rank, (function, world_size, _free_port(), results),
            nprocs=world_size)
        return [results[rank] for rank in range(world_size)]
