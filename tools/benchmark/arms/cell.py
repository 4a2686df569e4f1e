# Copyright (c) mmib contributors. All rights reserved.
"""Train one cell of a comparison: one arm with one seed.

``run_arms.py`` starts it for each cell, in a process of its own.
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

import mmib
from mmib.datasets import one_pass
from mmib.hook import InfoBatchHook

NUM_BINS = 30


class Recorder(Hook):
    """Keeps what a cell is compared by.

    It stands between sampler and planner, and passes every plan on as it is.
    The time of a step is that of a whole iteration, with data and all hooks.
    The losses are those that are trained, so with the weights: means since
    the evaluation before.
    """

    # `before_train` comes after that of InfoBatchHook.
    priority = 'LOWEST'

    def __init__(self):
        self.evals = []
        self.plans = []
        self.histograms = []
        self.infobatch = None
        self._steps = []
        self._losses = []
        self._pruned = []
        self._val_seconds = self._val_cpu_seconds = 0.

    def before_run(self, runner):
        self._start = self._last = time.perf_counter()
        self._cpu_start = time.process_time()

    def before_train(self, runner):
        self.infobatch = next(
            (hook for hook in runner.hooks if isinstance(hook, InfoBatchHook)),
            None)
        if self.infobatch is not None:
            self.infobatch.sampler.connect(self._draw_plan)

    def _draw_plan(self, start, rng):
        """What the sampler calls, with a note of what it got."""
        planner = self.infobatch.planner
        plan = planner(start, rng)
        size = planner.newest.size
        self.plans.append(
            dict(
                iter=start / planner.slots_per_iter,
                kept_share=size / planner.num_samples,
                threshold=planner.newest.threshold,
                mean_score=float(self.infobatch.scores.numpy().mean())))
        # Annealing cuts the last plan short.
        if plan is not None and len(plan) == size:
            self._pruned.append(
                (self.plans[-1]['iter'], planner.plan_scores, plan))
        return plan

    def after_train_iter(self,
                         runner,
                         batch_idx,
                         data_batch=None,
                         outputs=None):
        self._losses.append(outputs['loss'].detach())
        now = time.perf_counter()
        self._steps.append(now - self._last)
        self._last = now

    def before_val(self, runner):
        self._val_start = time.perf_counter()
        self._val_cpu_start = time.process_time()

    def after_val_epoch(self, runner, metrics=None):
        if 'mIoU' not in metrics:
            raise ValueError(
                'Arms are compared by their mIoU, but the evaluation gave '
                f"{sorted(metrics)}: add 'mIoU' to "
                '`val_evaluator.iou_metrics`.')
        loss = float(torch.stack(self._losses).mean())
        self._losses.clear()
        self.evals.append(
            dict(
                iter=runner.iter,
                **{
                    name: float(value)
                    for name, value in metrics.items()
                },
                loss=loss))

    def after_val(self, runner):
        self._last = time.perf_counter()
        self._val_seconds += self._last - self._val_start
        self._val_cpu_seconds += time.process_time() - self._val_cpu_start

    def after_train(self, runner):
        train_seconds = time.perf_counter() - self._start - self._val_seconds
        loader = runner.train_dataloader
        num_images = len(one_pass(loader.dataset))
        batch_size = loader.batch_size * get_world_size()
        position = runner.iter * batch_size
        covered, saved = position / num_images, 0.
        if self.infobatch is not None:
            planner = self.infobatch.planner
            covered = planner.epoch.covered_until(position)
            saved = planner.saved_iters(planner.epoch, position)
        # The first plan, one mid-way and the last.
        last = len(self._pruned) - 1
        for number in sorted({0, last // 2, last} if self._pruned else ()):
            self.histograms.append(histogram(*self._pruned[number]))
        self.summary = dict(
            iters=runner.iter,
            batch_size=batch_size,
            num_images=num_images,
            virtual_epochs=covered,
            saved_iters=saved,
            train_seconds=train_seconds,
            train_cpu_seconds=time.process_time() - self._cpu_start -
            self._val_cpu_seconds,
            val_seconds=self._val_seconds,
            step_seconds=float(np.median(self._steps)),
            evals=self.evals,
            # Those of batches in flight at the end were never begun.
            plans=[p for p in self.plans if p['iter'] < runner.iter],
            histograms=self.histograms,
            weights_crc=weights_crc(runner.model))


def histogram(iteration, scores, plan):
    """Count the images of a plan by their scores.

    Args:
        iteration (float): Where the plan begins.
        scores (np.ndarray): Score of each index, of shape (N,).
        plan (EpochPlan): What was drawn from them.

    Returns:
        dict: Images in each bin: all of them, those in the plan, and those in
        the plan by their weights.
    """
    edges = np.histogram_bin_edges(scores, NUM_BINS)
    kept = scores[plan.indices]
    return dict(
        iter=iteration,
        edges=edges.tolist(),
        all=np.histogram(scores, edges)[0].tolist(),
        kept=np.histogram(kept, edges)[0].tolist(),
        weighted=np.histogram(kept, edges, weights=plan.weights)[0].tolist())


def weights_crc(model):
    """A number that differs if any bit of the weights does."""
    crc = 0
    for tensor in model.state_dict().values():
        crc = zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes(),
                         crc)
    return crc


def environment():
    """What figures depend on, besides the config.

    Returns:
        dict: Versions, device, and number of threads.
    """
    return dict(
        versions=dict(
            mmib=mmib.__version__,
            torch=torch.__version__,
            mmengine=mmengine.__version__,
            mmcv=mmcv.__version__,
            mmseg=mmseg.__version__),
        device=('cpu' if not torch.cuda.is_available() else
                torch.cuda.get_device_name()),
        threads=torch.get_num_threads())


def train(cfg):
    """Train a cell.

    Args:
        cfg (Config): Config of the arm, with a seed and a work directory.

    Returns:
        dict: What the results file holds of it, in plain values.
    """
    recorder = Recorder()
    runner = Runner.from_cfg(cfg)
    runner.register_hook(recorder)
    runner.train()
    return dict(**environment(), **recorder.summary)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config of the cell')
    parser.add_argument('out', help='file for its figures')
    args = parser.parse_args()
    result = train(Config.fromfile(args.config))
    with open(args.out, 'w', encoding='utf-8') as file:
        json.dump(result, file)


if __name__ == '__main__':
    main()
