# Copyright (c) mmib contributors. All rights reserved.
"""What several test files use."""
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.registry import LOOPS
from mmengine.runner import IterBasedTrainLoop, Runner
from mmseg.registry import DATASETS, MODELS
from small_training import IndexDataset, small_config

# Processes are forked from one that has all imports and no threads.
CONTEXT = mp.get_context('forkserver')
CONTEXT.set_forkserver_preload(
    ['pytest', 'mmib', 'mmengine.runner', 'mmseg.models'])


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
    with CONTEXT.Manager() as manager:
        results = manager.dict()
        mp.start_processes(
            _run_rank, (function, world_size, _free_port(), results),
            nprocs=world_size,
            start_method='forkserver')
        return [results[rank] for rank in range(world_size)]


def small_runner(work_dir, **changes):
    """The Runner of ``small_config(work_dir, **changes)``."""
    return Runner.from_cfg(small_config(work_dir, **changes))


@DATASETS.register_module()
class ValDataset(IndexDataset):
    """Samples that a segmentor can predict."""

    def __getitem__(self, index):
        results = super().__getitem__(index)
        results['data_samples'].set_metainfo(
            dict(img_shape=(8, 8), ori_shape=(8, 8)))
        return results


@MODELS.register_module()
class UnknownLoss(torch.nn.Module):
    """A loss of which mmib doesn't know how it falls into images."""

    loss_name = 'loss_unknown'

    def forward(self, pred, target, **kwargs):
        return pred.sum()


@LOOPS.register_module()
class EagerTrainLoop(IterBasedTrainLoop):
    """Starts its workers when it is built, as OpenMMLab's loop does."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.dataloader_iterator._iterator is None:
            self.dataloader_iterator._iterator = iter(self.dataloader)
