# Copyright (c) mmib contributors. All rights reserved.
"""What the log files in a work folder tell of a training."""
import glob
import os.path as osp
import re
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional

import numpy as np
from mmengine.config import Config

from ..config.parts import infobatch_hooks
from ..errors import Refusal
from ..plan_record import PlanRecord, with_nan
from ..worth import VarianceRatio
from .starts import Start, config_of, is_plan, join, of_newest, read_start

# What a validation line has beside metrics.
_NO_METRICS = {'data_time', 'time', 'step', 'iter', 'epoch', 'lr', 'memory'}


class Curve(NamedTuple):
    """Values by iteration, both of shape (P,)."""

    iterations: np.ndarray
    values: np.ndarray


@dataclass
class Run:
    """A training as its log has it. What isn't known is empty, 0 or None.

    Args:
        path (str): Its work folder.
        start (str): Name of the folder of its first start.
        config (Config): Its config.
        has_infobatch (bool): Whether it was trained with InfoBatch.
        policy (str): What draws the plans.
        pass_length (int): Slots of a full pass.
        plans (list[PlanRecord]): Virtual epochs in the log.
        loss (Curve): The loss without weights.
        metrics (dict[str, Curve]): Metrics of the validation.
        last_iter (int): Iterations until the last line.
        max_iters (int, optional): Iterations of the whole training.
        annealing_iter (int, optional): The first one of annealing.
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
    has_infobatch: bool
    policy: str
    pass_length: int
    plans: List[PlanRecord]
    loss: Curve
    metrics: Dict[str, Curve]
    last_iter: int
    max_iters: Optional[int]
    annealing_iter: Optional[int]
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
    def prunes(self) -> bool:
        """bool: Whether a plan in the log left images out."""
        return any(plan.kept < self.pass_length for plan in self.plans)

    def kept_share(self, plan: PlanRecord) -> float:
        """Slots of a plan over those of a full pass."""
        return plan.kept / self.pass_length

    def full_equivalent(self, iterations: np.ndarray) -> np.ndarray:
        """Iterations of the baseline that cover as many passes, linear
        between the plans."""
        if not self.plans:
            return np.asarray(iterations, np.float64)
        known = [(p.iter, p.iter + p.saved_iters) for p in self.plans]
        if known[0][0] > 0:
            known.insert(0, (0, 0.))
        if self.last_iter > known[-1][0]:
            known.append((self.last_iter, self.last_iter + self.saved_iters))
        return np.interp(iterations, *np.transpose(known))


def read_run(work_dir: str) -> Run:
    """Read the log files of a training.

    Raises:
        Refusal: If the folder has nothing of a training.
    """
    if not osp.isdir(work_dir):
        raise Refusal(f'{work_dir} is no folder.')
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
            raise Refusal(
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
              scalars: List[dict], plans: List[PlanRecord],
              notes: List[str]) -> Run:
    begin = next((s.begin for s in reversed(starts) if s.begin), {})
    ends = starts[-1].ends if starts else None
    if not begin:
        plans = []
        if infobatch_hooks(config) and scalars:
            notes.append('The log has no line of `infobatch.jsonl` with which '
                         'a training begins: what was pruned is left out.')
    last_iter = ends['iter'] if ends else max(
        [line['step'] for line in scalars] + [plan.iter for plan in plans],
        default=begin.get('iter', 0))
    loop = config.get('train_cfg') or {}
    max_iters = begin.get('max_iters', loop.get('max_iters'))
    annealing_iter = begin.get('annealing_iter')
    if begin.get('unit', 'epoch' if loop.get('max_epochs') else '') == 'epoch':
        # Those of the baseline. Plans tell where epochs began.
        max_iters = last_iter if ends else None
        annealing_iter = next(
            (int(plan.iter) for plan in plans if plan.annealing), None)
    times = [start.seconds() for start in starts]
    losses = [(line['step'], line.get('unweighted_loss', line.get('loss')))
              for line in scalars]
    run = Run(
        path=work_dir,
        start=begin.get('run') or (starts[0].name if starts else ''),
        config=config,
        has_infobatch=bool(begin or infobatch_hooks(config)),
        policy=begin.get('policy', ''),
        pass_length=begin.get('pass_length', 0),
        plans=plans,
        loss=_curve([p for p in losses if isinstance(p[1], (int, float))]),
        metrics=_metrics(scalars),
        last_iter=last_iter,
        max_iters=max_iters,
        annealing_iter=annealing_iter,
        finished=ends is not None
        or (max_iters is not None and last_iter >= max_iters > 0),
        saved_iters=0.,
        worth=plans[-1].mean_ratio if plans else None,
        visits=None,
        pruned=None,
        seconds=None if None in times else sum(filter(None, times)) or None,
        num_starts=len(starts),
        notes=notes)
    if ends:
        run.saved_iters = ends['saved_iters']
        run.worth = with_nan(ends['variance_ratio'])
        run.visits, run.pruned = ends['visits'], ends['pruned']
    elif plans:
        # The open plan covers a full pass in its share of the iterations.
        open_plan = plans[-1]
        run.saved_iters = open_plan.saved_iters + (
            last_iter - open_plan.iter) * (1 / run.kept_share(open_plan) - 1)
    return run


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
