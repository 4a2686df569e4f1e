# Copyright (c) mmib contributors. All rights reserved.
"""Time the edge of a plan: the merge of the log of visits over the ranks, the
tables and sums made of it, and the new plan, without the time of the policy.

    python -m benchmarks.edge
    torchrun --nproc-per-node 2 -m benchmarks.edge
"""
import argparse
import collections
import itertools
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from mmengine.dist import barrier, get_dist_info

from mmib import InfoBatchSampler
from mmib.clock import IterationClock
from mmib.pruning import Neyman
from mmib.training import Training

BATCH_SIZE = 1024  # Of all ranks.
PLANS = 6


class Timed(Neyman):
    """Neyman that knows how long it took."""

    seconds = 0.

    def __call__(self, scores, rng):
        start = time.perf_counter()
        plan = super().__call__(scores, rng)
        self.seconds = time.perf_counter() - start
        return plan


def edges(size):
    """Seconds of the edges of plans, and of the policy in them."""
    rank, world_size = get_dist_info()
    policy = Timed(ratio=0.6)
    sampler = InfoBatchSampler(range(size), seed=0)
    sampler.by_epoch = False
    training = Training(
        range(size), policy, sampler,
        IterationClock(size, BATCH_SIZE, 10 * size // BATCH_SIZE, 1))
    times = []

    def draw(start, rng):
        barrier()  # As each step of a training waits for all ranks.
        begin = time.perf_counter()
        plan = training.draw(start, rng)
        times.append((time.perf_counter() - begin, policy.seconds))
        return plan

    sampler.connect(draw)
    indices = iter(sampler)
    batch_size = BATCH_SIZE // world_size
    losses = torch.from_numpy(
        np.random.default_rng(rank).lognormal(size=batch_size)).float()
    # The first plan that prunes follows a full pass.
    while len(times) < PLANS + 2:
        collections.deque(itertools.islice(indices, batch_size), maxlen=0)
        training.begin_batch(batch_size, torch.device('cpu'))
        training.batch.add_scores(losses, losses)
        training.end_batch()
    return np.array(times[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument(
        '--sizes',
        type=int,
        nargs='+',
        default=(20_000, 1_280_000, 14_000_000))
    args = parser.parse_args()
    if 'RANK' in os.environ:
        dist.init_process_group('gloo')
    rank, world_size = get_dist_info()
    if rank == 0:
        print('| images | ranks | edge without policy, s | policy, s |\n'
              '|---|---|---|---|')
    for size in args.sizes:
        whole, policy = np.median(edges(size), 0)
        if rank == 0:
            print(
                f'| {size} | {world_size} | {whole - policy:.3f} | '
                f'{policy:.3f} |',
                flush=True)


if __name__ == '__main__':
    main()
