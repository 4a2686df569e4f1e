# Copyright (c) mmib contributors. All rights reserved.
"""How many operations torch dispatches in a step of a training."""
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers.segmentors import train_and_note


class Counter(TorchDispatchMode):
    """Counts operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **kwargs or {})


def operations_per_step(runner, first=150, last=214):
    """Train, and return the mean over some iterations.

    Args:
        runner (Runner): The runner of a training on the CPU, without workers.
        first (int): Number of the first iteration that counts, from 0.
            Defaults to 150.
        last (int): Number of the one after the last. Defaults to 214.
    """
    with Counter() as counter:
        counts = train_and_note(runner, lambda *step: counter.count)
    return (counts[last] - counts[first]) / (last - first)


def assert_few_more(baseline, pruned, at_most=30, **iterations):
    """A step dispatches few operations more than the baseline's. On a GPU each
    costs some microseconds of host time."""
    counts = [
        operations_per_step(runner, **iterations)
        for runner in (baseline, pruned)
    ]
    assert counts[1] - counts[0] <= at_most, counts
