# Copyright (c) mmib contributors. All rights reserved.
"""Connects sampler, losses, scores and log to the events of the Runner."""
from typing import Any, Callable, Dict, List, Optional, Union

import torch
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmengine.utils import apply_to

from . import compat, tasks
from .batch import BatchContext, to_device
from .clock import Clock, clock_of
from .config import step_size
from .config.checks import (check_batch, check_hook_arguments, check_no_others,
                            check_norms, check_scores, check_training)
from .datasets import image_numbers
from .delivery import DeliveryCheck, data_samples
from .log.counts import ImageCounts
from .log.reporter import Reporter
from .planner import Planner
from .pruning import EpochPlan, Policy
from .registry import build_policy
from .resume import check_ranks, load_state, make_state
from .sampler import InfoBatchSampler
from .scores import ScoreTable
from .visits import VisitCounter


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
    :class:`~mmib.log.reporter.Reporter`). Checkpoints have the state under
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
        TypeError or ValueError: If an argument is unknown or out of range.

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
        ``PlanRecord`` and the ``EpochPlan`` (None is a full pass) of every
        plan, before its first slot is issued. Append in ``before_run``."""
        self.batch = BatchContext(not self.policy.prunes)
        """BatchContext: Weights and scores of the batch in training."""
        # Made in `before_train`.
        self.sampler: Optional[InfoBatchSampler] = None
        self.scores: Optional[ScoreTable] = None
        self.counts: Optional[ImageCounts] = None
        self.clock: Optional[Clock] = None
        self.planner: Optional[Planner] = None
        self.dataset: Any = None
        self._batch_size = 0
        self._device = torch.device('cpu')
        self._reporter: Optional[Reporter] = None
        self._delivery: Optional[DeliveryCheck] = None
        self._slots: Optional[EpochPlan] = None
        self._loaded: Optional[Dict[str, Any]] = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Keep the state until it is known whether the training is resumed:
        this also runs for ``load_from`` and in testing."""
        if 'infobatch' in checkpoint:
            # It may have been loaded to the training device.
            self._loaded = apply_to(checkpoint['infobatch'], torch.is_tensor,
                                    lambda tensor: tensor.cpu())

    def before_train(self, runner: Runner) -> None:
        """Check the config and connect the parts."""
        check_training(runner, self)
        self._set_up_planner(runner, self._attach_losses(runner))
        check_ranks(self.sampler, self.scores, self._delivery)
        if runner.iter > 0:
            self._resume(runner)
        elif self.policy.prunes:
            self.clock.check_length()
        self._loaded = None
        self._reporter.training_begins()
        self.clock.connect(runner, self.sampler, self.planner)
        compat.before_saving(runner, self.planner.merge_scores)

    def _attach_losses(self, runner: Runner) -> tasks.Task:
        model = runner.model
        model = model.module if is_model_wrapper(model) else model
        self._device = next(model.parameters()).device
        return tasks.attach(model, self.batch, runner.hooks)

    def _set_up_planner(self, runner: Runner, task: tasks.Task) -> None:
        loader = runner.train_dataloader
        self.sampler, self.dataset = loader.sampler, loader.dataset
        self._batch_size = loader.batch_size
        self.clock = clock_of(runner, self.delta, self.start)
        images = image_numbers(self.dataset)[:self.sampler.pass_length]
        ema = task.ema if self.ema is None else self.ema
        self.scores = ScoreTable(images, self._device, ema)
        self.counts = ImageCounts(images)
        visits = VisitCounter(self.scores, task.score)
        mean_weight = step_size.decide(self.normalize, runner.optim_wrapper)
        self.planner = Planner(self.policy, visits, self.counts, self.clock,
                               self.plan_observers, mean_weight.is_one)
        self._reporter = Reporter(runner, self.planner, mean_weight)
        self._delivery = DeliveryCheck(self.dataset, runner.logger.warning)

    def _resume(self, runner: Runner) -> None:
        reason, changes = load_state(self._loaded, runner.iter,
                                     self._batch_size, self.sampler,
                                     self.scores, self.planner, self._delivery)
        if reason:
            self._reporter.starts_afresh(reason)
        else:
            self._reporter.goes_on(self.sampler.position, changes)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Put everything needed to continue into the checkpoint."""
        if self.planner and self.planner.current:
            checkpoint['infobatch'] = make_state(self.sampler, self.scores,
                                                 self.planner, self._delivery)

    def before_train_epoch(self, runner: Runner) -> None:
        """Draw the plan of an epoch, where epochs count."""
        self.clock.begin_epoch(runner, self.sampler,
                               lambda: self.planner.next_share)

    def before_train_iter(self,
                          runner: Runner,
                          batch_idx: int,
                          data_batch: Optional[dict] = None) -> None:
        """Give the losses the weights of this batch."""
        if batch_idx == 0:
            # A hook may change them, as MMPretrain's SwitchRecipeHook does.
            self._attach_losses(runner)
        batch_size = self.sampler.batch_length(self._batch_size)
        check_batch(data_batch, batch_size)
        is_annealing = self.clock.is_annealing(self.sampler.position)
        slots = self.sampler.take(batch_size)
        self.counts.visit(slots.indices)
        self._slots = slots[self.sampler.rank::self.sampler.world_size]
        for record in self.planner.advance(self.sampler.position):
            self._reporter.epoch_begins(record)
        self.batch.begin(None if is_annealing else to_device(
            self._slots.weights, self._device))

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Optional[dict] = None,
                         outputs: Optional[dict] = None) -> None:
        """Record the raw losses of this batch as scores."""
        if self.batch.weights is None:  # As in annealing.
            loss = outputs.get('loss')
            self._reporter.step(loss if loss is None else loss.detach(),
                                batch_idx)
            return
        loss = self.batch.unweighted_loss
        check_scores(loss)
        # An image that can't be loaded, for which another one is delivered,
        # keeps its score.
        delivered = self._delivery(self._slots.indices,
                                   data_samples(data_batch))
        visits = self.planner.visits
        visits.record(self._slots, self.batch, delivered,
                      self.planner.current.mean_weight, runner.iter)
        if visits.lacks_norms:
            check_norms(visits.score)
            self._reporter.no_norms()
        self._reporter.step(loss, batch_idx)
        self.batch.begin(None)

    def after_train_epoch(self, runner: Runner) -> None:
        """End the plan of an epoch."""
        self.clock.end_epoch(self.sampler)

    def after_train(self, runner: Runner) -> None:
        """Log what the training saved."""
        self.planner.read_sums()
        self._reporter.non_finite(self.scores.num_non_finite())
        self._reporter.ends(self.sampler.position)
