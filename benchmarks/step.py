# Copyright (c) mmib contributors. All rights reserved.
"""Time the iterations of a pruned config against those of the baseline, or
with --policies those of a plain config, pruned by each of them, against its
own.

All trainings run in one process and take turns, an iteration each, so that
whatever else the machine does hits all of them. A step is compared with that
of the baseline in the same turn: the median of these ratios and their
quartiles. The mean step, to that of the baseline, has the plans in it that are
drawn in some of the steps; the wall time saved is what it makes of the
iterations saved.
"""
import argparse
import copy
import os
import os.path as osp
import sys
import tempfile
import time
from typing import Any, Dict, List, Tuple

import numpy as np
import torch
from mmengine.config import Config, DictAction
from mmengine.registry import LOOPS
from mmengine.runner import IterBasedTrainLoop, Runner

import mmib
from mmib_cli.zoo import allow_scoped_bases, resolve_config


@LOOPS.register_module()
class SteppedTrainLoop(IterBasedTrainLoop):
    """A training loop whose iterations are run from outside."""

    def run(self) -> None:
        self.runner.call_hook('before_train')
        self.runner.call_hook('before_train_epoch')

    def run_iter(self, data_batch: Any) -> None:
        call_hook, runner = self.runner.call_hook, self.runner
        known = dict(batch_idx=self._iter, data_batch=data_batch)
        call_hook('before_train_iter', **known)
        outputs = runner.model.train_step(
            data_batch, optim_wrapper=runner.optim_wrapper)
        # The hooks that follow wait for a GPU, as they read losses.
        self._launched = time.perf_counter()
        call_hook('after_train_iter', outputs=outputs, **known)
        self._iter += 1

    def step(self) -> Tuple[float, float, int]:
        """Run an iteration with its data loading: its wall time in seconds,
        that until all but the last hooks is launched on a GPU, and the bytes
        of GPU memory that it takes at most besides what stays allocated."""
        on_gpu = torch.cuda.is_available()
        self.runner.model.train()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        start = time.perf_counter()
        self.run_iter(next(self.dataloader_iterator))
        launched = self._launched - start
        if on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        return seconds, launched, torch.cuda.max_memory_allocated() - allocated


def build_loop(cfg: Config, work_dir: str) -> SteppedTrainLoop:
    """Set a training up to its first iteration."""
    cfg = copy.deepcopy(cfg)
    cfg.work_dir = work_dir
    # MMEngine keeps a visualizer of each name, and with it a folder that the
    # last measurement has removed.
    cfg.visualizer = None
    cfg.experiment_name = '_'.join(work_dir.split(os.sep)[-2:])
    cfg.train_cfg.type = 'SteppedTrainLoop'
    for split in ('val', 'test'):
        for part in ('cfg', 'dataloader', 'evaluator'):
            cfg[f'{split}_{part}'] = None
    runner = Runner.from_cfg(cfg)
    runner.train()
    # torch.compile reads them, and knows no dicts of other classes.
    optimizer = runner.optim_wrapper.optimizer
    optimizer.param_groups[:] = map(dict, optimizer.param_groups)
    return runner.train_loop


def without_infobatch(cfg: Config) -> Config:
    """The same config, as it trains without mmib."""
    cfg = copy.deepcopy(cfg)
    cfg.train_dataloader.sampler.type = 'InfiniteSampler'
    cfg.custom_hooks = [
        hook for hook in cfg.custom_hooks if hook.type != 'InfoBatchHook'
    ]
    return cfg


def pruned_iters(cfg: Config) -> int:
    """Iterations of a config before annealing: without InfoBatchHook, all."""
    hook = next(
        (h for h in cfg.get('custom_hooks', []) if h.type == 'InfoBatchHook'),
        dict(delta=1))
    return int(hook.get('delta', 0.85) * cfg.train_cfg.max_iters)


def check_length(pruned: int, iters: int) -> None:
    """End where so many iterations are more than those that prune."""
    if iters > pruned:
        sys.exit('Error: annealing, which has no cost, begins at '
                 f'{pruned} iterations: take fewer --iters')


def take_turns(configs: Dict[str, Config], iters: int,
               warmup: int) -> Dict[str, np.ndarray]:
    """Let trainings take turns, an iteration each, and give what
    ``SteppedTrainLoop.step`` returns of those after the warm-up, by name, an
    array of shape (3, iters)."""
    check_length(min(map(pruned_iters, configs.values())), iters + warmup)
    with tempfile.TemporaryDirectory() as folder:
        loops = {
            name: build_loop(cfg, osp.join(folder, name))
            for name, cfg in configs.items()
        }
        steps = {name: [] for name in loops}
        for i in range(warmup + iters):
            # A B, B A, ...: neither always runs after the other.
            for name in reversed(loops) if i % 2 else loops:
                steps[name].append(loops[name].step())
    return {name: np.array(of[warmup:]).T for name, of in steps.items()}


def figures(seconds: np.ndarray, baseline: np.ndarray) -> dict:
    """What the wall times of the steps of a training say, each with that of
    the baseline in the same turn."""
    low, middle, high = np.quantile(seconds / baseline, [0.25, 0.5, 0.75])
    return dict(
        iters=len(seconds),
        median=float(np.median(seconds)),
        median_of_baseline=float(np.median(baseline)),
        median_of_ratios=float(middle),
        quartiles_of_ratios=[float(low), float(high)],
        # A plan is drawn in one of many steps, which a median leaves out.
        ratio_of_means=float(np.mean(seconds) / np.mean(baseline)))


def rows_of(iters: Dict[str, int], times: Dict[str,
                                               np.ndarray]) -> List[List[str]]:
    """A table of what the times of the steps say, with a row of titles, from
    the iterations of the whole training of each arm, the baseline first."""
    baseline = next(iter(iters))
    rows = [[
        'arm', 'iterations', 'iterations saved', 'step (ms)',
        f'step / {baseline}', 'quartiles', 'mean step', 'wall time saved'
    ]]
    for name, seconds in times.items():
        found = figures(seconds, times[baseline])
        low, high = found['quartiles_of_ratios']
        share = iters[name] / iters[baseline]
        rows.append([
            name, f'{iters[name]}', f'{1 - share:.1%}',
            f'{1000 * found["median"]:.1f}',
            f'{found["median_of_ratios"]:.3f}', f'{low:.3f} to {high:.3f}',
            f'{found["ratio_of_means"]:.3f}',
            f'{1 - share * found["ratio_of_means"]:.1%}'
        ])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config to time')
    parser.add_argument(
        '--policies', nargs='+', help='names, to prune a plain config by')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        default={},
        help='changes to the config')
    parser.add_argument(
        '--iters', type=int, default=200, help='iterations of each')
    parser.add_argument(
        '--warmup', type=int, default=10, help='iterations not counted')
    args = parser.parse_args()
    allow_scoped_bases()
    cfg = Config.fromfile(
        resolve_config(args.config), import_custom_modules=False)
    cfg.merge_from_dict(args.cfg_options)
    if args.policies:
        configs = dict(full=cfg)
        for name in args.policies:
            configs[name] = mmib.convert(cfg, policy=dict(type=name))
    else:
        configs = dict(baseline=without_infobatch(cfg), mmib=cfg)
    steps = take_turns(configs, args.iters, args.warmup)
    times = {name: seconds for name, (seconds, _, _) in steps.items()}
    iters = {name: cfg.train_cfg.max_iters for name, cfg in configs.items()}
    head, *rows = rows_of(iters, times)
    for row in [head, ['---'] * len(head), *rows]:
        print('| ' + ' | '.join(row) + ' |')


if __name__ == '__main__':
    main()
