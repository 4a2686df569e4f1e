# Copyright (c) mmib contributors. All rights reserved.
"""What is noted of the training of a cell."""
import importlib
import time
import zlib
from typing import List, Optional, Sequence

import numpy as np
import torch
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmib.data.datasets import unwrap_repeats
from mmib.hook import InfoBatchHook


class Recorder(Hook):
    """Keeps what a cell is compared by, in ``summary`` after the training.

    The time of a step is that of a whole iteration, with data and all hooks.
    Trained losses are means since the evaluation before.
    """

    # Its `after_train` comes after that of InfoBatchHook.
    priority = 'LOWEST'

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.infobatch: Optional[InfoBatchHook] = None
        self.summary: dict = {}
        self._evals, self._plans, self._means = [], [], []
        self._steps, self._losses = [], []
        self._val_times = np.zeros(2)

    def before_run(self, runner: Runner) -> None:
        for hook in runner.hooks:
            if isinstance(hook, InfoBatchHook):
                self.infobatch = hook
                hook.plan_observers.append(self._note_plan)
        loader = runner.train_dataloader
        self._batch_size = loader.batch_size * get_world_size()
        self._num_images = len(unwrap_repeats(loader.dataset))
        self._start = times()
        self._last = time.perf_counter()

    def _note_plan(self, epoch, plan) -> None:
        self._plans.append(
            dict(
                iter=epoch.start / self._batch_size,
                kept_share=epoch.kept / self._num_images,
                threshold=epoch.threshold))
        self._means.append(self.infobatch.training.planner.mean_ratio)

    def after_train_iter(self, runner, batch_idx, data_batch, outputs) -> None:
        self._iters = runner.iter + 1
        self._losses.append(outputs['loss'].detach())
        now = time.perf_counter()
        self._steps.append(now - self._last)
        self._last = now

    def before_val(self, runner: Runner) -> None:
        self._val_start = times()

    def after_val_epoch(self, runner: Runner, metrics: dict) -> None:
        if self.metric not in metrics:
            raise ValueError(
                f'Arms are compared by their {self.metric}, but the '
                f'evaluation gave {sorted(metrics)}.')
        loss = float(torch.stack(self._losses).mean())
        self._losses.clear()
        figures = {name: float(value) for name, value in metrics.items()}
        self._evals.append(dict(iter=self._iters, train_loss=loss, **figures))

    def after_val(self, runner: Runner) -> None:
        self._val_times += times() - self._val_start
        self._last = time.perf_counter()

    def after_train(self, runner: Runner) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds, cpu_seconds = times() - self._start - self._val_times
        position = runner.iter * self._batch_size
        of_plans = dict(
            virtual_epochs=position / self._num_images, saved_iters=0.)
        if self.infobatch is not None:
            of_plans = self._of_plans(runner.iter)
        self.summary.update(
            iters=runner.iter,
            batch_size=self._batch_size,
            num_images=self._num_images,
            train_seconds=round(seconds, 2),
            train_cpu_seconds=round(cpu_seconds, 2),
            val_seconds=round(self._val_times[0], 2),
            step_ms=round(1000 * float(np.median(self._steps)), 3),
            evals=self._evals,
            weights_crc=weights_crc(runner.model),
            **of_plans)

    def _of_plans(self, iters: int) -> dict:
        planner = self.infobatch.training.planner
        # By epochs, the last batch of an epoch may be smaller.
        position = self.infobatch.training.sampler.position
        # Plans of batches in flight at the end were never begun.
        begun = [plan for plan in self._plans if plan['iter'] < iters]
        pruned = [p['kept_share'] for p in begun if p['kept_share'] < 1]
        starts = [plan['iter'] / iters for plan in self._plans]
        means = [*self._means, planner.mean_ratio]
        return dict(
            virtual_epochs=planner.current.covered_until(position),
            saved_iters=planner.saved_iters(position, iters),
            kept_share=float(np.mean(pruned)) if pruned else 1.,
            variance_ratio=list(planner.mean_ratio.mean()),
            variance_ratio_of_quarters=by_quarter([*starts, 1.], means),
            plans=begun)


def times() -> np.ndarray:
    """Wall time and CPU time in seconds, whose differences count."""
    return np.array([time.perf_counter(), time.process_time()])


def weights_crc(model: nn.Module) -> int:
    """A number that differs if any bit of the weights does."""
    crc = 0
    for tensor in model.state_dict().values():
        crc = zlib.crc32(tensor.cpu().numpy().tobytes(), crc)
    return crc


def by_quarter(starts: Sequence[float], means: Sequence) -> List[float]:
    """Mean V in each quarter of a training, nan where V isn't known.
    ``starts`` are the shares of the training before each plan, and 1;
    ``means`` the mean V of the training until each of these."""
    totals = np.zeros((4, 2))
    for i in range(1, len(starts)):
        middle = (starts[i - 1] + starts[i]) / 2
        totals[min(int(4 * middle), 3)] += np.subtract(means[i][:2],
                                                       means[i - 1][:2])
    visits, sums = totals.T
    return [s / n if n else float('nan') for s, n in zip(sums, visits)]


def environment(libraries: Sequence[str]) -> dict:
    """What figures depend on besides the config: versions of the libraries,
    device and threads."""
    modules = map(importlib.import_module,
                  ('mmib', 'torch', 'mmengine', *libraries))
    return dict(
        versions={module.__name__: module.__version__
                  for module in modules},
        device=torch.cuda.get_device_name()
        if torch.cuda.is_available() else 'cpu',
        threads=torch.get_num_threads())
