# Copyright (c) mmib contributors. All rights reserved.
"""``compile`` compiles in the first steps, and never again. Backends that
generate code need a compiler: ``test_gpu.py``."""
import torch
from mmengine.hooks import Hook
from torch._dynamo.utils import counters

from .small_training import MAX_ITERS, build, column, train


class Frames(Hook):
    """Notes how many frames were compiled until an iteration began."""

    def __init__(self):
        self.counts = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.counts.append(counters['frames']['total'])


def test_nothing_is_compiled_again(tmp_path):
    """Plans of several lengths, and annealing."""
    expected = train(build(tmp_path / 'eager'))
    torch._dynamo.reset()
    counters.clear()
    runner = build(tmp_path, compile=dict(backend='aot_eager'))
    frames = Frames()
    runner.register_hook(frames)
    steps = train(runner)
    assert len(frames.counts) == MAX_ITERS
    # The optimizer has no state in its first step.
    assert frames.counts[2] == frames.counts[-1] > 0
    for name in ('images', 'weights', 'scores', 'norms', 'loss'):
        torch.testing.assert_close(
            torch.tensor(column(steps, name)),
            torch.tensor(column(expected, name)))
