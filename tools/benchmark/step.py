# Copyright (c) mmib contributors. All rights reserved.
"""Time the iterations of a pruned config against stock MMSegmentation.

Both trainings run in one process and take turns, an iteration each, so that
whatever else the machine does hits both.
"""
import argparse
import copy
import os.path as osp
import tempfile
import time

import numpy as np
import torch
from mmengine.config import Config, DictAction
from mmengine.registry import LOOPS
from mmengine.runner import IterBasedTrainLoop, Runner

import mmib  # noqa: F401


@LOOPS.register_module()
class SteppedTrainLoop(IterBasedTrainLoop):
    """A training loop whose iterations are run from outside."""

    def run(self):
        self.runner.call_hook('before_train')
        self.runner.call_hook('before_train_epoch')

    def step(self):
        """Run an iteration with its data loading.

        Returns:
            float: Its wall time in seconds.
        """
        self.runner.model.train()
        start = time.perf_counter()
        self.run_iter(next(self.dataloader_iterator))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start


def build_loop(cfg, work_dir):
    """Set a training up to its first iteration."""
    cfg = copy.deepcopy(cfg)
    cfg.work_dir = work_dir
    cfg.experiment_name = osp.basename(work_dir)
    cfg.train_cfg.type = 'SteppedTrainLoop'
    for key in ('val_cfg', 'val_dataloader', 'val_evaluator', 'test_cfg',
                'test_dataloader', 'test_evaluator'):
        cfg[key] = None
    runner = Runner.from_cfg(cfg)
    runner.train()
    return runner.train_loop


def without_infobatch(cfg):
    """The same config, as stock MMSegmentation trains it."""
    cfg = copy.deepcopy(cfg)
    cfg.train_dataloader.sampler.type = 'InfiniteSampler'
    cfg.custom_hooks = [
        hook for hook in cfg.custom_hooks if hook.type != 'InfoBatchHook'
    ]
    return cfg


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config with InfoBatchHook')
    parser.add_argument('--iters', type=int, default=200)
    parser.add_argument(
        '--warmup', type=int, default=10, help='iterations not counted')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    args = parser.parse_args()
    cfg = Config.fromfile(args.config)
    cfg.merge_from_dict(args.cfg_options or {})
    hook = next(h for h in cfg.custom_hooks if h.type == 'InfoBatchHook')
    pruned_iters = int(hook.get('delta', 0.85) * cfg.train_cfg.max_iters)
    if args.warmup + args.iters > pruned_iters:
        parser.error(f'annealing, which has no cost, begins at {pruned_iters} '
                     'iterations: take fewer --iters')

    with tempfile.TemporaryDirectory() as folder:
        loops = dict(
            stock=build_loop(
                without_infobatch(cfg), osp.join(folder, 'stock')),
            mmib=build_loop(cfg, osp.join(folder, 'mmib')))
        times = dict(stock=[], mmib=[])
        for i in range(args.warmup + args.iters):
            # A B, B A, ...: neither always runs after the other.
            for name in sorted(loops, reverse=i % 2 == 0):
                times[name].append(loops[name].step())
    stock, ours = (
        np.array(times[name][args.warmup:]) for name in ('stock', 'mmib'))
    low, high = np.quantile(ours / stock, [0.25, 0.75])
    print(f'iterations of each: {len(ours)}\n'
          f'median, stock: {np.median(stock):.4f} s\n'
          f'median, mmib:  {np.median(ours):.4f} s\n'
          f'ratio of the medians: {np.median(ours) / np.median(stock):.4f}\n'
          f'median of the paired ratios: {np.median(ours / stock):.4f} '
          f'(quartiles {low:.3f} to {high:.3f})')


if __name__ == '__main__':
    main()
