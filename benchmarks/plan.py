# Copyright (c) mmib contributors. All rights reserved.
"""Time how long the policies take to draw a plan, against plain numpy."""
import argparse
import time

import numpy as np

from mmib.pruning import MeanThreshold, Neyman, Progress, QuantileTiers

# Numbers of images, the first that of ADE20K.
SIZES = (20_210, 1_280_000, 14_000_000)
# For each size; at least five rounds are run.
SECONDS = 20


def plain_numpy(scores, rng, ratio=0.5):
    """What MeanThreshold draws, in the most direct vectorised numpy."""
    low = scores < scores.mean()
    low_indices = np.flatnonzero(low)
    num_kept = len(low_indices) - int(ratio * len(low_indices))
    kept = rng.permutation(low_indices)[:num_kept]
    indices = np.concatenate([np.flatnonzero(~low), kept])
    rng.shuffle(indices)
    weights = np.ones(len(indices), np.float32)
    weights[low[indices]] = len(low_indices) / num_kept
    return indices, weights


def neyman(scores, rng):
    """A plan of Neyman that keeps half of the images."""
    policy = Neyman(ratio=0.5)
    policy.begin_plan(Progress(0, 0, annealing=0, length=len(scores)))
    return policy(scores, rng)


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    drawers = {
        'plain numpy': plain_numpy,
        'MeanThreshold': MeanThreshold(),
        'QuantileTiers': QuantileTiers(),
        'Neyman': neyman
    }
    print('| images | drawer | median ms | ratio to plain numpy | rounds |\n'
          '|---|---|---|---|---|')
    for size in SIZES:
        scores = np.random.default_rng(0).lognormal(size=size)
        scores = scores.astype(np.float32)
        times = {name: [] for name in drawers}
        end = time.perf_counter() + SECONDS
        rounds = 0
        while rounds < 6 or time.perf_counter() < end:
            # Alternating, so that a slow moment of the machine hits all.
            for name, draw in drawers.items():
                rng = np.random.default_rng(rounds)
                start = time.perf_counter()
                draw(scores, rng)
                times[name].append(time.perf_counter() - start)
            rounds += 1
        # The first round warms up.
        seconds = {name: np.array(ts[1:]) for name, ts in times.items()}
        for name, ts in seconds.items():
            ratio = np.median(ts / seconds['plain numpy'])
            print(
                f'| {size} | {name} | {1e3 * np.median(ts):.2f} | '
                f'{ratio:.2f} | {rounds - 1} |',
                flush=True)


if __name__ == '__main__':
    main()
