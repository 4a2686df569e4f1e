# Copyright (c) mmib contributors. All rights reserved.
"""What a step dispatches more than the baseline's. On a GPU each operation
costs some microseconds of host time."""
import pytest
from mmengine.hooks import Hook
from torch.utils._python_dispatch import TorchDispatchMode

from .small_training import BASELINE, build

# Iterations of which operations are counted: within the pruned part.
FIRST, LAST = 150, 214


class Counter(TorchDispatchMode):

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


def operations_per_step(runner):
    """Mean over some iterations in which plans are drawn too."""
    with Counter() as counter:
        mark = Mark(counter.operations)
        runner.register_hook(mark)
        runner.train()
    first, last = mark.marks[FIRST], mark.marks[LAST]
    return (last - first) / (LAST - FIRST)


@pytest.mark.parametrize('policy', ['Neyman', 'MeanThreshold'])
def test_segmentation(tmp_path, policy):
    """Two heads."""
    counts = [
        operations_per_step(
            build(
                tmp_path / str(len(changes)), **{
                    'train_cfg.max_iters': 300,
                    'train_dataloader.dataset.size': 400,
                    **changes
                })) for changes in (BASELINE, {
                    'custom_hooks.0.policy.type': policy
                })
    ]
    assert counts[1] - counts[0] <= 30, counts
