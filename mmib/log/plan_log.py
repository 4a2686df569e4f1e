# Copyright (c) mmib contributors. All rights reserved.
"""A file of all plans, beside the log, from which a report is made."""
import json
import os.path as osp
from typing import Any, Optional

from mmengine.dist import is_main_process

from ..clock import Clock
from ..plan_record import PlanRecord, without_nan
from ..worth import VarianceRatio

FILE_NAME = 'infobatch.jsonl'
# In the message hub: the time at which the training began.
RUN_KEY = 'infobatch/run'


class PlanLog:
    """Writes ``infobatch.jsonl`` into the folder of the log.

    A line of JSON when a training begins or goes on (``begins``), one for
    each virtual epoch that has a line in the log, and one when it ends
    (``ends``). Only the first rank writes.

    Args:
        log_dir (str): Folder of the log.
        clock (Clock): How far the training is.
    """

    def __init__(self, log_dir: str, clock: Clock) -> None:
        self._path = osp.join(log_dir, FILE_NAME)
        self._clock = clock

    def begins(self, iteration: int, policy: str, run: Optional[str]) -> None:
        """Write what holds for the whole training.

        Args:
            iteration (int): Iterations until now.
            policy (str): The policy and its arguments.
            run (str, optional): Time at which the training began, also where
                it is resumed. None if the checkpoint doesn't tell.
        """
        clock = self._clock
        self._write(
            begins=dict(
                iter=iteration,
                unit=clock.unit,
                annealing_at=clock.annealing_at,
                max_iters=clock.schedule_iters,
                annealing_iter=clock.annealing_iter,
                pass_length=clock.pass_length,
                slots_per_iter=clock.slots_per_iter,
                policy=policy,
                run=run))

    def plan(self, record: PlanRecord) -> None:
        """Write a virtual epoch."""
        self._write(**record.to_dict())

    def ends(self, iteration: int, saved_iters: float, visits: int,
             pruned: int, ratio: Optional[VarianceRatio]) -> None:
        """Write what has come of the training.

        Args:
            iteration (int): Iterations of it.
            saved_iters (float): Those that the baseline needs more.
            visits (int): Visits of images that as many full passes have.
            pruned (int): Those of them that were pruned.
            ratio (VarianceRatio, optional): Mean V. None where it can't be
                told.
        """
        self._write(
            ends=dict(
                iter=iteration,
                saved_iters=saved_iters,
                visits=visits,
                pruned=pruned,
                variance_ratio=without_nan(ratio)))

    def _write(self, **line: Any) -> None:
        if is_main_process():
            with open(self._path, 'a', encoding='utf-8') as file:
                file.write(json.dumps(line) + '\n')
