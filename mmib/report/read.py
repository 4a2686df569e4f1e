# Copyright (c) mmib contributors. All rights reserved.
"""What the log files in a work folder tell of a training."""
import glob
import math
import os.path as osp
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
from mmengine.config import Config

from ..pruning import ScoreHistogram
from ..worth import VarianceRatio
from .starts import Start, config_of, is_plan, join, of_newest, read_start

# What a validation line has beside metrics.
_NO_METRICS = {'data_time', 'time', 'step', 'iter', 'epoch', 'lr', 'memory'}


class ReportError(Exception):
    """A folder of which no report can be made: the text says why."""


@dataclass(frozen=True)
class Plan:
    """What the log tells of a virtual epoch.

    Args:
        iteration (int): Iterations before it.
        full_equivalent (float): Iterations of the baseline that cover as many
            passes as those before it.
        kept_share (float): Images in the plan over all.
        threshold (float): Its threshold, 0 if there is none.
        mean_score (float): Mean of all scores.
        tiers (list[tuple[int, int]]): Size and kept images of each tier, by
            increasing score; empty where the log doesn't tell.
        ratio (VarianceRatio, optional): V of the plans before it.
        mean_ratio (VarianceRatio, optional): Mean V of the training until
            then. None where the log doesn't tell.
        reliability (float, optional): Correlation of a score and the next.
        histogram (ScoreHistogram, optional): The scores.
    """

    iteration: int
    full_equivalent: float
    kept_share: float
    threshold: float
    mean_score: float
    tiers: List[Tuple[int, int]] = field(default_factory=list)
    ratio: Optional[VarianceRatio] = None
    mean_ratio: Optional[VarianceRatio] = None
    reliability: Optional[float] = None
    histogram: Optional[ScoreHistogram] = None


class Curve(NamedTuple):
    """Values by iteration, both of shape (P,)."""

    iterations: np.ndarray
    values: np.ndarray


@dataclass
class Run:
    """A training as its log has it.

    Args:
        path (str): Its work folder.
        start (str): Name of the folder in it of the first start.
        config (Config): Its config, empty if it can't be read.
        plans (list[Plan]): Virtual epochs in the log; none without mmib.
        loss (Curve): The loss without weights.
        metrics (dict[str, Curve]): Metrics of the validation, by name.
        last_iter (int): Iterations until the last line.
        max_iters (int, optional): Iterations of the whole training. None of
            one that counts epochs and hasn't ended.
        annealing_iter (int, optional): The first one of annealing.
        policy (str): What draws the plans.
        finished (bool): Whether the training has ended by itself.
        saved_iters (float): What the baseline needs more for as many passes.
        worth (VarianceRatio, optional): Mean V.
        visits (int, optional): Visits of images that full passes would have.
        pruned (int, optional): Those of them that were pruned.
        seconds (float, optional): Wall time of all starts.
        num_starts (int): 1, and how often it was resumed.
        notes (list[str]): Sentences on what is missing and why.
    """

    path: str
    start: str
    config: Config
    plans: List[Plan]
    loss: Curve
    metrics: Dict[str, Curve]
    last_iter: int
    max_iters: Optional[int]
    annealing_iter: Optional[int]
    policy: str
    finished: bool
    saved_iters: float
    worth: Optional[VarianceRatio]
    visits: Optional[int]
    pruned: Optional[int]
    seconds: Optional[float]
    num_starts: int
    notes: List[str]

    @property
    def name(self) -> str:
        """str: The last part of its path."""
        return osp.basename(osp.abspath(self.path))

    @property
    def has_infobatch(self) -> bool:
        """bool: Whether it was trained with InfoBatch."""
        return bool(self.plans or self.policy)

    def full_equivalent(self, iterations: np.ndarray) -> np.ndarray:
        """Iterations of the baseline that cover as many passes.

        Args:
            iterations (np.ndarray): Iterations of the training, of shape
                (P,).

        Returns:
            np.ndarray: Linear between the plans, float64 of shape (P,).
        """
        if not self.plans:
            return np.asarray(iterations, np.float64)
        known = [(plan.iteration, plan.full_equivalent) for plan in self.plans]
        if known[0][0] > 0:
            known.insert(0, (0, 0.))
        if self.last_iter > known[-1][0]:
            known.append((self.last_iter, self.last_iter + self.saved_iters))
        return np.interp(iterations, *np.transpose(known))


def read_run(work_dir: str) -> Run:
    """Read the log files of a training.

    Args:
        work_dir (str): Its work folder.

    Returns:
        Run: What they tell.

    Raises:
        ReportError: If the folder has nothing of a training.
    """
    if not osp.isdir(work_dir):
        raise ReportError(f'{work_dir} is no folder.')
    folders = sorted(
        folder for folder in glob.glob(osp.join(glob.escape(work_dir), '*'))
        if re.fullmatch(r'\d{8}_\d{6}', osp.basename(folder)))
    # Tests of a checkpoint leave folders too.
    every = [read_start(folder) for folder in folders]
    starts, others = of_newest([start for start in every if start.trained])
    scalars, plans = join(starts)
    notes = []
    if others:
        notes.append(
            f'The folder has {len(others)} other training'
            f'{"s" * (len(others) > 1)} too, begun at {_listed(others)}: this '
            'page shows the one that was trained last. Give each training a '
            '`work_dir` of its own.')
    skipped = sum(start.skipped for start in starts)
    if skipped:
        notes.append(
            f'{skipped} line{"s" * (skipped > 1)} of `infobatch.jsonl` and '
            '`scalars.json` can\'t be read, and are left out: the files are '
            'damaged, or of another version.')
    if not starts:
        if not every and not glob.glob(
                osp.join(glob.escape(work_dir), '*.pth')):
            raise ReportError(
                f'{work_dir} has nothing of a training: a report is made of '
                'the work folder of one, which has folders named after times '
                'and checkpoints.')
        notes.append('The log has no line of the training: it was stopped '
                     'before the first one, or its files are missing.')
    elif not scalars:
        notes.append(
            'The log has no losses and metrics. Of several trainings in one '
            'process MMEngine writes those of all into the folder of the '
            'first one, unless each has its own `visualizer.name`.')
    config = config_of(work_dir, starts or every[-1:], notes)
    return _make_run(work_dir, config, starts, scalars, plans, notes)


def _listed(names: List[str]) -> str:
    return ', '.join(names[:3]) + ', ...' * (len(names) > 3)


def _make_run(work_dir: str, config: Config, starts: List[Start],
              scalars: List[dict], lines: List[dict], notes: List[str]) -> Run:
    begin = next((s.begin for s in reversed(starts) if s.begin), {})
    ends = starts[-1].ends if starts else None
    hook, loop = _hook_of(config), config.get('train_cfg') or {}
    steps = [line['step'] for line in scalars]
    steps += [line['iter'] for line in lines]
    last_iter = max(steps, default=begin.get('iter', 0))
    if ends:
        last_iter = ends['iter']
    max_iters = begin.get('max_iters')
    if max_iters is None:
        max_iters = loop.get('max_iters')
    annealing_iter = begin.get('annealing_iter')
    max_epochs = loop.get('max_epochs')
    if max_epochs is not None and begin:
        # Of the baseline. Those of a pruned training follow from its epochs.
        max_iters = last_iter if ends else None
        annealing_epoch = round(hook.get('delta', 0.85) * max_epochs)
        annealing_iter = next(
            (int(line['iter'])
             for line in lines if line['covered'] >= annealing_epoch), None)
    elif annealing_iter is None and max_iters is not None and hook:
        annealing_iter = round(hook.get('delta', 0.85) * max_iters)
    pass_length = begin.get('pass_length')
    plans = [_plan(line, pass_length) for line in lines if pass_length]
    if not pass_length and hook and scalars:
        notes.append('The log has no line of `infobatch.jsonl` with which '
                     'a training begins, as in version 0.1.0 of mmib: '
                     'what was pruned is left out.')
    times = [start.seconds() for start in starts] or [None]
    losses = [(line['step'], line.get('unweighted_loss', line.get('loss')))
              for line in scalars]
    return Run(
        path=work_dir,
        start=begin.get('run') or (starts[0].name if starts else ''),
        config=config,
        plans=plans,
        loss=_curve([p for p in losses if isinstance(p[1], (int, float))]),
        metrics=_metrics(scalars),
        last_iter=last_iter,
        max_iters=max_iters,
        annealing_iter=annealing_iter,
        policy=begin.get('policy') or _in_words(hook.get('policy')),
        finished=ends is not None
        or (max_iters is not None and last_iter >= max_iters > 0),
        saved_iters=_saved(ends, plans, last_iter),
        worth=_worth(ends, plans),
        visits=(ends or {}).get('visits'),
        pruned=(ends or {}).get('pruned'),
        seconds=None if None in times else sum(times) or None,
        num_starts=len(starts),
        notes=notes)


def _hook_of(config: Config) -> dict:
    hooks = config.get('custom_hooks') or []
    return next(
        (hook for hook in hooks
         if isinstance(hook, dict) and hook.get('type') == 'InfoBatchHook'),
        {})


def _in_words(policy: Any) -> str:
    if not isinstance(policy, dict):
        return ''
    others = ', '.join(f'{name}={value}' for name, value in policy.items()
                       if name != 'type')
    return f'{policy.get("type")}({others})'


def _plan(line: dict, pass_length: int) -> Plan:
    histogram = line.get('histogram')
    return Plan(
        iteration=int(line['iter']),
        full_equivalent=line['full_equivalent'],
        kept_share=line['kept'] / pass_length,
        threshold=line['threshold'],
        mean_score=line['mean_score'],
        tiers=[tuple(tier) for tier in line.get('tiers') or []],
        ratio=_ratio(line.get('variance_ratio')),
        mean_ratio=_ratio(line.get('mean_ratio')),
        reliability=line.get('reliability'),
        histogram=histogram and ScoreHistogram(**histogram))


def _ratio(values: Optional[list]) -> Optional[VarianceRatio]:
    if values is None or values[0] is None:
        return None
    return VarianceRatio(*(math.nan if v is None else v for v in values))


def _metrics(scalars: List[dict]) -> Dict[str, Curve]:
    """Metrics by name, mIoU first."""
    points: Dict[str, list] = {}
    for line in scalars:
        if 'loss' in line or 'lr' in line or is_plan(line):
            continue
        for name, value in line.items():
            if name not in _NO_METRICS and isinstance(value, (int, float)):
                points.setdefault(name, []).append((line['step'], value))
    names = sorted(points, key=lambda name: not name.endswith('mIoU'))
    return {name: _curve(points[name]) for name in names}


def _curve(points: List[tuple]) -> Curve:
    iterations, values = np.array(points, np.float64).reshape(-1, 2).T
    return Curve(iterations, values)


def _saved(ends: Optional[dict], plans: List[Plan], last_iter: int) -> float:
    if ends:
        return ends['saved_iters']
    if not plans:
        return 0.
    plan = plans[-1]
    saved = plan.full_equivalent - plan.iteration
    # The open plan covers a full pass in its share of the iterations.
    return saved + (last_iter - plan.iteration) * (1 / plan.kept_share - 1)


def _worth(ends: Optional[dict], plans: List[Plan]) -> Optional[VarianceRatio]:
    if ends:
        return _ratio(ends.get('variance_ratio'))
    return plans[-1].mean_ratio if plans else None
