# Copyright (c) mmib contributors. All rights reserved.
"""Set a pruned training up whose gradients and visits are looked at."""
import argparse
import math
import os.path as osp
from typing import Any, Dict, Optional, Tuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from mmengine.config import Config, DictAction
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

import mmib
from mmib.config.parts import infobatch_hooks
from mmib.config.zoo import allow_scoped_bases, resolve_config
from mmib.hook import InfoBatchHook
from mmib.losses import InfoBatchLoss

# Share of the pixels, those with the highest losses.
HIGHEST = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Let a command choose the config."""
    parser.add_argument('config', help='config of the full training')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--work-dir', default='work_dirs/pruned_training')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, default={})


def build_runner(args: argparse.Namespace,
                 iters: Optional[int] = None,
                 **conversion: Any) -> Runner:
    """Build the runner of a config that is converted to InfoBatch. It doesn't
    validate until the end, and with ``iters`` it ends early."""
    allow_scoped_bases()
    cfg = Config.fromfile(resolve_config(args.config))
    cfg.merge_from_dict(args.cfg_options)
    cfg = mmib.convert(cfg, **conversion)
    cfg.train_cfg.max_iters = iters or cfg.train_cfg.max_iters
    cfg.train_cfg.val_interval = cfg.train_cfg.max_iters + 1
    cfg.work_dir = args.work_dir
    cfg.randomness = dict(seed=args.seed)
    return Runner.from_cfg(cfg)


def add_arm_arguments(parser: argparse.ArgumentParser, out: str,
                      arms: Dict[str, Any]) -> None:
    """Let a command choose which arms are trained with which seeds."""
    parser.add_argument('--out', default=out)
    parser.add_argument(
        '--work-dir', default=osp.join('work_dirs', osp.basename(out)))
    parser.add_argument('--arms', nargs='+', default=[*arms], choices=arms)
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, default={})


def line_of(arm: str,
            seed: int,
            config: str,
            runner: Runner,
            libraries: str = '') -> dict:
    """What every line of the results has of a training that has ended."""
    line = dict(
        arm=arm,
        seed=seed,
        config=config,
        versions=f'torch {torch.__version__}, {libraries}mmib '
        f'{mmib.__version__}',
        iters=runner.iter)
    if infobatch_hooks(runner.cfg):
        ratio = infobatch_hook(runner).training.planner.mean_ratio.mean()
        line['variance_ratio'] = [*ratio][:3]
    return line


def infobatch_hook(runner: Runner) -> InfoBatchHook:
    """The hook of a training."""
    return next(h for h in runner.hooks if isinstance(h, InfoBatchHook))


def means_of_images(losses: Tensor, labels: Tensor,
                    num_classes: int) -> Tuple[Tensor, Tensor]:
    """Mean loss of each image over its labelled pixels, and over its classes,
    so that each counts alike, of shape (B,). 0 where nothing is labelled."""
    member = F.one_hot(
        labels.flatten(1).clamp(max=num_classes), num_classes + 1)
    member = member[..., :-1].float()
    counts = member.sum(1)
    sums = torch.einsum('bp,bpc->bc', losses.flatten(1), member)
    of_classes = (sums / counts.clamp(1)).sum(1)
    return (sums.sum(1) / counts.sum(1).clamp(1),
            of_classes / (counts > 0).sum(1).clamp(1))


class VisitRecorder(Hook):
    """Notes each visit of an image to a training.

    In annealing nothing is scored, so ``loss`` and ``norm`` are NaN there.
    ``labelled``, ``balanced`` and ``highest`` are of all visits: losses of the
    decode head that are means over the labelled pixels, over the classes, and
    over the highest 5 % of the pixels.
    """

    # Before InfoBatchHook forgets the batch.
    priority = 'HIGH'

    def __init__(self) -> None:
        self._visits, self._starts, self._means = [], [], {}

    @property
    def visits(self) -> pd.DataFrame:
        """pd.DataFrame: A row for each visit, in their order: iteration,
        number of the plan, image, weight, score, norm, mean losses."""
        return pd.concat(self._visits, ignore_index=True)

    def before_train(self, runner: Runner) -> None:
        self._infobatch = infobatch_hook(runner)
        self._infobatch.plan_observers.append(
            lambda epoch, plan: self._starts.append(epoch.start))

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter == 0:  # The losses are wrapped by now.
            wrapped = [
                m for m in runner.model.modules()
                if isinstance(m, InfoBatchLoss)
            ]
            wrapped[0].register_forward_pre_hook(self._note_means)

    def _note_means(self, _, args) -> None:
        pred, target = args[0].detach(), args[1]
        losses = F.cross_entropy(
            pred, target, ignore_index=255, reduction='none')
        pixels = losses.flatten(1)
        highest = pixels.topk(math.ceil(HIGHEST * pixels.shape[1])).values
        self._means = dict(
            zip(('labelled', 'balanced'),
                means_of_images(losses, target, pred.shape[1])),
            highest=highest.mean(1))

    def after_train_iter(self,
                         runner,
                         batch_idx,
                         data_batch=None,
                         outputs=None) -> None:
        hook = self._infobatch
        batch, slots = hook.batch, hook.training.own_slots
        size = len(slots)
        positions = hook.training.sampler.position - size + np.arange(size)
        is_scored = batch.weights is not None
        visits = dict(
            iter=runner.iter,
            plan=np.searchsorted(self._starts, positions, 'right') - 1,
            image=slots.indices,
            weight=slots.weights,
            loss=batch.scores.cpu().numpy() if is_scored else np.nan,
            norm=batch.norms.cpu().numpy() if is_scored else np.nan,
            **{
                name: mean.cpu().numpy()
                for name, mean in self._means.items()
            })
        self._visits.append(pd.DataFrame(visits))


def rounded(value: Any) -> Any:
    """Short numbers, wherever they are in a line of the results."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return round(float(value), 5) if isinstance(value, float) else value
