# Copyright (c) mmib contributors. All rights reserved.
"""What the user is told: log lines, scalars, warnings."""
import glob
import math
import os.path as osp
from typing import Dict, List, Optional

import numpy as np
from mmengine.dist import is_main_process
from mmengine.hooks import LoggerHook
from mmengine.runner import Runner
from mmengine.visualization import LocalVisBackend

from ...plan_record import PlanRecord, without_nan
from ...run import Run
from ...worth import VarianceRatio
from ..runner.step_size import MeanWeight
from .forecast import forecast
from .plan_log import FILE_NAME, RUN_KEY, write_line


class Reporter:
    """Writes to the log and the visualizer of a training.

    Each virtual epoch has a line of log. It also has scalars in the message
    hub and in all backends of the visualizer but ``LocalVisBackend``:
    ``infobatch/kept_share``, ``infobatch/threshold`` (0 where no score
    decides), ``infobatch/mean_score`` and ``infobatch/saved_iters``. Once
    plans were followed by visits, there are ``infobatch/variance_ratio`` (V of
    :mod:`mmib.worth`) and ``infobatch/reliability`` (correlation of a score
    with the next one of the same image). ``infobatch.jsonl`` keeps the same
    for programs and for a report.
    """

    def __init__(self, runner: Runner, run: Run,
                 mean_weight: MeanWeight) -> None:
        self._runner = runner
        self._logger = runner.logger
        self._run = run
        self._mean_weight = mean_weight
        self._schedule = run.schedule
        self._non_finite = 0
        self._log_interval = min(
            (hook.interval
             for hook in runner.hooks if isinstance(hook, LoggerHook)),
            default=0)

    def step(self, batch_idx: int) -> None:
        """Write the mean loss of the last iterations where LoggerHook does."""
        interval, runner = self._log_interval, self._runner
        # LoggerHook writes at the end of the first pass as well.
        if interval <= 0 or ((batch_idx + 1) % interval and batch_idx + 1
                             != len(runner.train_dataloader)):
            return
        losses = runner.message_hub.log_scalars.get('train/loss')
        if losses is None:
            return
        loss = float(losses.mean(min(interval, batch_idx + 1)))
        if math.isfinite(loss):  # JSON knows no NaN.
            write_line(runner.log_dir, iter=runner.iter + 1, loss=loss)

    def validated(self, metrics: Dict[str, float]) -> None:
        """Write the metrics of a validation for a report."""
        values = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, (int, float,
                                  np.number)) and math.isfinite(value)
        }
        write_line(
            self._runner.log_dir, iter=self._runner.iter, metrics=values)

    def training_begins(self) -> None:
        """Tell before the first step what pruning and the schedule make of
        each other."""
        schedule, runner = self._schedule, self._runner
        done = runner.epoch if schedule.unit == 'epoch' else runner.iter
        if done >= schedule.length:
            return
        if runner.iter == 0:
            # A checkpoint keeps it.
            runner.message_hub.update_info(RUN_KEY, runner.timestamp)
            self._tell_of_others()
        write_line(
            runner.log_dir,
            begins=dict(
                iter=runner.iter,
                unit=schedule.unit,
                annealing_at=schedule.annealing_at,
                max_iters=schedule.schedule_iters,
                pass_length=schedule.pass_length,
                slots_per_iter=schedule.slots_per_iter,
                policy=repr(self._run.policy),
                # None if the checkpoint doesn't tell.
                run=runner.message_hub.get_info(RUN_KEY)))
        if self._run.policy.prunes and schedule.prunes_nothing:
            self._logger.warning(
                f'InfoBatch prunes nothing: annealing begins at '
                f'{schedule.unit} {schedule.annealing_at}, before the first '
                f'pass over {schedule.pass_length} images ends. Train longer, '
                'or raise `delta` if it is less than 1.')
        else:
            self._tell_forecast()

    def _tell_of_others(self) -> None:
        runner = self._runner
        others = [
            osp.dirname(path) for path in glob.glob(
                osp.join(glob.escape(runner.work_dir), '*', FILE_NAME))
        ]
        others = [path for path in others if path != runner.log_dir]
        if others:
            self._logger.warning(
                f'InfoBatch: `work_dir` {runner.work_dir} has another '
                f'training too, in {osp.basename(max(others))}. '
                '`mmib report` shows the one that was trained last, and '
                '`--resume` goes on with the newest checkpoint there, of '
                'whichever training. Give each training a `work_dir` of its '
                'own.')

    def _tell_forecast(self) -> None:
        policy = self._run.policy
        expected = forecast(policy, self._schedule, self._run.normalize)
        lines = expected.lines
        if self._runner.iter > 0:
            lines = lines[:1]
        elif expected.share == 1:
            self._logger.warning(
                f'InfoBatch prunes nothing: {policy!r} keeps every '
                'image. Change the `policy` of InfoBatchHook in '
                '`custom_hooks`.')
            return
        self._logger.info('InfoBatch: ' + ' '.join(lines) +
                          self._told_mean_weight())

    def _told_mean_weight(self) -> str:
        """Which mean weight plans have, and why."""
        if not self._run.policy.rescale:
            return ''
        is_one, why = self._mean_weight
        if is_one:
            return (
                ' The weights of each plan have a mean of 1, so that steps '
                f'are as long as in the baseline: {why}. '
                '`normalize=False` keeps the mean of the method.')
        return (' The weights of each plan have the mean of the method, 1 / '
                f'kept share: {why}. `normalize=True` makes their mean 1.')

    def goes_on(self, changes: List[str]) -> None:
        """Tell that a training goes on with the plan of the checkpoint, and
        what has changed since then."""
        current = self._run.current
        self._non_finite = current.non_finite
        self._logger.info('InfoBatch goes on in virtual epoch '
                          f'{current.epoch} at slot '
                          f'{self._run.ledger.position}' +
                          ''.join(f'; {change}' for change in changes) + '.')

    def starts_afresh(self, reason: str) -> None:
        """Warn that a training goes on without the scores it had."""
        self._logger.warning(
            f'InfoBatch: {reason}. All scores start at 1, and nothing is '
            'pruned until every image was trained on once.')

    def epoch_begins(self, record: PlanRecord) -> None:
        """Tell of the virtual epoch that begins with this batch."""
        schedule = self._schedule
        if not record.logged:
            return
        kept_share = record.kept / schedule.pass_length
        scalars = {
            'infobatch/kept_share': kept_share,
            'infobatch/threshold': record.threshold,
            'infobatch/mean_score': record.mean_score,
            'infobatch/saved_iters': record.saved_iters
        }
        if record.variance_ratio is not None:
            scalars['infobatch/variance_ratio'] = record.variance_ratio.value
        if record.reliability is not None:
            scalars['infobatch/reliability'] = record.reliability
        self._add_scalars(scalars)
        write_line(self._runner.log_dir, **record.to_dict())
        threshold = (f', below a score of {record.threshold:.4f}'
                     if record.threshold else '')
        saved = (f'{record.saved_iters:.0f} iterations saved so far, '
                 if self._run.policy.prunes else '')
        self._logger.info(
            f'InfoBatch: virtual epoch {record.epoch}, '
            f'{self._left()}: '
            f'{record.kept} of {schedule.pass_length} images '
            f'(kept share {kept_share:.3f}{threshold}), '
            f'{saved}mean score {record.mean_score:.4f}'
            f'{worth_in_words(record.variance_ratio, ", the last", "")}')
        self.non_finite(record.non_finite)

    def _left(self) -> str:
        """How long pruning goes on."""
        schedule, runner = self._schedule, self._runner
        if schedule.annealing_at >= schedule.length:
            return 'no annealing'
        left = schedule.annealing_at - (
            runner.epoch if schedule.unit == 'epoch' else runner.iter)
        return (f'{left} {schedule.unit}s until annealing'
                if left > 0 else 'annealing')

    def non_finite(self, total: int) -> None:
        """Warn of losses that aren't finite, of which there are ``total``, if
        there are more than before."""
        # Each text is another one: MMEngine drops warnings that repeat.
        if total > self._non_finite:
            self._logger.warning(
                f'InfoBatch: {total - self._non_finite} losses of '
                f'images were NaN or infinite, {total} so far; these images '
                'keep the score they had before.')
        self._non_finite = total

    def ends(self) -> None:
        """Tell what the training saved."""
        schedule = self._schedule
        run, iteration = self._run, self._runner.iter
        self.non_finite(run.tables.non_finite)
        saved = run.saved_iters()
        self._add_scalars({'infobatch/saved_iters': saved})
        # Since all scores were 1.
        pass_length, fresh = schedule.pass_length, schedule.fresh_from
        covered = run.covered - fresh / pass_length
        visits = covered * pass_length
        trained = run.ledger.position - fresh
        pruned = max(visits - trained, 0)
        ratio = run.worth
        write_line(
            self._runner.log_dir,
            ends=dict(
                iter=iteration,
                saved_iters=saved,
                visits=round(visits),
                pruned=round(pruned),
                variance_ratio=without_nan(ratio)))
        self._logger.info(
            f'InfoBatch: {iteration} iterations covered as many passes as '
            f'{iteration + saved:.0f} iterations of the baseline; '
            f'{pruned:.0f} of {visits:.0f} visits of images were pruned in '
            f'{covered:.2f} virtual epochs.' +
            worth_in_words(ratio, ' On average the', '.'))

    def _add_scalars(self, scalars: dict) -> None:
        for name, value in scalars.items():
            self._runner.message_hub.update_scalar(name, value)
        if not is_main_process():
            return
        # In `scalars.json` of LocalVisBackend the libraries' tools take a line
        # without `lr` for one of a validation.
        for backend in self._runner.visualizer._vis_backends.values():
            if not isinstance(backend, LocalVisBackend):
                backend.add_scalars(scalars, step=self._runner.iter)


def worth_in_words(ratio: Optional[VarianceRatio], begin: str,
                   end: str) -> str:
    """What V says of a choice of images, empty where V isn't known. ``begin``
    comes before the words "choice of images", and ``end`` after all."""
    if ratio is None or not math.isfinite(ratio.value):
        return ''
    # Rounded as V is shown.
    percent = round(100 * (1 - round(ratio.value, 2)))
    if percent == 0 or ratio.low <= 1 <= ratio.high:
        effect = "can't be told from chance"
    elif percent > 0:
        effect = f'was worth up to {percent} % of the steps'
    else:
        effect = f'cost up to {-percent} % of the steps'
    return (f'{begin} choice of images {effect} (V {ratio.value:.2f}, '
            f'{ratio.low:.2f} to {ratio.high:.2f}; at random it is 1){end}')
