# Copyright (c) mmib contributors. All rights reserved.
"""The hook, which translates events of the Runner into calls of a run."""
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Union

import numpy as np
import torch
from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from ..errors import Refusal, check_no_others
from ..plans import Policy
from ..run.run import Run
from ..run.states import check_form, mismatch, to_current
from ..scores.log import Entry
from ..scores.stretch import Views, weights_of
from ..scores.table import check_ema
from ..scores.weigh import to_device
from ..scores.worth import MeanRatio, VarianceRatio
from ..stop import StopSignal, begin_worker
from ..stream.schedule import check_fractions
from ..stream.slots import Slots
from . import tasks
from .batch import BatchContext
from .console.reporter import Reporter
from .data.datasets import image_numbers
from .data.delivery import DeliveryCheck
from .registry import build_policy
from .runner.checkpoint import save_between_steps, seal, unsealed
from .runner.checks import (check_batch, check_length, check_ranks,
                            check_training)
from .runner.compat import (at_edges_of_steps, before_saving, is_accumulating,
                            restart_loader)
from .runner.epochs import ScheduleSteps, begin_epoch
from .runner.first_masks import FirstMasks
from .runner.iterations import Iterations
from .runner.mean_weight import decide_mean_weight


@HOOKS.register_module()
class InfoBatchHook(Hook):
    """Train with InfoBatch, unbiased dynamic data pruning.

    From the second pass on, images with a low score are pruned at random, and
    the gradients of the kept images are scaled up (Qin et al., ICLR 2024). The
    score of an image is its loss at its last visit or, with ``ema``, a moving
    average of the losses at its visits. Detectors use the norm of the gradient
    at the predictions instead of the loss. In the last part of the run, after
    ``delta``, plans are full, and all weights are 1.

    The data loader of the run needs ``InfoBatchSampler``. A run that counts
    iterations also needs a schedule that is shortened by what pruning saves.
    Each logged plan has a line in the log and scalars, see
    :class:`~mmib.openmmlab.console.reporter.Reporter`. Checkpoints have the
    state under the key ``infobatch``; ``load_from`` without ``resume`` ignores
    the state. At SIGTERM or SIGUSR1, all ranks save the run after the same
    step, and exit with the code 75.

    Args:
        policy (dict, Policy or Callable): Config of the policy that draws the
            plans, or the policy itself. Defaults to ``dict(type='Neyman')``.
        delta (float): Fraction of the run after which plans are full again
            (annealing), in [0, 1]. With 1, there is no annealing. The paper
            advises at most 0.875. Defaults to 0.85.
        ema (float, optional): Share of the old score in the new one at each
            visit except the first, in [0, 1). If None, the task decides: 0.8
            for masked images and detectors, or else 0, the last loss alone.
            Defaults to None.
        start (float): Fraction of the run before which nothing is pruned, in
            [0, 1), less than ``delta``. Defaults to 0: pruning may begin with
            the second pass.
        normalize (bool, optional): Whether to divide the weights of a plan by
            their mean. If not, the mean is 1 / kept share, as in the method,
            and steps of SGD are longer by this factor. If None, the optimizer
            decides: False if steps are proportional to the gradient (SGD
            without clipping by norm), and True for all other optimizers.
            Defaults to None.

    Raises:
        Refusal: If an argument is unknown or out of range.

    Examples:
        >>> custom_imports = dict(imports=['mmib'])
        >>> train_dataloader = dict(sampler=dict(type='InfoBatchSampler'))
        >>> custom_hooks = [dict(type='InfoBatchHook')]
    """

    def __init__(
        self,
        policy: Union[dict, Policy, Callable] = dict(type='Neyman'),
        delta: float = 0.85,
        ema: Optional[float] = None,
        start: float = 0.,
        normalize: Optional[bool] = None,
        **unknown: Any,
    ) -> None:
        check_no_others(unknown, InfoBatchHook, '`custom_hooks`')
        place = 'of InfoBatchHook in `custom_hooks`'
        check_fractions(delta, start, place)
        check_ema(0. if ema is None else ema, place)
        if not any(normalize is each for each in (True, False, None)):
            raise Refusal(f'`normalize` {place} must be True, False or None, '
                          f'but got {normalize!r}.')
        self.policy = build_policy(policy)
        self.delta, self.start = delta, start
        self.ema = ema
        self.normalize = normalize
        self.plan_observers: List[Callable] = []
        """list[Callable]: Each is called as ``observe(record, plan)`` with the
        ``PlanRecord`` and the ``EpochPlan`` of every plan, before the first
        slot of the plan is issued. Append to the list in ``before_run``."""
        self.batch = BatchContext(only_scores=not self.policy.prunes)
        """BatchContext: Weights and scores of the batch in training."""
        self.run: Run
        """Run: The run, from ``before_train`` on."""
        self.has_begun = False
        """bool: Whether there is a :attr:`run`."""
        self._slots: Slots  # Slots of the batch in training.
        self._views: Optional[Views] = None
        self._device: torch.device  # Of the training.
        self._first_masks: FirstMasks
        # Whether a step has begun that isn't over.
        self._is_in_step = False
        self._stop = StopSignal()
        self._steps: Optional[ScheduleSteps] = None  # None by iterations.
        self._loaded: Optional[Dict[str, Any]] = None

    @property
    def worth(self) -> VarianceRatio:
        """VarianceRatio: Mean V of the run so far, see :mod:`mmib.worth`. V is
        updated at each merge of visits, such as at a plan that reads scores
        and at a checkpoint, and NaN before."""
        return self.run.worth if self.has_begun else MeanRatio().mean()

    @property
    def kept_share(self) -> float:
        """float: Share of the images that the plan in training keeps."""
        return self.run.kept_share if self.has_begun else 1.

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Keep the state until it is known whether the run is resumed. This
        event also occurs for ``load_from`` and in testing."""
        self._loaded = checkpoint.get('infobatch')

    def before_train(self, runner: Runner) -> None:
        """Check the config, and connect the parts of the run."""
        check_training(runner, self)
        task = tasks.attach(runner.model, self.batch, runner.hooks)
        self._device = next(runner.model.parameters()).device
        self._set_up_run(runner, task)
        check_ranks(self.run, self._delivery)
        self._first_masks = FirstMasks(runner.train_dataloader.dataset,
                                       self.run.world.size)
        if runner.iter == 0:
            check_length(self._iterations, self.policy.prunes)
        elif self._loaded:
            self._resume(runner, self._loaded)
        else:
            self._start_afresh(
                runner, 'the checkpoint is of a run without InfoBatchHook')
        self._loaded = None
        self.has_begun = True
        self._reporter.run_begins()
        self._sampler.connect(self.run)
        if self._steps is None and runner.iter > 0:
            restart_loader(runner.train_loop)
        for each in (runner.train_loop, runner.val_loop):
            loader = getattr(each, 'dataloader', None)
            if isinstance(loader, DataLoader):
                loader.worker_init_fn = partial(begin_worker,
                                                loader.worker_init_fn)
        before_saving(runner, self.run.merge)
        at_edges_of_steps(runner, self.begin_step, self.end_step,
                          self.leave_step)
        self._stop.listen()

    def _set_up_run(self, runner: Runner, task: tasks.Task) -> None:
        loader = runner.train_dataloader
        sampler = self._sampler = loader.sampler
        slots = loader.batch_size * sampler.world_size
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            iterations = Iterations(
                sampler.num_indices,
                slots,
                runner.max_epochs,
                self.delta,
                self.start,
                iters_per_epoch=len(loader))
        else:
            prefetched = loader.num_workers * (loader.prefetch_factor or 0)
            iterations = Iterations(
                sampler.num_images,
                slots,
                runner.max_iters,
                self.delta,
                self.start,
                first_pass=sampler.num_indices,
                lookahead=prefetched * slots)
        mean_weight = decide_mean_weight(self.normalize, runner.optim_wrapper)

        @master_only
        def warn(text: str) -> None:
            runner.logger.warning(f'InfoBatch: {text}')

        self.run = Run(
            image_numbers(loader.dataset),
            self.policy,
            iterations.schedule,
            warn,
            shuffle=sampler.shuffle,
            seed=sampler.seed,
            ema=task.ema if self.ema is None else self.ema,
            normalize=mean_weight.is_one,
            score=task.score,
            visited_at=iterations.of_visits,
            every_rank_trains=True,
            observers=self.plan_observers,
            with_histograms=True)
        self._iterations = iterations
        if iterations.schedule.by_epoch:
            self._steps = ScheduleSteps(
                self.run, runner.max_iters // max(runner.max_epochs, 1))
            self._steps.take_over(runner.hooks)
        self._reporter = Reporter(runner, self.run, iterations, mean_weight)
        self._delivery = DeliveryCheck(loader.dataset, runner.logger.warning)

    def _resume(self, runner: Runner, state: Dict[str, Any]) -> None:
        """Go on from a state, or afresh if the state doesn't fit the run."""
        state = to_current(unsealed(state))
        reason = mismatch(state, self.run.state_dict(merge=False))
        if reason is None and (state.get('images_checksum')
                               != self._delivery.checksum):
            reason = ('the checkpoint is of other images than '
                      '`train_dataloader.dataset` has, or of the same images '
                      'in another order')
        if reason is not None:
            # The state of a Session has no iterations.
            if 'iterations' in state:
                check_form(state, dict(iterations=dict(saved=0.)))
            saved = state.get('iterations', dict(saved=0.))['saved']
            self._start_afresh(runner, reason, saved)
            return
        iterations = self._iterations
        template: Dict[str, Any] = dict(
            paths_comparable=[],
            iterations=iterations.state_dict(self.run.stream.place))
        if self._steps is not None:
            template['schedule_steps'] = dict.fromkeys(
                self._steps.state_dict(), 0)
        check_form(state, template)
        changes = self.run.load_state_dict(
            state, iterations.what_changed(state['iterations']))
        iterations.resume(self.run, runner.iter, state['iterations']['saved'])
        self._delivery.load(state['paths_comparable'])
        if self._steps is not None:
            self._steps.load_state_dict(state['schedule_steps'])
        self._reporter.run_resumes(changes)

    def _start_afresh(self,
                      runner: Runner,
                      reason: str,
                      saved: float = 0.) -> None:
        """Go on with full passes, and discard the scores."""
        run, iterations = self.run, self._iterations
        if run.schedule.by_epoch:
            # The position counts full passes in the place of the epochs
            # before, which may have been pruned.
            position = runner.epoch * run.schedule.pass_length
            whole = runner.iter + saved
            run.start_afresh(position, saved / max(whole, 1) * position)
        else:
            run.start_afresh(runner.iter * iterations.slots_per_iter)
        iterations.resume(run, runner.iter, saved)
        self._reporter.run_starts_afresh(reason)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Add everything that a resume needs to the checkpoint."""
        if self.has_begun:
            run = self.run
            checkpoint['infobatch'] = seal(
                dict(
                    run.state_dict(merge=False),
                    iterations=self._iterations.state_dict(run.stream.place),
                    schedule_steps=self._steps and self._steps.state_dict(),
                    paths_comparable=list(self._delivery.comparable),
                    images_checksum=self._delivery.checksum))

    def before_train_epoch(self, runner: Runner) -> None:
        """Draw the plan of an epoch, if the run counts epochs."""
        if self._steps is not None:
            begin_epoch(runner, self.run, self._iterations, self._steps)

    def before_train_iter(self,
                          runner: Runner,
                          batch_idx: int,
                          data_batch: Optional[dict] = None) -> None:
        """Look at the masks of the first batches."""
        self._first_masks.see(data_batch)

    def begin_step(self, runner: Runner, batch_idx: int,
                   data_batch: Any) -> None:
        """Set the weights of this batch, after all other hooks."""
        if batch_idx == 0:
            # A hook may have changed the losses, as MMPretrain's
            # SwitchRecipeHook does.
            tasks.attach(runner.model, self.batch, runner.hooks)
        if self._is_in_step:
            # The loop goes on after an error within a step.
            self._advance()
        run = self.run
        size = self._sampler.batch_size(runner.train_dataloader.batch_size)
        check_batch(data_batch, size)
        slots = self._slots = run.stream.batch(run.stream.position, size,
                                               run.world)
        for plan in run.stream.begun(run.stream.position, slots.end):
            self._reporter.plan_begins(plan)
        if slots.annealing:
            self.batch.clear()
        else:
            views = run.log.views(slots, self._device, has_mean_factors=True)
            self._views = views
            if views is None:
                self.batch.set_weights(*weights_of(slots, self._device))
            else:
                self.batch.set_weights(views.relative_weights, views.weights,
                                       views.mean_factors)
        self._is_in_step = True

    def end_step(self, data_batch: Any) -> None:
        """Log the scores and norms of this batch, before all other hooks. A
        checkpoint that is written within a step has the state of the edge
        before the step, and the step is made again."""
        self._advance()
        if not self._slots.annealing:
            self._record(data_batch)

    def leave_step(self, runner: Runner) -> None:
        """Save the run and exit if the cluster has asked for this, after all
        other hooks. Between two steps of the optimizer, gradients that are
        accumulated would be lost. The last step ends the run anyway."""
        if (self._stop.after_step() and not is_accumulating(runner)
                and runner.iter + 1 < runner.max_iters):
            path = save_between_steps(runner)
            runner.logger.warning(
                f'InfoBatch: the run stops at {self._stop.name}. The same '
                f'command with `--resume` goes on from {path}.')
            self._stop.leave()

    def _advance(self) -> None:
        """Move the position to the end of this batch."""
        run, end = self.run, self._slots.end
        if self._slots.annealing:
            # All ranks know that all of these slots were trained on.
            numbers = np.arange(run.stream.position, end)
            run.table.count_visits(run.stream.at(numbers).indices)
        run.stream.advance(end)
        self._is_in_step = False

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Optional[dict] = None,
                         outputs: Optional[dict] = None) -> None:
        """Write the mean loss where LoggerHook does."""
        self.batch.clear()
        self._reporter.after_iter(batch_idx)

    def _record(self, data_batch: Any) -> None:
        """Write the visits of this batch to the log."""
        log, slots, table = self.run.log, self._slots, self.run.table
        views = self._views
        scores = self.batch.write_scores(views and views.scores)
        norms = self.batch.write_norms(views and views.norms)
        if scores is None:
            # The model doesn't call `parse_losses`.
            raise tasks.no_scores()
        if (norms is None and table.score == 'gradient'
                and not table.knows_scores):
            raise Refusal(
                'The score of an image is the norm of the gradient at the '
                'predictions in this model, and this gradient cannot be seen '
                'here: train without InfoBatchHook.')
        # An image that can't be loaded keeps its score. Another image is
        # delivered in its place.
        delivered = self._delivery(slots.indices, data_batch)
        if not delivered.all():
            views = None
            log.record_unscored(slots.numbers[~delivered])
            slots = slots[delivered]
            rows = to_device(np.flatnonzero(delivered), scores.device)
            scores = scores[rows]
            norms = None if norms is None else norms[rows]
        if len(slots):
            log.record(Entry(slots, scores, norms, views))

    def after_train_epoch(self, runner: Runner) -> None:
        """End the plan of an epoch."""
        if self._steps is not None:
            # With `drop_last`, slots that fill no batch are given up.
            self.run.stream.advance(self.run.stream.end)
            self._sampler.end_epoch()

    def after_val_epoch(self,
                        runner: Runner,
                        metrics: Optional[Dict[str, float]] = None) -> None:
        """Keep the metrics for a report."""
        if self.has_begun:
            self._reporter.after_val(metrics or {})

    def after_train(self, runner: Runner) -> None:
        """Log what the run has saved."""
        self._stop.close()
        self.run.merge()
        self._reporter.run_ends()
