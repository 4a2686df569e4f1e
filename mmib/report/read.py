# Copyright (c) mmib contributors. All rights reserved.
"""Read a run from its work folder: ``infobatch.jsonl``, and of a run without
mmib MMEngine's ``scalars.json`` and log."""
import ast
import glob
import json
import math
import os.path as osp
import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
from mmengine.config import Config

from ..errors import Refusal
from ..openmmlab.config.parts import infobatch_hooks
from ..openmmlab.console.reporter import FILE_NAME
from ..run.record import PlanRecord, with_nan
from ..scores.worth import VarianceRatio

# The folder of a start of a run, which is named after its time.
_START = 8 * '[0-9]' + '_' + 6 * '[0-9]'
# Time and text of a line of MMEngine's log, and beginnings of texts.
_LOG_LINE = re.compile(r'^([\d/]{10} [\d:]{8}) - .*? - [A-Z]+ - (.*)', re.M)
_STEP = re.compile(r'(Iter|Epoch)\(train\)')
_RESUMED = re.compile(r'resumed epoch: \d+, iter: (\d+)')
# What a validation line of MMEngine has beside metrics.
_NO_METRICS = {'data_time', 'time', 'step', 'iter', 'epoch', 'lr', 'memory'}


class Curve(NamedTuple):
    """Values by iteration, both of shape (P,)."""

    iterations: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class LoggedPlan(PlanRecord):
    """A plan in ``infobatch.jsonl``.

    Args:
        iter (float): Iterations of the run before the plan.
        saved_iters (float): Iterations saved before the plan.
    """

    iter: float = 0.
    saved_iters: float = 0.


@dataclass
class Run:
    """A run as its files have it. What isn't known is empty, 0 or None.

    Args:
        path (str): Its work folder.
        start (str): Name of the folder of its first start.
        config (Config): Its config.
        has_infobatch (bool): Whether it was trained with InfoBatch.
        policy (str): What draws the plans.
        pass_length (int): Slots of a full pass.
        plans (list[LoggedPlan]): Virtual epochs.
        loss (Curve): The loss in the log.
        metrics (dict[str, Curve]): Metrics of the validation, mIoU first.
        class_ious (dict[str, str]): IoU of each class at the last validation,
            in percent.
        last_iter (int): Iterations until the last line.
        max_iters (int, optional): Iterations of the whole run.
        annealing_iter (int, optional): The first one of annealing.
        finished (bool): Whether the run has ended by itself.
        saved_iters (float): What the baseline needs more for as many passes.
        worth (VarianceRatio, optional): Mean V.
        visits (int, optional): Visits of images that full passes would have.
        pruned (int, optional): Those of them that were pruned.
        seconds (float, optional): Wall time of all starts, from the first
            step to the last line, with validation.
        num_starts (int): 1, and how often it was resumed.
        notes (list[str]): Sentences on what is missing and why.
    """

    path: str
    start: str
    config: Config
    has_infobatch: bool
    policy: str
    pass_length: int
    plans: List[LoggedPlan]
    loss: Curve
    metrics: Dict[str, Curve]
    class_ious: Dict[str, str]
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
        """bool: Whether a plan left images out."""
        return any(plan.kept < self.pass_length for plan in self.plans)

    def kept_share(self, plan: LoggedPlan) -> float:
        """Return the slots of a plan over the slots of a full pass."""
        return plan.kept / self.pass_length

    def full_equivalent(self, iterations: np.ndarray) -> np.ndarray:
        """Return the iterations of the baseline that cover as many passes,
        linear between the plans."""
        if not self.plans:
            return np.asarray(iterations, np.float64)
        known = [(p.iter, p.iter + p.saved_iters) for p in self.plans]
        if known[0][0] > 0:
            known.insert(0, (0, 0.))
        if self.last_iter > known[-1][0]:
            known.append((self.last_iter, self.last_iter + self.saved_iters))
        return np.interp(iterations, *np.transpose(known))


@dataclass
class _Start:
    """A start of a run. A resumed run has several."""

    folder: str
    begins: Dict[str, Any] = field(default_factory=dict)
    ends: Dict[str, Any] = field(default_factory=dict)
    # The iteration from which a run without mmib goes on.
    resumed_at: Optional[int] = None
    plans: List[LoggedPlan] = field(default_factory=list)
    # Iteration and loss or metrics.
    losses: List[Tuple[int, float]] = field(default_factory=list)
    metrics: List[Tuple[int, Dict[str, float]]] = field(default_factory=list)
    times: List[float] = field(default_factory=list)  # In seconds.
    skipped: int = 0

    @property
    def name(self) -> str:
        """str: The time at which it began."""
        return osp.basename(self.folder)

    @property
    def first_iter(self) -> int:
        """int: Iterations before it, at most."""
        if self.resumed_at is not None:
            return self.resumed_at
        known = [line[0] for line in (*self.losses, *self.metrics)]
        return self.begins.get('iter', min(known, default=1) - 1)

    def goes_on(self, last: Optional['_Start']) -> bool:
        """Return whether this start goes on with the run of another one."""
        if last is None or bool(self.begins) != bool(last.begins):
            return False
        if self.resumed_at is not None:
            return True
        return self.first_iter > (0 if self.begins else last.first_iter)


def read_run(work_dir: str) -> Run:
    """Read the files of a run, and execute its config.

    Raises:
        Refusal: If the folder has nothing of a run.
    """
    if not osp.isdir(work_dir):
        raise Refusal(f'{work_dir} is not a folder.')
    folders = glob.glob(osp.join(glob.escape(work_dir), _START))
    every = [_read_start(folder) for folder in sorted(folders)]
    # Tests of a checkpoint leave folders too.
    starts = [s for s in every if s.begins or s.losses or s.metrics]
    if not starts and not every and not glob.glob(
            osp.join(glob.escape(work_dir), '*.pth')):
        below = _runs_below(work_dir)
        raise Refusal(f'{work_dir} has nothing of a run: ' + (
            f'it has runs below it, give one of {", ".join(below)}.'
            if below else 'a report is made of the work folder of one, which '
            'has folders named after times and checkpoints.'))
    notes = []
    if not starts:
        notes.append('The log has no line of the run: it was stopped '
                     'before the first one, or its files are missing.')
    run, newest, others = _newest(starts)
    if others:
        listed = ', '.join(others[:3]) + ', ...' * (len(others) > 3)
        notes.append(
            f'The folder has {len(others)} other run'
            f'{"s" * (len(others) > 1)} too, begun at {listed}: this page '
            'shows the one that was trained last. Give each run a '
            '`work_dir` of its own.')
    skipped = sum(start.skipped for start in newest)
    if skipped:
        notes.append(f'{skipped} line{"s" * (skipped > 1)} of the files can\'t'
                     ' be read, and are left out.')
    config = _config_of(work_dir, newest or every[-1:], notes)
    return _run_of(work_dir, run, config, newest, notes)


def _runs_below(folder: str) -> List[str]:
    """Work folders, one or two levels deep."""
    starts = [
        path for level in ('*', osp.join('*', '*'))
        for path in glob.glob(osp.join(glob.escape(folder), level, _START))
    ]
    return sorted({*map(osp.dirname, starts)})


def _read_start(folder: str) -> _Start:
    start = _Start(folder)
    path, take = osp.join(folder, FILE_NAME), _take
    if not osp.exists(path):
        path, take = osp.join(folder, 'vis_data',
                              'scalars.json'), _take_scalars
        _take_log(start)
    if not osp.exists(path):
        return start
    with open(path, encoding='utf-8', errors='replace') as file:
        for text in file:
            try:
                if not take(start, json.loads(text)):
                    break
            except (ValueError, TypeError, LookupError, AttributeError):
                # A kill leaves half of the last line.
                start.skipped += text.endswith('\n')
    return start


def _take(start: _Start, line: dict) -> bool:
    """Add a line of ``infobatch.jsonl``."""
    if 'kept' in line:
        plan = LoggedPlan.from_dict(line)
        start.plans.append(replace(plan, iter=int(plan.iter)))
    elif 'loss' in line:
        start.losses.append((line['iter'], line['loss']))
    elif 'metrics' in line:
        start.metrics.append((line['iter'], line['metrics']))
    elif 'begins' in line:
        start.begins = line['begins']
    else:
        start.ends = line['ends']
    start.times.append(line['time'])
    return True


def _take_scalars(start: _Start, line: dict) -> bool:
    """Add a line of MMEngine's ``scalars.json``. Return False where another
    run of the process begins, whose lines MMEngine adds to the file."""
    last = start.losses[-1][0] if start.losses else start.resumed_at or 0
    if 'loss' in line:
        if line['step'] <= last:
            return False
        start.losses.append((line['step'], line['loss']))
    elif 'lr' not in line:
        # Where epochs count, `step` is one.
        start.metrics.append((max(line['step'], last), {
            name: value
            for name, value in line.items()
            if name not in _NO_METRICS and isinstance(value, (int, float))
        }))
    return True


def _log_of(start: _Start) -> str:
    """Read the text of MMEngine's log, empty where there is none."""
    path = osp.join(start.folder, f'{start.name}.log')
    if not osp.exists(path):
        return ''
    with open(path, encoding='utf-8', errors='replace') as file:
        return file.read()


def _take_log(start: _Start) -> None:
    """Add when a run without mmib began and ended, and the iteration from
    which it went on. Only the log has these."""
    lines = _LOG_LINE.findall(_log_of(start))
    steps = [i for i, line in enumerate(lines) if _STEP.match(line[1])]
    if not steps:
        return
    # The first step follows the line that is before its own.
    before = lines[:max(steps[0], 1)]
    start.times = [
        datetime.strptime(line[0], '%Y/%m/%d %H:%M:%S').timestamp()
        for line in (before[-1], lines[-1])
    ]
    for found in filter(None, (_RESUMED.match(line[1]) for line in before)):
        start.resumed_at = int(found[1])


def _class_ious(start: _Start) -> Dict[str, str]:
    """The IoU of each class, from the last table that ``IoUMetric`` of
    MMSegmentation has written into the log, and nowhere else."""
    _, found, text = _log_of(start).rpartition('per class results:')
    rows = [[cell.strip() for cell in line.strip('|').split('|')]
            for line in text.splitlines() if line.startswith('|')]
    # A kill leaves a part of the table.
    if not (found and rows and 'IoU' in rows[0]):
        return {}
    column = rows[0].index('IoU')
    return {
        row[0]: row[column]
        for row in rows[1:] if len(row) == len(rows[0])
    }


def _last_class_ious(starts: List[_Start]) -> Dict[str, str]:
    """The IoU of each class at the last validation that no later start
    replaces."""
    end = math.inf
    for start in starts[::-1]:
        ious = _class_ious(start)
        if ious and start.metrics and start.metrics[-1][0] <= end:
            return ious
        end = min(end, start.first_iter)
    return {}


def _newest(starts: List[_Start]) -> Tuple[str, List[_Start], List[str]]:
    """The name and the starts of the run that was trained last, and the names
    of the others."""
    runs: Dict[str, List[_Start]] = {}
    name, last = '', None
    for start in starts:
        known = start.begins.get('run')
        if known or not start.goes_on(last):
            name = known or start.name
        # A cluster may start a run once more after its end.
        runs[name] = runs.pop(name, []) + [start]
        last = start
    return name, runs.get(name, []), [other for other in runs if other != name]


def _config_of(work_dir: str, starts: List[_Start],
               notes: List[str]) -> Config:
    """The config of the last start, by the name that it was trained by, else
    the newest in the folder. If none can be read, an empty one, and notes get
    a sentence."""
    paths = glob.glob(osp.join(glob.escape(work_dir), '*.py'))
    paths.sort(key=osp.getmtime, reverse=True)
    for start in starts[-1:]:
        own = osp.join(start.folder, 'vis_data', 'config.py')
        if osp.isfile(own):
            paths = [own, *filter(_is_dumped, paths)]
    configs, reason = [], 'the folder has none'
    for path in paths:
        try:
            configs.append(
                Config.fromfile(
                    path,
                    import_custom_modules=False,
                    format_python_code=False))
        # A config is code, which may raise anything.
        except (Exception, SystemExit) as error:
            reason = f'{path} can\'t be read ({type(error).__name__})'
    if not configs:
        notes.append(f'The config isn\'t known: {reason}.')
        return Config()
    trained, *others = (
        dict(config.to_dict(), load_from=None, launcher=None, resume=None)
        for config in configs)
    # MMEngine also writes the config to the work folder, under the name that
    # it was trained by. A later test replaces that file, with its checkpoint
    # as `load_from`.
    for config, other in zip(configs[1:], others):
        if other == trained:
            return Config(configs[0].to_dict(), filename=config.filename)
    return configs[0]


def _is_dumped(path: str) -> bool:
    """Return whether MMEngine may have written a config: whether the file has
    only assignments. Other files, such as scripts, aren't executed."""
    try:
        with open(path, encoding='utf-8') as file:
            statements = ast.parse(file.read()).body
    except (SyntaxError, ValueError):
        return False
    return all(isinstance(each, ast.Assign) for each in statements)


def _run_of(work_dir: str, run: str, config: Config, starts: List[_Start],
            notes: List[str]) -> Run:
    plans, losses, metrics = _joined(starts)
    begins = starts[-1].begins if starts else {}
    ends = starts[-1].ends if starts else {}
    if not begins:
        plans = []
        if starts and infobatch_hooks(config):
            notes.append('`infobatch.jsonl` has no line with which this '
                         'run begins: what was pruned is left out.')
    last_iter = ends.get('iter') or max(
        [begins.get('iter', 0)] + [int(plan.iter) for plan in plans] +
        [line[0] for line in (*losses, *metrics)])
    max_iters = begins.get('max_iters', (config.get('train_cfg')
                                         or {}).get('max_iters'))
    if begins.get('unit') == 'epoch':
        # The iterations in the config are those of the baseline.
        max_iters = last_iter if ends else None
    annealing = [int(plan.iter) for plan in plans if plan.annealing]
    times = [start.times for start in starts if start.times]
    open_plan = plans[-1] if plans else None
    return Run(
        path=work_dir,
        start=run,
        config=config,
        has_infobatch=bool(begins or infobatch_hooks(config)),
        policy=begins.get('policy', ''),
        pass_length=begins.get('pass_length', 0),
        plans=plans,
        loss=_curve(losses),
        metrics=_curves(metrics),
        class_ious=_last_class_ious(starts),
        last_iter=last_iter,
        max_iters=max_iters,
        annealing_iter=min(annealing, default=None),
        finished=bool(ends) or 0 < (max_iters or 0) <= last_iter,
        saved_iters=ends['saved_iters'] if ends else _saved(
            open_plan, last_iter, begins),
        worth=with_nan(ends['variance_ratio'])
        if ends else open_plan and open_plan.mean_ratio,
        visits=ends.get('visits'),
        pruned=ends.get('pruned'),
        seconds=sum(each[-1] - each[0] for each in times) or None,
        num_starts=len(starts),
        notes=notes)


def _joined(starts: List[_Start]) -> Tuple[list, list, list]:
    """Plans, losses and metrics of all starts. From its first iteration on, a
    later start replaces what an earlier one had."""
    plans: List[LoggedPlan] = []
    losses: List[Tuple[int, float]] = []
    metrics: List[Tuple[int, Dict[str, float]]] = []
    for start in starts:
        first = start.first_iter
        plans = [p for p in plans if p.iter < first] + start.plans
        losses = [p for p in losses if p[0] <= first] + start.losses
        metrics = [p for p in metrics if p[0] <= first] + start.metrics
    return plans, losses, metrics


def _saved(plan: Optional[LoggedPlan], last_iter: int, begins: dict) -> float:
    """The iterations saved until the last line of a run that is open."""
    if plan is None:
        return 0.
    # The open plan covers a full pass in its share of the iterations.
    left_out = begins['pass_length'] / plan.kept - 1
    return plan.saved_iters + (last_iter - plan.iter) * left_out


def _curves(metrics: List[Tuple[int, Dict[str, float]]]) -> Dict[str, Curve]:
    """Metrics by name, mIoU first."""
    points: Dict[str, list] = {}
    for iteration, values in metrics:
        for name, value in values.items():
            points.setdefault(name, []).append((iteration, value))
    names = sorted(points, key=lambda name: not name.endswith('mIoU'))
    return {name: _curve(points[name]) for name in names}


def _curve(points: List[tuple]) -> Curve:
    known = [point for point in points if math.isfinite(point[1])]
    iterations, values = np.array(known, np.float64).reshape(-1, 2).T
    return Curve(iterations, values)
