# Copyright (c) mmib contributors. All rights reserved.
"""Time what `Session.weigh`, its part of the backward pass and its log take on
the host in a step.

    python -m benchmarks.host_time

The losses of a step are the sums of small rows, so that hardly anything else
is timed. Steps with and without `weigh` take turns. One thread computes, and
its processor time counts, so that a busy machine changes little.
"""
import argparse
import time

import numpy as np
import torch
from torch.utils.data import TensorDataset

from mmib import Session
from mmib.pruning import RandomPruning

BATCH_SIZE, CLASSES = 128, 10


def steps(num_images, has_predictions):
    """Yield the seconds of each step, without `weigh` and with `weigh`."""
    data = TensorDataset(torch.zeros(num_images, 1))
    session = Session(data, RandomPruning(0.5), epochs=4, seed=0)
    weights = torch.randn(BATCH_SIZE, CLASSES, requires_grad=True)
    while session.epoch < 3:
        for slots, (_, ) in session.loader(BATCH_SIZE, drop_last=True):
            seconds = []
            for weighs in (False, True):
                logits = weights * 1.
                losses = logits.sum(1)
                begin = time.process_time()
                if weighs:
                    losses = session.weigh(losses, slots,
                                           logits if has_predictions else None)
                losses.mean().backward()
                seconds.append(time.process_time() - begin)
            yield seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--images', type=int, default=200_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print('| predictions | plain, us | weigh adds, us |\n|---|---|---|')
    for has_predictions in (True, False):
        plain, weighed = 1e6 * np.mean([*steps(args.images, has_predictions)],
                                       0)
        print(f'| {"yes" if has_predictions else "no"} | {plain:.0f} | '
              f'{weighed - plain:.0f} |')


if __name__ == '__main__':
    main()
