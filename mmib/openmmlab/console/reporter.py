# Copyright (c) mmib contributors. All rights reserved.
"""What a run says: log lines, warnings, scalars, and the file of a report."""
import glob
import json
import math
import os.path as osp
import time
from datetime import timedelta
from typing import Any, Dict, List, Optional

import numpy as np
from mmengine.dist import is_main_process
from mmengine.hooks import LoggerHook
from mmengine.runner import Runner
from mmengine.visualization import LocalVisBackend

from ...run.record import without_nan
from ...run.run import Run
from ...scores.worth import VarianceRatio
from ...stream.schedule import Place
from ...stream.stream import Dealt
from ..runner.iterations import Iterations
from ..runner.mean_weight import MeanWeight
from .forecast import forecast

# Beside the log: what a report is made from.
FILE_NAME = 'infobatch.jsonl'
# In the message hub: the time at which the run began.
RUN_KEY = 'infobatch/run'

# Iterations whose mean time says how long others take.
_RECENT = 500


class Reporter:
    """Writes to the log and the visualizer of a run.

    Each logged plan has a line in the log, and scalars in the message hub and
    in all backends of the visualizer except ``LocalVisBackend``. The file
    ``docs/report.md`` describes both.

    ``infobatch.jsonl`` keeps the same for programs and for a report. Each line
    has a ``time`` in seconds. There is a line where a run begins or resumes
    (``begins``), for each logged plan (a ``PlanRecord``), for the mean
    ``loss`` of some iterations, for the ``metrics`` of a validation, and where
    the run ends (``ends``).

    Args:
        runner (Runner): The runner.
        run (Run): The run.
        iterations (Iterations): What the run is in iterations.
        mean_weight (MeanWeight): Which mean the weights of a plan have.
    """

    def __init__(self, runner: Runner, run: Run, iterations: Iterations,
                 mean_weight: MeanWeight) -> None:
        self._runner = runner
        self._run, self._schedule = run, run.schedule
        self._iterations = iterations
        self._mean_weight = mean_weight
        self._log_interval = min(
            (hook.interval
             for hook in runner.hooks if isinstance(hook, LoggerHook)),
            default=0)

    def _info(self, text: str) -> None:
        self._runner.logger.info(f'InfoBatch: {text}')

    def _warn(self, text: str) -> None:
        self._runner.logger.warning(f'InfoBatch: {text}')

    def _write(self, **line: Any) -> None:
        """Add a line to ``infobatch.jsonl``, on the first rank."""
        if is_main_process():
            line['time'] = round(time.time(), 2)
            path = osp.join(self._runner.log_dir, FILE_NAME)
            with open(path, 'a', encoding='utf-8') as file:
                file.write(json.dumps(line) + '\n')

    def _add_scalars(self, **scalars: float) -> None:
        named = {f'infobatch/{name}': scalars[name] for name in scalars}
        for name, value in named.items():
            self._runner.message_hub.update_scalar(name, value)
        if not is_main_process():
            return
        # As in the lines of LoggerHook, because the backend of W&B drops the
        # step.
        iteration = self._runner.iter
        named['iter'] = iteration
        # In `scalars.json` of LocalVisBackend the libraries' tools take a line
        # without `lr` for one of a validation.
        for backend in self._runner.visualizer._vis_backends.values():
            if not isinstance(backend, LocalVisBackend):
                backend.add_scalars(named, step=iteration)

    def run_begins(self) -> None:
        """Say before the first step what is to be expected of the run."""
        schedule, runner, policy = (self._schedule, self._runner,
                                    self._run.policy)
        iterations = self._iterations
        if self._done >= iterations.length:
            return
        if runner.iter == 0:
            # A checkpoint keeps the key.
            runner.message_hub.update_info(RUN_KEY, runner.timestamp)
            self._warn_of_other_runs()
        self._write(
            begins=dict(
                iter=runner.iter,
                unit=iterations.unit,
                annealing_at=iterations.annealing_at,
                max_iters=iterations.schedule_iters,
                pass_length=schedule.pass_length,
                slots_per_iter=iterations.slots_per_iter,
                policy=repr(policy),
                # None if the checkpoint has none.
                run=runner.message_hub.get_info(RUN_KEY)))
        expected = forecast(policy, iterations, self._run.normalize)
        if policy.prunes and schedule.prunes_nothing:
            self._warn(
                f'nothing is pruned, because annealing begins at '
                f'{iterations.unit} {iterations.annealing_at}, before the '
                f'first pass over {schedule.pass_length} images ends. Train '
                'longer, or raise `delta` if it is less than 1.')
        elif expected.share == 1 and runner.iter == 0:
            self._warn(f'nothing is pruned, because {policy!r} keeps every '
                       'image. Change the `policy` of InfoBatchHook in '
                       '`custom_hooks`.')
        else:
            # What a resumed run saves isn't known.
            lines = expected.lines[:1 if runner.iter else None]
            self._info(' '.join(lines) + self._mean_weight_in_words())

    def _warn_of_other_runs(self) -> None:
        runner = self._runner
        paths = osp.join(glob.escape(runner.work_dir), '*', FILE_NAME)
        others = {osp.dirname(path) for path in glob.glob(paths)}
        others.discard(runner.log_dir)
        if others:
            self._warn(
                f'`work_dir` {runner.work_dir} has another run too, in '
                f'{osp.basename(max(others))}. `mmib report` shows the newest '
                'run, and `--resume` goes on with the newest checkpoint there,'
                ' of whichever run. Give each run a `work_dir` of its own.')

    def _mean_weight_in_words(self) -> str:
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

    def run_resumes(self, changes: List[str]) -> None:
        """Say that a run goes on with the plan of the checkpoint, and what has
        changed since then."""
        stream = self._run.stream
        plan = stream.current
        place = 'the run continues in virtual epoch '
        place += str(plan.record.epoch if plan else 1)
        if plan:
            place += (f', after {stream.position - plan.first_slot} of '
                      f'{plan.end - plan.first_slot} images')
        self._info('; '.join([place, *changes]) + '.')

    def run_starts_afresh(self, reason: str) -> None:
        """Warn that a run goes on without the scores it had."""
        self._warn(
            f'{reason}. All scores start at 1, and nothing is pruned until '
            'every image was trained on once.')

    def plan_begins(self, plan: Dealt) -> None:
        """Report the virtual epoch that begins with this batch."""
        record = plan.record
        if not record.logged:
            return
        place = Place(plan.first_slot, plan.covered)
        saved_iters = self._iterations.saved_at(place)
        pass_length = self._schedule.pass_length
        kept_share = record.kept / pass_length
        scalars: Dict[str, float] = dict(
            kept_share=kept_share,
            mean_score=record.mean_score,
            saved_iters=saved_iters)
        # A full plan and many policies have none.
        if record.threshold:
            scalars['threshold'] = record.threshold
        if record.variance_ratio is not None:
            scalars['variance_ratio'] = record.variance_ratio.value
        self._add_scalars(**scalars)
        self._write(
            **record.to_dict(),
            iter=self._iterations.before(plan.first_slot),
            saved_iters=saved_iters)
        threshold = (f', pruned below {record.threshold:.4f}'
                     if record.threshold else '')
        saved = (f'{saved_iters:.0f} iterations ahead'
                 f'{self._in_time(saved_iters, " ({})")}, '
                 if self._run.policy.prunes else '')
        ratio = record.variance_ratio
        worth = '' if ratio is None else (
            f', V {ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})')
        self._info(f'virtual epoch {record.epoch}, {self._left()}: '
                   f'{record.kept} of {pass_length} images '
                   f'({100 * kept_share:.1f} %{threshold}), {saved}mean score '
                   f'{record.mean_score:.4f}{worth}')

    def _in_time(self, iterations: float, text: str) -> str:
        """Return a text with the time that so many iterations take, an empty
        text where less than a second was saved."""
        times = self._runner.message_hub.log_scalars.get('train/time')
        seconds = 0 if times is None else round(iterations *
                                                times.mean(_RECENT))
        return text.format(timedelta(seconds=seconds)) if seconds > 0 else ''

    @property
    def _done(self) -> int:
        """int: Epochs or iterations that are over, whichever the run counts.
        """
        return (self._runner.epoch
                if self._schedule.by_epoch else self._runner.iter)

    def _left(self) -> str:
        """Return how long pruning goes on."""
        iterations = self._iterations
        if iterations.annealing_at >= iterations.length:
            return 'no annealing'
        left = iterations.annealing_at - self._done
        unit = iterations.unit + 's' * (left != 1)
        return f'{left} {unit} until annealing' if left > 0 else 'annealing'

    def after_iter(self, batch_idx: int) -> None:
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
        if math.isfinite(loss):  # JSON has no NaN.
            self._write(iter=runner.iter + 1, loss=loss)

    def after_val(self, metrics: Dict[str, float]) -> None:
        """Write the metrics of a validation."""
        values = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, (int, float,
                                  np.number)) and math.isfinite(value)
        }
        self._write(iter=self._runner.iter, metrics=values)

    def run_ends(self) -> None:
        """Report what the run saved."""
        run, iteration = self._run, self._runner.iter
        place, fresh_from = run.stream.place, self._schedule.fresh_from
        saved = self._iterations.saved_at(place)
        self._add_scalars(saved_iters=saved)
        # Since all scores were 1.
        visits = place.covered - fresh_from
        pruned = max(visits - (place.spent - fresh_from), 0)
        epochs = visits / self._schedule.pass_length
        self._write(
            ends=dict(
                iter=iteration,
                saved_iters=saved,
                visits=round(visits),
                pruned=round(pruned),
                variance_ratio=without_nan(run.worth)))
        self._info(f'{iteration} iterations covered as many passes as '
                   f'{iteration + saved:.0f} iterations of the baseline'
                   f'{self._in_time(saved, ", which take {} longer")}; '
                   f'{pruned:.0f} of {visits:.0f} visits of images were pruned'
                   f' in {epochs:.2f} virtual epochs.' +
                   worth_in_words(run.worth, ' On average the', '.'))


def worth_in_words(ratio: Optional[VarianceRatio], begin: str,
                   end: str) -> str:
    """Return what V says of a choice of images, an empty text where V isn't
    known.

    Args:
        ratio (VarianceRatio, optional): V.
        begin (str): What comes before the words "choice of images".
        end (str): What comes after all.
    """
    if ratio is None or not math.isfinite(ratio.value):
        return ''
    # Rounded as V is shown.
    percent = round(100 * (1 - round(ratio.value, 2)))
    if percent == 0 or ratio.low <= 1 <= ratio.high:
        effect = "is not distinguishable from chance"
    elif percent > 0:
        effect = f'was worth up to {percent} % of the steps'
    else:
        effect = f'cost up to {-percent} % of the steps'
    return (f'{begin} choice of images {effect} (V {ratio.value:.2f}, '
            f'{ratio.low:.2f} to {ratio.high:.2f}; at random it is 1){end}')
