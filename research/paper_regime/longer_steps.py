# Copyright (c) mmib contributors. All rights reserved.
"""``research.lengths.on_gpu``, also for arms with longer steps.

    python -m research.paper_regime.longer_steps DATA_SET --out RESULTS ...

The arm ``longer_steps`` is a plain training whose steps are 1.8 times as long,
and whose weight decay is 1.8 times as weak, where others prune. For SGD this
is a weight of 1.8 for all losses, the mean weight of the plans of `Neyman` and
of pruning at random. No image is left out, and none counts more than another.
"""
import copy
from dataclasses import replace
from unittest import mock

import numpy as np

from benchmarks.quality import run as cells_of
from research.lengths import on_gpu


class Stream(on_gpu.Stream):
    """The slots that a training sees, with weights in some of the steps."""

    weight, steps = np.float32(1), range(0)

    def deal(self):
        dealt = super().deal()
        if self.weight == 1:
            return dealt
        steps = self.step + np.arange(len(dealt)) // self.batch
        is_longer = (steps >= self.steps.start) & (steps < self.steps.stop)
        return replace(
            dealt, weights=np.where(is_longer, self.weight, np.float32(1)))


class Cell(on_gpu.Cell):
    """A training. A factor of the learning rate of some steps, with a weaker
    weight decay there, becomes a weight."""

    def __init__(self, cfg, *args):
        cfg = copy.deepcopy(cfg)
        constants = cfg.param_scheduler[2:]
        cfg.param_scheduler = cfg.param_scheduler[:2]
        if constants:
            before, after, _ = constants
            cfg.optim_wrapper.optimizer.lr *= before.factor
        super().__init__(cfg, *args)
        if constants:
            self.slots.weight = np.float32(1 / before.factor)
            self.slots.steps = range(before.end - 1, after.begin)


if __name__ == '__main__':
    with mock.patch.object(cells_of, 'run', on_gpu.run), mock.patch.object(
            on_gpu, 'Stream', Stream), mock.patch.object(on_gpu, 'Cell', Cell):
        cells_of.main()
