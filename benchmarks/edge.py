# Copyright (c) mmib contributors. All rights reserved.
"""Time the edge of a plan: the merge of the log of visits over the ranks, the
tables and sums made of it, and the new plan, without the time of the policy.

    python -m benchmarks.edge
    torchrun --nproc-per-node 2 -m benchmarks.edge
"""
import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist

from mmib.pruning import Neyman
from mmib.ranks import world_of_process
from mmib.run.run import Run
from mmib.scores.log import Entry
from mmib.stream.schedule import Schedule

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
    world, steps = world_of_process(), 10 * size // BATCH_SIZE
    run = Run(
        np.arange(size),
        Timed(ratio=0.6),
        Schedule(
            size,
            steps,
            BATCH_SIZE,
            delta=1,
            start=0,
            by_epoch=False,
            min_gap=steps // 1000 * BATCH_SIZE),
        print,
        seed=0,
        every_rank_trains=True)
    run.set_ranks(world)
    stream, batch_size = run.stream, BATCH_SIZE // world.size
    losses = torch.from_numpy(
        np.random.default_rng(world.rank).lognormal(size=batch_size)).float()
    times = []
    # The first plan that prunes follows a full pass.
    while len(times) < PLANS + 2:
        while stream.left < BATCH_SIZE:
            if world.size > 1:
                dist.barrier()  # As each step of a run waits for all ranks.
            begin = time.perf_counter()
            run.next_plan()
            # The run has a copy of the policy.
            times.append((time.perf_counter() - begin, run.policy.seconds))
        slots = stream.batch(stream.position, batch_size, world)
        stream.advance(slots.end)
        run.log.record(Entry(slots.numbers, losses, losses))
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
    rank, world_size = world_of_process()
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
