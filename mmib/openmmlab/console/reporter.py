# Copyright (c) mmib contributors. All rights reserved.
"""What the user is told: log lines, scalars, warnings."""
import glob
import math
import os.path as osp
from typing import Dict, List, Optional

import numpy as np
import torch
from mmengine.hooks import LoggerHook
from mmengine.runner import Runner
from torch import Tensor

from ...plan_record import PlanRecord, without_nan
from ...training import Training
from ...worth import VarianceRatio
from ..runner.step_size import MeanWeight
from .forecast import forecast
from .plan_log import FILE_NAME, RUN_KEY, write_line


class Reporter:
    """Writes to the log and the visualizer of a training.

    Each virtual epoch has a line of log, and the scalars
    ``infobatch/kept_share``, ``infobatch/threshold`` (0 where no score
    decides), ``infobatch/mean_score`` and ``infobatch/saved_iters``. Once
    plans were followed by visits, there are ``infobatch/variance_ratio`` (V of
    :mod:`mmib.worth`) and ``infobatch/reliability`` (correlation of a score
    with the next one of the same image). ``unweighted_loss`` is the baseline's
    loss of the same batch. ``infobatch.jsonl`` keeps the same for a report.
    """

    def __init__(self, runner: Runner, training: Training,
                 mean_weight: MeanWeight) -> None:
        self._runner = runner
        self._logger = runner.logger
        self._training = training
        self._mean_weight = mean_weight
        self._clock = training.clock
        self._non_finite = 0
        self._has_told_of_weights = False
        # Written when LoggerHook writes, so that no step waits for them.
        self._unweighted_losses: List[Tensor] = []
        self._log_interval = min(
            (hook.interval
             for hook in runner.hooks if isinstance(hook, LoggerHook)),
            default=0)

    def step(self, unweighted_loss: Optional[Tensor], batch_idx: int) -> None:
        """Log the loss of the batch with all weights 1 beside the trained one,
        where a model tells it."""
        if self._log_interval <= 0 or unweighted_loss is None:
            return
        self._unweighted_losses.append(unweighted_loss)
        # LoggerHook writes at the end of the first pass as well.
        if ((batch_idx + 1) % self._log_interval == 0
                or batch_idx + 1 == len(self._runner.train_dataloader)):
            self._write_unweighted_losses()

    def _write_unweighted_losses(self) -> None:
        values = torch.stack(self._unweighted_losses).float().tolist()
        for value in values:
            self._runner.message_hub.update_scalar('train/unweighted_loss',
                                                   value)
        self._unweighted_losses.clear()
        loss = sum(values) / len(values)
        if math.isfinite(loss):  # JSON knows no NaN.
            write_line(
                self._runner.log_dir, iter=self._runner.iter + 1, loss=loss)

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
        clock, runner = self._clock, self._runner
        # The clock hasn't entered the epoch after the last one.
        done = runner.epoch if clock.unit == 'epoch' else runner.iter
        if done >= clock.length:
            return
        if runner.iter == 0:
            # A checkpoint keeps it.
            runner.message_hub.update_info(RUN_KEY, runner.timestamp)
            self._tell_of_others()
        write_line(
            runner.log_dir,
            begins=dict(
                iter=runner.iter,
                unit=clock.unit,
                annealing_at=clock.annealing_at,
                max_iters=clock.schedule_iters,
                pass_length=clock.pass_length,
                slots_per_iter=clock.slots_per_iter,
                policy=repr(self._training.planner.policy),
                # None if the checkpoint doesn't tell.
                run=runner.message_hub.get_info(RUN_KEY)))
        if self._training.planner.policy.prunes and clock.prunes_nothing:
            self._logger.warning(
                f'InfoBatch prunes nothing: annealing begins at '
                f'{clock.unit} {clock.annealing_at}, before the first pass '
                f'over {clock.pass_length} images ends. Train longer, or '
                'raise `delta` if it is less than 1.')
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
        policy = self._training.planner.policy
        expected = forecast(policy, self._clock,
                            self._training.planner.normalize)
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
        if not self._training.planner.policy.rescale:
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
        current = self._training.planner.current
        self._non_finite = current.non_finite
        self._logger.info('InfoBatch goes on in virtual epoch '
                          f'{current.epoch} at slot '
                          f'{self._training.sampler.position}' +
                          ''.join(f'; {change}' for change in changes) + '.')

    def starts_afresh(self, reason: str) -> None:
        """Warn that a training goes on without the scores it had."""
        self._logger.warning(
            f'InfoBatch: {reason}. All scores start at 1, and nothing is '
            'pruned until every image was trained on once.')

    def epoch_begins(self, record: PlanRecord) -> None:
        """Tell of the virtual epoch that begins with this batch."""
        clock = self._clock
        if (not self._has_told_of_weights and record.kept < clock.pass_length):
            self._has_told_of_weights = True
            change = ('The mean weight is 1, so losses stay about as high'
                      if abs(record.mean_weight - 1) < 0.01 else
                      'Losses rise, and fall when annealing begins')
            self._logger.info(
                'InfoBatch prunes from here on. The losses in the log have '
                'the weights of the images in them (but for detectors). '
                f'{change}; `unweighted_loss` is the loss of the same images '
                'without weights.')
        if not record.logged:
            return
        kept_share = record.kept / clock.pass_length
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
                 if self._training.planner.policy.prunes else '')
        self._logger.info(
            f'InfoBatch: virtual epoch {record.epoch}, '
            f'{self._left()}: '
            f'{record.kept} of {clock.pass_length} images '
            f'(kept share {kept_share:.3f}{threshold}), '
            f'{saved}mean score {record.mean_score:.4f}'
            f'{worth_in_words(record.variance_ratio, ", the last", "")}')
        self.non_finite(record.non_finite)

    def _left(self) -> str:
        """How long pruning goes on."""
        clock, runner = self._clock, self._runner
        if clock.annealing_at >= clock.length:
            return 'no annealing'
        left = clock.annealing_at - (
            runner.epoch if clock.unit == 'epoch' else runner.iter)
        return (f'{left} {clock.unit}s until annealing'
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
        training, iteration = self._training, self._runner.iter
        self.non_finite(training.tables.non_finite)
        planner, position = training.planner, training.sampler.position
        saved = planner.saved_iters(position, iteration)
        self._add_scalars({'infobatch/saved_iters': saved})
        # Since all scores were 1.
        pass_length, fresh = self._clock.pass_length, self._clock.fresh_from
        covered = planner.current.covered_until(position) - fresh / pass_length
        visits = covered * pass_length
        trained = position - fresh
        pruned = max(visits - trained, 0)
        ratio = planner.mean_ratio.mean()
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
        self._runner.visualizer.add_scalars(scalars, step=self._runner.iter)


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
