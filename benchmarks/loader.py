# Copyright (c) mmib contributors. All rights reserved.
"""Time the batches of `Session.loader` against those of a DataLoader with a
RandomSampler, on images that lie in memory.

    python -m benchmarks.loader

Both take turns, some batches each, so that whatever else the machine does hits
both. The first batch is a column of its own: workers start there, the Session
draws a plan, and the RandomSampler an order.
"""
import argparse
import time
from typing import Iterable, List, Tuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from mmib import Session

BATCH_SIZE = 64
BLOCK = 30  # Batches of a turn.
TURNS = 8  # In an epoch of the smallest dataset.


class Images(Dataset):
    """Images of 32 x 32 with a label, of which many share a few."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._images = torch.rand(64, 3, 32, 32)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, int]:
        return self._images[index % 64], index % 10


def seconds_of(batches: Iterable, count: int) -> float:
    """Take so many batches, and return how long that took."""
    start = time.perf_counter()
    for _ in range(count):
        next(batches)
    return time.perf_counter() - start


def take_turns(size: int, num_workers: int) -> Tuple[List[float], np.ndarray]:
    """Return the seconds of the first batch, of the plain loader and of the
    Session, and those of a batch in each turn, of shape (turns, 2)."""
    dataset = Images(size)
    session = Session(dataset, epochs=10, seed=0)
    loaders = (
        DataLoader(
            dataset,
            BATCH_SIZE,
            sampler=RandomSampler(dataset),
            num_workers=num_workers),
        session.loader(BATCH_SIZE, num_workers=num_workers),
    )
    first, iterators = [], []
    for loader in loaders:
        start = time.perf_counter()
        # The workers of a DataLoader start here, those of a Session later.
        iterators.append(iter(loader))
        next(iterators[-1])
        first.append(time.perf_counter() - start)
    for batches in iterators:  # What workers have loaded in advance.
        seconds_of(batches, 10)
    turns = np.empty((TURNS, 2))
    for i in range(TURNS):
        for k in (0, 1) if i % 2 else (1, 0):
            turns[i, k] = seconds_of(iterators[k], BLOCK) / BLOCK
    return first, turns


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--sizes', type=int, nargs='+', default=(20_000, 1_280_000))
    parser.add_argument('--workers', type=int, nargs='+', default=(0, 2))
    parser.add_argument(
        '--repeats', type=int, default=5, help='epochs that are begun')
    args = parser.parse_args()
    torch.set_num_threads(1)
    print('| images | workers | batch, ms | of RandomSampler, ms | ratio | '
          'quartiles | first batch, ms | of RandomSampler, ms |\n'
          '|---|---|---|---|---|---|---|---|')
    for size in args.sizes:
        for num_workers in args.workers:
            firsts, turns = zip(*(take_turns(size, num_workers)
                                  for _ in range(args.repeats)))
            plain, ours = 1000 * np.median(np.concatenate(turns), 0)
            first_of_plain, first = 1000 * np.median(firsts, 0)
            of_plain, of_session = np.concatenate(turns).T
            low, ratio, high = np.quantile(of_session / of_plain,
                                           [0.25, 0.5, 0.75])
            print(
                f'| {size} | {num_workers} | {ours:.2f} | {plain:.2f} | '
                f'{ratio:.3f} | {low:.3f} to {high:.3f} | {first:.1f} | '
                f'{first_of_plain:.1f} |',
                flush=True)


if __name__ == '__main__':
    main()
