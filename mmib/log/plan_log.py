# Copyright (c) mmib contributors. All rights reserved.
"""A file of all plans, beside the log, from which a report is made."""
import json
import math
import os.path as osp
from typing import Any, List, Optional

from mmengine.dist import is_main_process

from ..accounting import Accounting, VirtualEpoch
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
        accounting (Accounting): How far the training is.
    """

    def __init__(self, log_dir: str, accounting: Accounting) -> None:
        self._path = osp.join(log_dir, FILE_NAME)
        self._accounting = accounting

    def begins(self, iteration: int, policy: str, run: Optional[str]) -> None:
        """Write what holds for the whole training.

        Args:
            iteration (int): Iterations until now.
            policy (str): The policy and its arguments.
            run (str, optional): Time at which the training began, also where
                it is resumed. None if the checkpoint doesn't tell.
        """
        accounting = self._accounting
        self._write(
            begins=dict(
                iter=iteration,
                max_iters=accounting.max_iters,
                annealing_iter=accounting.annealing_iter,
                pass_length=accounting.pass_length,
                slots_per_iter=accounting.slots_per_iter,
                policy=policy,
                run=run))

    def plan(self, number: int, epoch: VirtualEpoch,
             mean_ratio: VarianceRatio) -> None:
        """Write a virtual epoch.

        Args:
            number (int): Which one it is, from 1.
            epoch (VirtualEpoch): What is known of it.
            mean_ratio (VarianceRatio): Mean V of the training until now.
        """
        accounting = self._accounting
        self._write(
            iter=accounting.iteration_at(epoch.start),
            epoch=number,
            covered=epoch.covered,
            full_equivalent=accounting.full_equivalent(epoch.covered),
            kept=epoch.size,
            threshold=epoch.threshold,
            tiers=epoch.tiers,
            mean_score=epoch.mean_score,
            saved_iters=accounting.saved_iters(epoch, epoch.start),
            variance_ratio=_plain(epoch.ratio),
            mean_ratio=_plain(mean_ratio),
            reliability=epoch.reliability,
            histogram=epoch.histogram and epoch.histogram._asdict())

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
                variance_ratio=_plain(ratio)))

    def _write(self, **line: Any) -> None:
        if is_main_process():
            with open(self._path, 'a', encoding='utf-8') as file:
                file.write(json.dumps(line) + '\n')


def _plain(ratio: Optional[VarianceRatio]) -> Optional[List[Optional[float]]]:
    """JSON knows no NaN."""
    if ratio is None or not math.isfinite(ratio.value):
        return None
    return [value if math.isfinite(value) else None for value in ratio]
