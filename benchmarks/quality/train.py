# Copyright (c) mmib contributors. All rights reserved.
"""Train one cell of a comparison, an arm with a seed, and note its figures."""
import copy
import importlib
import os
import os.path as osp
import shutil
import time
import uuid
from typing import Any, Dict, List, Optional, Sequence

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner, set_random_seed
from mmengine.utils import import_modules_from_strings

from mmib.openmmlab.hook import InfoBatchHook

# At the end of each equal part of a training.
EVALUATIONS = 4
# Between two checkpoints.
SECONDS = 60.


class Recorder(Hook):
    """Notes the figures of a training, and saves where it is.

    The random numbers of an iteration follow from the seed and the number of
    the iteration, so that a training that was stopped goes on as if it hadn't
    been.
    """

    # After InfoBatchHook.
    priority = 'LOWEST'

    def __init__(self, metric: str, seed: int, deadline: float) -> None:
        self.metric, self.seed, self.deadline = metric, seed, deadline
        self.evals: List[dict] = []
        self.seconds = 0.

    def before_train_epoch(self, runner: Runner) -> None:
        self._last = self._saved = time.time()
        self._seed(runner.iter)

    def before_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        self._seed(runner.iter)

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        done = runner.iter + 1
        self._seed(done)  # Of the pipeline, which loads the next batch.
        now = time.time()
        self.seconds, self._last = self.seconds + now - self._last, now
        is_due = now > min(self.deadline, self._saved + SECONDS)
        # A training that goes on from here doesn't evaluate at once.
        if is_due and done % runner.train_loop.val_interval and (
                done < runner.max_iters):
            # Whole or not at all.
            runner.save_checkpoint(runner.work_dir, 'next.pth', by_epoch=False)
            os.replace(
                osp.join(runner.work_dir, 'next.pth'),
                osp.join(runner.work_dir, 'last.pth'))
            self._saved = now
            runner.train_loop.stop_training = now > self.deadline

    def after_val_epoch(self, runner: Runner, metrics: dict) -> None:
        self.evals.append({
            'iter': runner.iter,
            self.metric: float(metrics[self.metric])
        })
        if hook := hook_of(runner):
            self.evals[-1]['v'] = hook.worth.value
        self._last = time.time()

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['recorder'] = self.evals, self.seconds

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.evals, self.seconds = checkpoint['recorder']

    def _seed(self, iteration: int) -> None:
        set_random_seed(self.seed * 10**6 + iteration)

    def figures(self, runner: Runner) -> dict:
        """What a line of the results has of a training that has ended."""
        loader = runner.train_dataloader
        found = dict(
            iters=runner.iter,
            batch_size=loader.batch_size,
            num_images=len(loader.dataset),
            seconds=round(self.seconds, 1),
            metric=self.metric,
            quality=self.evals[-1][self.metric],
            evals=self.evals)
        if hook := hook_of(runner):
            v, *interval, _ = hook.worth
            found.update(
                virtual_epochs=hook.run.stream.place.covered /
                hook.run.schedule.pass_length,
                v=v,
                v_interval=interval)
        return found


def hook_of(runner: Runner) -> Optional[InfoBatchHook]:
    """Return the InfoBatchHook of a training, None without one."""
    return next(
        (hook for hook in runner.hooks if isinstance(hook, InfoBatchHook)),
        None)


def train(cfg: Config, metric: str, seed: int, work_dir: str,
          deadline: float) -> Optional[dict]:
    """Train until the end or a deadline, from where the folder has it. At the
    end the folder is removed, and the figures are returned."""
    if time.time() > deadline:
        return None
    cfg = copy.deepcopy(cfg)
    import_modules_from_strings(**cfg.get('custom_imports', dict(imports=[])))
    # MMEngine keeps a logger, a visualizer and more for each name.
    cfg.experiment_name, cfg.visualizer = uuid.uuid4().hex, None
    cfg.randomness = dict(cfg.get('randomness') or {}, seed=seed)
    cfg.log_level = 'ERROR'
    cfg.default_hooks = dict(
        cfg.get('default_hooks', {}), logger=None, checkpoint=None)
    cfg.train_cfg.val_interval = -(-cfg.train_cfg.max_iters // EVALUATIONS)
    cfg.work_dir = work_dir
    checkpoint = osp.join(work_dir, 'last.pth')
    cfg.resume = osp.exists(checkpoint)
    cfg.load_from = checkpoint if cfg.resume else None
    recorder = Recorder(metric, seed, deadline)
    runner = Runner.from_cfg(cfg)
    runner.register_hook(recorder)
    runner.train()
    if runner.iter < runner.max_iters:
        return None
    shutil.rmtree(work_dir)
    return recorder.figures(runner)


def environment(libraries: Sequence[str] = ()) -> Dict[str, Any]:
    """What figures depend on besides the config."""
    names = ('mmib', 'torch', 'mmengine', *libraries)
    versions = {x: importlib.import_module(x).__version__ for x in names}
    on_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if on_gpu else 'cpu'
    threads = torch.get_num_threads()
    return dict(versions=versions, device=device, threads=threads)
