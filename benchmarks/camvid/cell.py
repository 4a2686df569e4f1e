# Copyright (c) mmib contributors. All rights reserved.
"""Train one cell of a comparison: one arm with one seed.

``run.py`` starts it for each cell, in a process of its own.
"""
import argparse
import json
import time
import zlib

import mmcv
import mmengine
import mmseg
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

import mmib
from mmib.datasets import unwrap_repeats
from mmib.hook import InfoBatchHook
from mmib.pruning import ScoreHistogram


class Recorder(Hook):
    """Keeps what a cell is compared by.

    The time of a step is that of a whole iteration, with data and all hooks.
    Losses are those that are trained: means since the evaluation before.
    """

    # Its `after_train` comes after that of InfoBatchHook.
    priority = 'LOWEST'

    def __init__(self):
        self.infobatch = None
        self._evals, self._plans, self._pruned = [], [], []
        self._steps, self._losses = [], []
        self._val_times = np.zeros(2)

    def before_run(self, runner):
        for hook in runner.hooks:
            if isinstance(hook, InfoBatchHook):
                self.infobatch = hook
                hook.plan_observers.append(self._note_plan)
        loader = runner.train_dataloader
        self._batch_size = loader.batch_size * get_world_size()
        self._num_images = len(unwrap_repeats(loader.dataset))
        self._start = times()
        self._last = time.perf_counter()

    def _note_plan(self, epoch, plan):
        iteration = epoch.start / self._batch_size
        self._plans.append(
            dict(
                iter=iteration,
                kept_share=epoch.size / self._num_images,
                threshold=epoch.threshold,
                variance_ratio=epoch.ratio and tuple(epoch.ratio),
                reliability=epoch.reliability,
                tiers=[tuple(tier) for tier in epoch.tiers],
                mean_score=float(self.infobatch.scores.numpy().mean())))
        # Annealing cuts the last plan short.
        if plan is not None and len(plan) == epoch.size:
            self._pruned.append(
                (iteration, self.infobatch.planner.plan_scores, plan))

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self._losses.append(outputs['loss'].detach())
        now = time.perf_counter()
        self._steps.append(now - self._last)
        self._last = now

    def before_val(self, runner):
        self._val_start = times()

    def after_val_epoch(self, runner, metrics):
        if 'mIoU' not in metrics:
            raise ValueError(
                'Arms are compared by their mIoU, but the evaluation gave '
                f"{sorted(metrics)}: add 'mIoU' to "
                '`val_evaluator.iou_metrics`.')
        figures = {name: float(value) for name, value in metrics.items()}
        loss = float(torch.stack(self._losses).mean())
        self._evals.append(dict(iter=runner.iter, **figures, loss=loss))
        self._losses.clear()

    def after_val(self, runner):
        self._val_times += times() - self._val_start
        self._last = time.perf_counter()

    def after_train(self, runner):
        seconds, cpu_seconds = times() - self._start - self._val_times
        position = runner.iter * self._batch_size
        covered, saved = position / self._num_images, 0.
        mean_ratio = None
        if self.infobatch is not None:
            planner = self.infobatch.planner
            covered = planner.epoch.covered_until(position)
            mean_ratio = planner.mean_ratio.mean()
            saved = planner.saved_iters(position)
        # The first plan, one mid-way and the last.
        last = len(self._pruned) - 1
        numbers = sorted({0, last // 2, last}) if self._pruned else []
        histograms = []
        for iteration, scores, plan in (self._pruned[i] for i in numbers):
            histogram = ScoreHistogram.of(scores, plan)
            histograms.append(dict(iter=iteration, **histogram._asdict()))
        self.summary = dict(
            iters=runner.iter,
            batch_size=self._batch_size,
            num_images=self._num_images,
            virtual_epochs=covered,
            saved_iters=saved,
            variance_ratio=mean_ratio and tuple(mean_ratio),
            train_seconds=seconds,
            train_cpu_seconds=cpu_seconds,
            val_seconds=self._val_times[0],
            step_seconds=float(np.median(self._steps)),
            evals=self._evals,
            # Those of batches in flight at the end were never begun.
            plans=[p for p in self._plans if p['iter'] < runner.iter],
            histograms=histograms,
            weights_crc=weights_crc(runner.model))


def times() -> np.ndarray:
    """Wall time and CPU time in seconds, whose differences count."""
    return np.array([time.perf_counter(), time.process_time()])


def weights_crc(model: nn.Module) -> int:
    """A number that differs if any bit of the weights does."""
    crc = 0
    for tensor in model.state_dict().values():
        crc = zlib.crc32(tensor.cpu().numpy().tobytes(), crc)
    return crc


def environment() -> dict:
    """What figures depend on, besides the config."""
    return dict(
        versions={
            module.__name__: module.__version__
            for module in (mmib, torch, mmengine, mmcv, mmseg)
        },
        device=torch.cuda.get_device_name()
        if torch.cuda.is_available() else 'cpu',
        threads=torch.get_num_threads())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config with a seed and a work_dir')
    parser.add_argument('out', help='file for its figures, as JSON')
    args = parser.parse_args()
    recorder = Recorder()
    runner = Runner.from_cfg(Config.fromfile(args.config))
    runner.register_hook(recorder)
    runner.train()
    with open(args.out, 'w', encoding='utf-8') as file:
        json.dump(dict(**environment(), **recorder.summary), file)


if __name__ == '__main__':
    main()
