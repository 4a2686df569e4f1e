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


def pruned_iters(cfg):
    """Iterations of a config before annealing: without InfoBatchHook, all."""
    hook = next(
        (h for h in cfg.get('custom_hooks', []) if h.type == 'InfoBatchHook'),
        dict(delta=1))
    return int(hook.get('delta', 0.85) * cfg.train_cfg.max_iters)


def allocated():
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def peak_of(function):
    """Run a function.

    Returns:
        tuple: What it returned, and the bytes of GPU memory it took at most
        on top of those allocated before.
    """
    if not torch.cuda.is_available():
        return function(), 0
    before = allocated()
    torch.cuda.reset_peak_memory_stats()
    result = function()
    return result, torch.cuda.max_memory_allocated() - before


def take_turns(configs, iters, warmup):
    """Let several trainings take turns.

    Args:
        configs (dict): Configs by name.
        iters (int): Iterations of each that count.
        warmup (int): Iterations of each before those.

    Returns:
        tuple[dict, dict]: Wall times in seconds, of shape (iters,), and peak
        bytes of GPU memory (0 without a GPU), by name.
    """
    loops, times, fixed, peaks = {}, {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, cfg in configs.items():
            before = allocated()
            loops[name] = build_loop(cfg, osp.join(folder, name))
            # The first step allocates the state of the optimizer.
            times[name] = [loops[name].step()]
            fixed[name] = allocated() - before
            peaks[name] = 0
        for i in range(warmup + iters - 1):
            # A B, B A, ...: neither always runs after the other.
            for name in reversed(loops) if i % 2 == 0 else loops:
                seconds, peak = peak_of(loops[name].step)
                times[name].append(seconds)
                peaks[name] = max(peaks[name], peak)
    return ({
        name: np.array(times[name][warmup:])
        for name in times
    }, {
        name: fixed[name] + peaks[name]
        for name in fixed
    })


def compare(cfg, iters, warmup):
    """Let a pruned config and stock training take turns.

    Args:
        cfg (Config): Config with InfoBatchHook.
        iters (int): Iterations of each that count.
        warmup (int): Iterations of each before those.

    Returns:
        tuple[dict, dict]: What :func:`take_turns` does, of ``stock`` and
        ``mmib``.
    """
    return take_turns(
        dict(stock=without_infobatch(cfg), mmib=cfg), iters, warmup)


def figures(times):
    """What the wall times of :func:`compare` say.

    Args:
        times (dict): Seconds of ``stock`` and ``mmib``.

    Returns:
        dict: Plain numbers.
    """
    stock, ours = times['stock'], times['mmib']
    ratios = ours / stock
    low, high = np.quantile(ratios, [0.25, 0.75])
    return dict(
        iters=len(ours),
        median_stock=float(np.median(stock)),
        median_mmib=float(np.median(ours)),
        ratio_of_medians=float(np.median(ours) / np.median(stock)),
        median_of_ratios=float(np.median(ratios)),
        quartiles_of_ratios=[float(low), float(high)])


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
    if args.warmup + args.iters > pruned_iters(cfg):
        parser.error('annealing, which has no cost, begins at '
                     f'{pruned_iters(cfg)} iterations: take fewer --iters')

    times, _ = compare(cfg, args.iters, args.warmup)
    result = figures(times)
    low, high = result['quartiles_of_ratios']
    print(f'iterations of each: {result["iters"]}\n'
          f'median, stock: {result["median_stock"]:.4f} s\n'
          f'median, mmib:  {result["median_mmib"]:.4f} s\n'
          f'ratio of the medians: {result["ratio_of_medians"]:.4f}\n'
          f'median of the paired ratios: {result["median_of_ratios"]:.4f} '
          f'(quartiles {low:.3f} to {high:.3f})')


if __name__ == '__main__':
    main()
