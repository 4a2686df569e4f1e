# Copyright (c) mmib contributors. All rights reserved.
"""The starts of trainings in a work folder: a resumed training has several."""
import glob
import math
import os
import os.path as osp
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Dict, List, Optional, Tuple

from mmengine.config import Config

from ..config.zoo import allow_scoped_bases
from ..plan_record import PlanRecord
from .lines import read_lines

_TIME = re.compile(r'^(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d) - ', re.MULTILINE)


def read_config(path: str) -> Config:
    """Read a config, which is Python: it is run, and may raise anything. What
    it imports isn't."""
    allow_scoped_bases()
    return Config.fromfile(
        path, import_custom_modules=False, format_python_code=False)


@dataclass
class Start:
    """The lines of one start of a training."""

    folder: str
    begin: Optional[dict]
    ends: Optional[dict]
    plans: List[PlanRecord]
    scalars: List[dict]
    skipped: int

    @property
    def name(self) -> str:
        """str: The time at which it began."""
        return osp.basename(self.folder)

    @property
    def config_path(self) -> str:
        """str: Where MMEngine writes its config."""
        return osp.join(self.folder, 'vis_data', 'config.py')

    @property
    def trained(self) -> bool:
        """Whether it trained on anything. A training that is resumed after its
        end writes its total again."""
        return bool(
            self.begin or self.plans or not all(map(is_total, self.scalars)))

    def training(self, last: str) -> str:
        """Name of the first start of its training, where ``last`` is that of
        the start before."""
        if self.begin is not None:
            resumes = self.begin['iter'] > 0
            return self.begin.get('run') or (last if resumes else self.name)
        try:
            resumes = read_config(self.config_path).get('resume')
        except Exception:
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

    def seconds(self) -> Optional[float]:
        """Wall time from the first to the last line of the text log."""
        paths = glob.glob(osp.join(glob.escape(self.folder), '*.log'))
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
        return (last - first).total_seconds()


def config_of(work_dir: str, starts: List[Start], notes: List[str]) -> Config:
    """The config of the last start, else the newest in the folder. If none can
    be read, an empty one, and notes get a sentence."""
    paths = glob.glob(osp.join(glob.escape(work_dir), '*.py'))
    paths.sort(key=osp.getmtime, reverse=True)
    paths[:0] = [start.config_path for start in starts[-1:]]
    reason = 'the folder has none'
    for path in filter(osp.isfile, paths):
        try:
            return read_config(path)
        # A config is code, which may raise anything.
        except Exception as error:
            reason = f'{path} can\'t be read ({type(error).__name__})'
    notes.append(f'The config isn\'t known: {reason}.')
    return Config()


def read_start(folder: str) -> Start:
    lines, skipped = read_lines(osp.join(folder, 'infobatch.jsonl'))
    plans = [line for line in lines if isinstance(line, PlanRecord)]
    edges: Dict[str, dict] = {}
    for line in lines:
        if isinstance(line, dict) and 'step' not in line:
            edges.update(line)
    lines, more = read_lines(osp.join(folder, 'vis_data', 'scalars.json'))
    scalars = [
        line for line in lines if isinstance(line, dict) and 'step' in line
    ]
    _count_iterations(scalars)
    return Start(folder, edges.get('begins'), edges.get('ends'), plans,
                 _of_one_training(scalars), skipped + more)


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
    if any(map(is_plan, scalars)):
        length = 0
    last = 0
    open_lines: List[dict] = []
    for line in scalars:
        if is_plan(line):
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
            return scalars[:i]
        last = line['step']
    return scalars


def of_newest(starts: List[Start]) -> Tuple[List[Start], List[str]]:
    """The starts of the newest training; and the first ones of all others of
    which the folder has lines."""
    names: List[str] = []
    for start in starts:
        names.append(start.training(names[-1] if names else start.name))
    newest = [s for s, name in zip(starts, names) if name == names[-1]]
    others = dict.fromkeys(name for s, name in zip(starts, names)
                           if name != names[-1] and (s.plans or s.scalars))
    return newest, list(others)


def join(starts: List[Start]) -> Tuple[List[dict], List[PlanRecord]]:
    """The lines of all starts. From its first iteration on, a later start
    replaces what an earlier one had."""
    scalars: List[dict] = []
    plans: List[PlanRecord] = []
    for start in starts:
        first_plan, first_line = start.cut()
        plans = [plan for plan in plans if plan.iter < first_plan]
        scalars = [line for line in scalars if line['step'] < first_line]
        plans += start.plans
        scalars += start.scalars
    return scalars, plans


def is_plan(line: dict) -> bool:
    return any(name.startswith('infobatch/') for name in line)


def is_total(line: dict) -> bool:
    """Whether it is the last line of a training, which has nothing else."""
    return line.keys() == {'infobatch/saved_iters', 'step'}
