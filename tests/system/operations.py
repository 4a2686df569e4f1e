# Copyright (c) mmib contributors. All rights reserved.
"""How many operations torch dispatches in a step of a training."""
from mmengine.hooks import Hook
from torch.utils._python_dispatch import TorchDispatchMode


class Counter(TorchDispatchMode):
    """Notes the name of each operation."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations.append(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


class Mark(Hook):
    """Notes how many operations there were until an iteration began."""

    priority = 'HIGHEST'

    def __init__(self, operations):
        self.operations = operations
        self.marks = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.marks.append(len(self.operations))


def operations_per_step(runner, first, last):
    """Train, and return the mean over some iterations.

    Args:
        runner (Runner): The runner of a training on the CPU, without workers.
        first (int): Number of the first iteration that counts, from 0.
        last (int): Number of the one after the last.
    """
    with Counter() as counter:
        mark = Mark(counter.operations)
        runner.register_hook(mark)
        runner.train()
    return (mark.marks[last] - mark.marks[first]) / (last - first)
