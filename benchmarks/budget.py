# Copyright (c) mmib contributors. All rights reserved.
"""Simulate which virtual epochs the policies cover: plans are drawn as in a
training, with made-up losses of many shapes."""
import argparse
from typing import Callable, List, NamedTuple

import numpy as np

from mmib.pruning import (Budget, EpochPlan, MeanThreshold, Progress,
                          QuantileTiers)

# On ADE20K.
FLAGSHIP = dict(
    num_images=20_210,
    slots_per_iter=16,
    max_iters=48_000,
    full_iters=80_000,
    delta=0.85)


class Simulation(NamedTuple):
    """What a simulated training did: virtual epochs of the baseline and its
    own, and the plans of the policy, before annealing cut the last one."""

    target: float
    covered: float
    plans: List[EpochPlan]


def around(values: np.ndarray, noise: float = 0.3) -> Callable:
    """Losses that fall from given values to a fifth, with noise of their
    logarithm anew at each visit."""

    def losses(indices, done, rng):
        decay = 0.2**done
        return values[indices] * decay * rng.lognormal(0, noise, len(indices))

    return losses


def two_values(low_share: float,
               num_images: int,
               rng: np.random.Generator,
               redrawn: float = 0.1) -> Callable:
    """Losses that are low for a share of the images, else high. A visit draws
    the value anew with a probability."""
    # An exact share at the start, so that bounds can be computed from it.
    is_low = rng.permutation(num_images) < round(low_share * num_images)

    def losses(indices, done, rng):
        anew = indices[rng.random(len(indices)) < redrawn]
        is_low[anew] = rng.random(len(anew)) < low_share
        return np.where(is_low[indices], 0.1, 2.)

    return losses


# How the losses of so many images are made: `make(num_images, rng)` gives
# `losses(indices, done, rng)` of images that are visited when the fraction
# `done` of the training is over.
DISTRIBUTIONS = {
    'uniform': lambda n, rng: around(rng.random(n)),
    'log-normal': lambda n, rng: around(rng.lognormal(size=n)),
    'bimodal': lambda n, rng: around(
        np.where(rng.random(n) < 0.3, 2., 0.1), noise=0.5),
    'two values, 90 % low': lambda n, rng: two_values(0.9, n, rng),
    'two values, 50 % low': lambda n, rng: two_values(0.5, n, rng),
    'two values, 50 % low for good': lambda n, rng: two_values(
        0.5, n, rng, redrawn=0),
    'all equal': lambda n, rng: two_values(1, n, rng),
}


def simulate(policy: Callable,
             losses: Callable,
             num_images: int,
             slots_per_iter: int,
             max_iters: int,
             full_iters: int,
             delta: float,
             seed: int = 0) -> Simulation:
    """Chain the plans of a training as sampler and hook do.

    The first pass is full. Each plan begins at the slot where the one before
    it ends, with the scores of all visits until then, and annealing cuts the
    last one. ``slots_per_iter`` is the batch size times ranks, and
    ``full_iters`` are those of the baseline that it is to stand for.
    """
    rng = np.random.default_rng(seed)
    annealing_start = round(delta * max_iters) * slots_per_iter
    end = max_iters * slots_per_iter
    scores = np.ones(num_images, np.float32)
    plan = EpochPlan.full(rng.permutation(num_images))
    plans, position, covered = [], 0, 0.
    while True:
        # Annealing cuts what was pruned; full passes go on in it.
        plan_end = position + len(plan)
        until = end if plan.is_full else annealing_start
        issued = plan.indices[:until - position]
        scores[issued] = losses(issued, position / end, rng)
        covered += len(issued) / len(plan)
        position += len(issued)
        if plan_end >= annealing_start:
            break
        policy.begin_plan(
            Progress(
                spent=position,
                covered=covered * num_images,
                annealing=end - annealing_start,
                length=end))
        plan = policy(scores, rng)
        plans.append(plan)
    covered += (end - position) / num_images
    return Simulation(full_iters * slots_per_iter / num_images, covered, plans)


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    print('| losses | policy | virtual epochs | target | error | '
          'mean kept share | largest weight |\n|---|---|---|---|---|---|---|')
    for name, make in DISTRIBUTIONS.items():
        for policy in (Budget(ratio=0.6), QuantileTiers(), MeanThreshold()):
            losses = make(FLAGSHIP['num_images'], np.random.default_rng(0))
            run = simulate(policy, losses, **FLAGSHIP)
            sizes = [len(plan) for plan in run.plans]
            kept_share = np.mean(sizes) / FLAGSHIP['num_images']
            weight = max(p.weights.max() for p in run.plans)
            print(
                f'| {name} | {type(policy).__name__} | {run.covered:.2f} | '
                f'{run.target:.2f} | {run.covered / run.target - 1:+.1%} | '
                f'{kept_share:.3f} | {weight:.2f} |',
                flush=True)


if __name__ == '__main__':
    main()
