# Copyright (c) mmib contributors. All rights reserved.
"""From the events of the Runner to calls of a training."""
from typing import Any, Callable, Dict, List, Optional, Union

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..clock import Clock, EpochClock, IterationClock
from ..errors import check_no_others
from ..pruning import Policy
from ..training import Training
from . import tasks
from .batch import BatchContext
from .console.reporter import Reporter
from .data.delivery import DeliveryCheck, data_samples
from .registry import build_policy
from .runner import step_size
from .runner.checkpoint import before_saving, opened, seal
from .runner.checks import (check_batch, check_hook_arguments, check_length,
                            check_ranks, check_training, no_scores)
from .runner.compat import restart_loader
from .runner.epochs import EpochDriver


@HOOKS.register_module()
class InfoBatchHook(Hook):
    """Train with InfoBatch, unbiased dynamic data pruning.

    In each virtual epoch images with a low score are pruned at random, and
    the loss of those that stay is scaled up (Qin et al., ICLR 2024). The
    score of an image is its loss at its last visit, or with ``ema`` a moving
    average of the losses at its visits. Detectors have the norm of the
    gradient of the loss at the predictions in the place of the loss. The last
    part of the training, after ``delta``, sees everything with weight 1.

    The data loader of the training needs ``InfoBatchSampler``, and a training
    that counts iterations a schedule that is shorter by what pruning saves.
    Each virtual epoch has a line of log and scalars (see
    :class:`~mmib.openmmlab.console.reporter.Reporter`). Checkpoints have the state under
    the key ``infobatch``; ``load_from`` without ``resume`` ignores it.

    Args:
        policy (dict, Policy or Callable): Config of the policy that draws the
            plans, or the policy itself. Defaults to ``dict(type='Neyman')``.
        delta (float): Fraction of the training after which the data set is
            full again (annealing), in [0, 1]. With 1 there is no annealing.
            The paper advises at most 0.875. Defaults to 0.85.
        ema (float, optional): Share of the old score in the new one at each
            visit but the first, in [0, 1). If None, the task decides: 0, the
            last loss alone, but for masked images and detectors. Defaults to
            None.
        start (float): Fraction of the training before which nothing is
            pruned, in [0, 1), less than ``delta``. Defaults to 0, from the
            second pass on.
        normalize (bool, optional): Whether the weights of a plan are divided
            by their mean. If not, the mean is 1 / kept share, as in the
            method, and steps of SGD are longer by that. If None, this is
            decided by the optimizer: the weights of the method where steps are
            in proportion to the gradient (SGD without clipping by norm), and
            a mean of 1 for all others. Defaults to None.

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
        check_hook_arguments(delta, ema, start, normalize)
        self.policy = build_policy(policy)
        self.delta, self.start = delta, start
        self.ema = ema
        self.normalize = normalize
        self.plan_observers: List[Callable] = []
        """list[Callable]: Each is called as ``observe(record, plan)`` with the
        ``PlanRecord`` and the ``EpochPlan`` of every plan, before its first
        slot is issued. Append in ``before_run``."""
        self.batch = BatchContext(only_scores=not self.policy.prunes)
        """BatchContext: Weights and scores of the batch in training."""
        self.training: Training
        """Training: The training, from ``before_train`` on."""
        self.has_begun = False
        """bool: Whether there is a :attr:`training`."""
        self._epochs: Optional[EpochDriver] = None
        self._loaded: Optional[Dict[str, Any]] = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Keep the state until it is known whether the training is resumed:
        this also runs for ``load_from`` and in testing."""
        self._loaded = checkpoint.get('infobatch')

    def before_train(self, runner: Runner) -> None:
        """Check the config and connect the parts."""
        check_training(runner, self)
        self._set_up_training(runner, self._attach_losses(runner))
        check_ranks(self.training, self._delivery)
        if runner.iter > 0:
            self._resume(runner)
        else:
            check_length(self.training.clock, self.policy.prunes)
        self._loaded = None
        self._reporter.training_begins()
        self.training.sampler.connect(self.training.draw)
        if self._epochs is None and runner.iter > 0:
            restart_loader(runner.train_loop)
        before_saving(runner, self.training.merge)

    def _attach_losses(self, runner: Runner) -> tasks.Task:
        model = runner.model
        model = model.module if is_model_wrapper(model) else model
        return tasks.attach(model, self.batch, runner.hooks)

    def _set_up_training(self, runner: Runner, task: tasks.Task) -> None:
        loader = runner.train_dataloader
        self._batch_size = loader.batch_size
        self._device = next(runner.model.parameters()).device
        mean_weight = step_size.decide(self.normalize, runner.optim_wrapper)
        self.training = Training(
            loader.dataset,
            self.policy,
            loader.sampler,
            self._clock(runner),
            ema=task.ema if self.ema is None else self.ema,
            normalize=mean_weight.is_one,
            score=task.score,
            batch=self.batch)
        self.has_begun = True
        self.training.planner.observers = self.plan_observers
        if self.training.sampler.by_epoch:
            self._epochs = EpochDriver(runner, self.training)
        self._reporter = Reporter(runner, self.training, mean_weight)
        self._delivery = DeliveryCheck(loader.dataset, runner.logger.warning)

    def _clock(self, runner: Runner) -> Clock:
        loader = runner.train_dataloader
        sampler = loader.sampler
        sampler.by_epoch = isinstance(runner.train_loop, EpochBasedTrainLoop)
        slots_per_iter = loader.batch_size * sampler.world_size
        if sampler.by_epoch:
            return EpochClock(sampler.num_indices, slots_per_iter, len(loader),
                              runner.max_epochs, self.delta, self.start)
        return IterationClock(
            sampler.num_images,
            slots_per_iter,
            runner.max_iters,
            self.delta,
            self.start,
            first_pass=sampler.num_indices,
            lookahead=loader.num_workers * (loader.prefetch_factor or 0) *
            slots_per_iter)

    def _resume(self, runner: Runner) -> None:
        """Go on with the state of the checkpoint, or where it has none of this
        data set, with full passes."""
        state: dict = {} if self._loaded is None else opened(self._loaded)
        reason: Optional[str] = (
            'the checkpoint is of a training without InfoBatchHook')
        if state:
            reason = self.training.why_not(state) or self._delivery.why_not(
                state.get('images_checksum'))
        if reason is not None:
            saved = state.get('saved_iters', 0.)
            self.training.start_afresh(runner.iter, runner.epoch,
                                       self._batch_size, saved)
            self._reporter.starts_afresh(reason)
            return
        changes = self.training.load_state_dict(state, runner.iter)
        self._delivery.load(state['paths_comparable'])
        if self._epochs is not None:
            self._epochs.steps.load_state_dict(state['schedule_steps'])
        self._reporter.goes_on(changes)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Put everything needed to continue into the checkpoint."""
        if self.has_begun and self.training.planner.current:
            checkpoint['infobatch'] = seal(
                dict(
                    self.training.state_dict(merge=False),
                    schedule_steps=self._epochs
                    and self._epochs.steps.state_dict(),
                    paths_comparable=list(self._delivery.comparable),
                    images_checksum=self._delivery.checksum))

    def before_train_epoch(self, runner: Runner) -> None:
        """Draw the plan of an epoch, where epochs count."""
        if self._epochs is not None:
            self._epochs.begin(runner)

    def before_train_iter(self,
                          runner: Runner,
                          batch_idx: int,
                          data_batch: Optional[dict] = None) -> None:
        """Give the losses the weights of this batch."""
        if batch_idx == 0:
            # A hook may change them, as MMPretrain's SwitchRecipeHook does.
            self._attach_losses(runner)
        batch_size = self.training.batch_length(self._batch_size)
        check_batch(data_batch, batch_size)
        for record in self.training.begin_batch(batch_size, self._device):
            self._reporter.epoch_begins(record)

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Optional[dict] = None,
                         outputs: Optional[dict] = None) -> None:
        """Record the raw losses of this batch as scores."""
        if self.batch.weights is None:  # As in annealing.
            loss = (outputs or {}).get('loss')
            loss = loss if loss is None else loss.detach()
        else:
            # An image that can't be loaded, for which another one is
            # delivered, keeps its score.
            delivered = self._delivery(self.training.own_slots.indices,
                                       data_samples(data_batch))
            loss = self.training.end_batch(delivered)
            if loss is None:
                raise no_scores()
        self._reporter.step(loss, batch_idx)

    def after_train_epoch(self, runner: Runner) -> None:
        """End the plan of an epoch."""
        if self._epochs is not None:
            self.training.sampler.end_epoch()

    def after_val_epoch(self,
                        runner: Runner,
                        metrics: Optional[Dict[str, float]] = None) -> None:
        """Keep the metrics for a report."""
        if self.has_begun:
            self._reporter.validated(metrics or {})

    def after_train(self, runner: Runner) -> None:
        """Log what the training saved."""
        self.training.merge()
        self.training.planner.read_sums()
        self._reporter.ends()
