# Copyright (c) mmib contributors. All rights reserved.
"""What the log files in a work folder tell of a training."""
import glob
import math
import os
import os.path as osp
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from ..pruning import ScoreHistogram
from ..worth import VarianceRatio
from .config import ConfigError, read_config
from .lines import read_records

# What a validation line has beside metrics.
_NO_METRICS = {'data_time', 'time', 'step', 'iter', 'epoch', 'lr', 'memory'}
_TIME = re.compile(r'^(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d) - ', re.MULTILINE)


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
        config (dict): Its config, empty if it can't be read.
        plans (list[Plan]): Virtual epochs in the log; none without mmib.
        loss (Curve): The loss without weights.
        metrics (dict[str, Curve]): Metrics of the validation, by name.
        last_iter (int): Iterations until the last line.
        max_iters (int, optional): Iterations of the whole training. None of
            one that counts epochs and hasn't ended.
        annealing_iter (int, optional): The first one of annealing.
        pass_length (int, optional): Images of a full pass.
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
    config: dict
    plans: List[Plan]
    loss: Curve
    metrics: Dict[str, Curve]
    last_iter: int
    max_iters: Optional[int]
    annealing_iter: Optional[int]
    pass_length: Optional[int]
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


@dataclass
class _Start:
    """The lines of one start of a training."""

    folder: str
    begin: Optional[dict]
    ends: Optional[dict]
    plans: List[dict]
    scalars: List[dict]
    skipped: int

    @property
    def name(self) -> str:
        return osp.basename(self.folder)

    @property
    def trained(self) -> bool:
        """Whether it trained on anything. A training that is resumed after its
        end writes its total again."""
        return bool(
            self.begin or self.plans or not all(map(_is_total, self.scalars)))

    def training(self, last: str) -> str:
        """Name of the first start of its training.

        Args:
            last (str): That of the start before.
        """
        if self.begin is not None:
            resumes = self.begin['iter'] > 0
            return self.begin.get('run') or (last if resumes else self.name)
        try:
            resumes = read_config(_config_in(self.folder)).get('resume')
        except (OSError, ConfigError):
            resumes = True
        return last if resumes else self.name

    def cut(self) -> Tuple[float, float]:
        """From which plan and which line on it replaces what an earlier start
        has."""
        if self.begin is not None:
            return self.begin['iter'], self.begin['iter'] + 1
        steps = [line['step'] for line in self.scalars]
        first = min(steps, default=math.inf)
        return first, first


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
    trained = [start for start in map(_read_start, folders) if start.trained]
    starts, others = _of_newest(trained)
    scalars, plans = _join(starts)
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
        if not folders and not glob.glob(
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
    config = _config_of(
        work_dir, starts[-1].folder if starts else (folders or [None])[-1],
        notes)
    return _make_run(work_dir, config, starts, scalars, plans, notes)


def _read_start(folder: str) -> _Start:
    begin = ends = None
    plans = []
    records, skipped = read_records(osp.join(folder, 'infobatch.jsonl'))
    for line in records:
        if 'begins' in line:
            begin = line['begins']
        elif 'ends' in line:
            ends = line['ends']
        elif 'kept' in line:
            plans.append(line)
    records, more = read_records(osp.join(folder, 'vis_data', 'scalars.json'))
    scalars = [line for line in records if 'step' in line]
    _count_iterations(scalars)
    return _Start(folder, begin, ends, plans, _of_one_training(scalars),
                  skipped + more)


def _count_iterations(scalars: List[dict]) -> None:
    """Give each line the iterations before it. Validations of trainings that
    count epochs have the epoch as ``step``."""
    # Without mmib all epochs are equally long.
    firsts: Dict[int, int] = {}
    for line in scalars:
        if 'iter' in line and 'epoch' in line:
            firsts.setdefault(line['epoch'], line['iter'])
    length = next((firsts[epoch + 1] - first
                   for epoch, first in firsts.items() if epoch + 1 in firsts),
                  0)
    if any(map(_is_plan, scalars)):
        length = 0
    last = 0
    open_lines: List[dict] = []
    for line in scalars:
        if _is_plan(line):
            # That of the next epoch, or the total: nothing was trained since.
            for validation in open_lines:
                validation['step'] = max(line['step'], last)
            open_lines = []
        elif 'iter' in line:
            line['step'] = line['iter']
            last, open_lines = max(line['iter'], last), []
        elif 0 < line['step'] < last:
            line['step'] = max(length * line['step'], last)
            open_lines.append(line)
        else:
            line['step'] = max(line['step'], last)


def _of_one_training(scalars: List[dict]) -> List[dict]:
    """The lines until another training begins."""
    last = -1
    for i, line in enumerate(scalars):
        if 'loss' not in line:
            continue
        if line['step'] <= last:
            # Its plans come before its first loss.
            while scalars[i - 1]['step'] < line['step']:
                i -= 1
            return scalars[:i]
        last = line['step']
    return scalars


def _of_newest(starts: List[_Start]) -> Tuple[List[_Start], List[str]]:
    """The starts of the newest training; and the first ones of all others of
    which the folder has lines."""
    names: List[str] = []
    for start in starts:
        names.append(start.training(names[-1] if names else start.name))
    newest = [s for s, name in zip(starts, names) if name == names[-1]]
    others = dict.fromkeys(name for s, name in zip(starts, names)
                           if name != names[-1] and (s.plans or s.scalars))
    return newest, list(others)


def _listed(names: List[str]) -> str:
    return ', '.join(names[:3]) + ', ...' * (len(names) > 3)


def _join(starts: List[_Start]) -> Tuple[List[dict], List[dict]]:
    """The lines of all starts. From its first iteration on, a later start
    replaces what an earlier one had."""
    scalars: List[dict] = []
    plans: List[dict] = []
    for start in starts:
        first_plan, first_line = start.cut()
        plans = [line for line in plans if line['iter'] < first_plan]
        scalars = [
            line for line in scalars
            if line['step'] < (first_plan if _is_plan(line) else first_line)
        ]
        plans += start.plans
        scalars += start.scalars
    return scalars, plans


def _is_plan(line: dict) -> bool:
    return any(name.startswith('infobatch/') for name in line)


def _is_total(line: dict) -> bool:
    """Whether it is the last line of a training, which has nothing else."""
    return line.keys() == {'infobatch/saved_iters', 'step'}


def _config_in(folder: str) -> str:
    return osp.join(folder, 'vis_data', 'config.py')


def _config_of(work_dir: str, folder: Optional[str], notes: List[str]) -> dict:
    paths = glob.glob(osp.join(glob.escape(work_dir), '*.py'))
    paths.sort(key=osp.getmtime, reverse=True)
    if folder is not None:
        paths.insert(0, _config_in(folder))
    reason = 'the folder has none'
    for path in paths:
        try:
            return read_config(path)
        except OSError:
            continue
        except ConfigError as error:
            reason = str(error)
    notes.append(f'The config isn\'t known: {reason}.')
    return {}


def _make_run(work_dir: str, config: dict, starts: List[_Start],
              scalars: List[dict], lines: List[dict], notes: List[str]) -> Run:
    begin = next((s.begin for s in reversed(starts) if s.begin), {})
    ends = starts[-1].ends if starts else None
    hook = _hook_of(config)
    steps = [line['step'] for line in scalars]
    steps += [line['iter'] for line in lines]
    last_iter = max(steps, default=begin.get('iter', 0))
    if ends:
        last_iter = ends['iter']
    max_iters = begin.get('max_iters')
    if max_iters is None:
        max_iters = _get(config, 'train_cfg', 'max_iters')
    annealing_iter = begin.get('annealing_iter')
    max_epochs = _get(config, 'train_cfg', 'max_epochs')
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
    if not plans:
        plans = _plans_of_scalars(scalars)
        if plans:
            reason = ('The first line of `infobatch.jsonl` can\'t be read'
                      if lines else 'This is a training of an older mmib, '
                      'without `infobatch.jsonl`')
            notes.append(f'{reason}: tiers, histograms of scores and V are '
                         'left out.')
    metrics = _metrics(scalars)
    losses = [(line['step'], line.get('unweighted_loss', line.get('loss')))
              for line in scalars]
    return Run(
        path=work_dir,
        start=begin.get('run') or (starts[0].name if starts else ''),
        config=config,
        plans=plans,
        loss=_curve([p for p in losses if isinstance(p[1], (int, float))]),
        metrics=metrics,
        last_iter=last_iter,
        max_iters=max_iters,
        annealing_iter=annealing_iter,
        pass_length=pass_length,
        policy=begin.get('policy') or _in_words(hook.get('policy')),
        finished=ends is not None
        or (max_iters is not None and last_iter >= max_iters > 0),
        saved_iters=_saved(ends, scalars, plans, last_iter),
        worth=_worth(ends, plans),
        visits=(ends or {}).get('visits'),
        pruned=(ends or {}).get('pruned'),
        seconds=_seconds(starts),
        num_starts=len(starts),
        notes=notes)


def _get(config: dict, *names: str) -> Any:
    for name in names:
        config = config.get(name) if isinstance(config, dict) else None
    return config


def _hook_of(config: dict) -> dict:
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


def _plans_of_scalars(scalars: List[dict]) -> List[Plan]:
    plans = []
    for line in scalars:
        if 'infobatch/kept_share' not in line:
            continue
        plans.append(
            Plan(
                iteration=line['step'],
                full_equivalent=line['step'] + line['infobatch/saved_iters'],
                kept_share=line['infobatch/kept_share'],
                threshold=line['infobatch/threshold'],
                mean_score=line['infobatch/mean_score']))
    return plans


def _metrics(scalars: List[dict]) -> Dict[str, Curve]:
    """Metrics by name, mIoU first."""
    points: Dict[str, list] = {}
    for line in scalars:
        if 'loss' in line or 'lr' in line or _is_plan(line):
            continue
        for name, value in line.items():
            if name not in _NO_METRICS and isinstance(value, (int, float)):
                points.setdefault(name, []).append((line['step'], value))
    names = sorted(points, key=lambda name: not name.endswith('mIoU'))
    return {name: _curve(points[name]) for name in names}


def _curve(points: List[tuple]) -> Curve:
    iterations, values = np.array(points, np.float64).reshape(-1, 2).T
    return Curve(iterations, values)


def _saved(ends: Optional[dict], scalars: List[dict], plans: List[Plan],
           last_iter: int) -> float:
    if ends:
        return ends['saved_iters']
    if not plans:
        return 0.
    plan = plans[-1]
    saved = plan.full_equivalent - plan.iteration
    final = [
        line['infobatch/saved_iters'] for line in scalars if _is_total(line)
    ]
    if final:
        return final[-1]
    # The open plan covers a full pass in its share of the iterations.
    return saved + (last_iter - plan.iteration) * (1 / plan.kept_share - 1)


def _worth(ends: Optional[dict], plans: List[Plan]) -> Optional[VarianceRatio]:
    if ends:
        return _ratio(ends.get('variance_ratio'))
    return plans[-1].mean_ratio if plans else None


def _seconds(starts: List[_Start]) -> Optional[float]:
    """Wall time from the first to the last line of each text log."""
    total = 0.
    for start in starts:
        paths = glob.glob(osp.join(glob.escape(start.folder), '*.log'))
        if not paths:
            return None
        with open(paths[0], 'rb') as file:
            text = file.read(1 << 16)
            file.seek(max(os.fstat(file.fileno()).st_size - (1 << 16), 0))
            text += b'\n' + file.read()
        times = _TIME.findall(text.decode(errors='replace'))
        if not times:
            return None
        first, last = (
            datetime.strptime(time, '%Y/%m/%d %H:%M:%S')
            for time in (times[0], times[-1]))
        total += (last - first).total_seconds()
    return total or None
