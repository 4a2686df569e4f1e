# Copyright (c) mmib contributors. All rights reserved.
"""Connects sampler, losses, scores and logs to the Runner."""
from collections import deque
from typing import Callable, Deque, NamedTuple, Optional, Sequence, Set, Union

import numpy as np
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor

from .checks import check_hooks, check_length, check_loader, check_loop
from .datasets import DeliveryCheck, image_numbers, image_path, one_pass
from .heads import wrap_losses
from .pruning import EpochPlan, Progress, ScoreTable, Tier
from .pruning.scores import to_device
from .registry import build_policy


class VirtualEpoch(NamedTuple):
    """What is known of a plan after its slots are gone.

    Args:
        start (int): Number of its first slot in the stream of all ranks.
        covered (float): Virtual epochs before it.
        size (int): Its slots, before annealing cut it short.
        threshold (float): Score from which on every image was kept.
        tiers (Sequence[Tier]): Its tiers, by increasing score.
        mean_score (float): Mean of all scores when it was drawn.
        non_finite (int): Losses until then that weren't finite.
        note (str): What the policy says of it.
        logged (bool): Whether it begins long enough after the last one that
            was logged.
    """

    start: int
    covered: float
    size: int
    threshold: float
    tiers: Sequence[Tier]
    mean_score: float
    non_finite: int
    note: str
    logged: bool

    def covered_until(self, position: int) -> float:
        """Virtual epochs before a slot of it or its end. If annealing cuts
        it short, it counts with the part that was issued."""
        return self.covered + (position - self.start) / self.size


@HOOKS.register_module()
class InfoBatchHook(Hook):
    """Train with InfoBatch, unbiased dynamic data pruning.

    In each virtual epoch images with a low score are left out at random, and
    the loss of those that stay is scaled up (Qin et al., ICLR 2024). The
    score of an image is its loss at its last visit. The last part of the
    training sees everything, with weight 1.

    It needs ``InfoBatchSampler`` in ``train_dataloader`` and a schedule that
    is shorter by what pruning saves. Each virtual epoch it logs one line, and
    the scalars ``infobatch/kept_share``, ``infobatch/threshold`` (0 where
    nothing is left out), ``infobatch/mean_score`` and
    ``infobatch/saved_iters``. Losses that are NaN or infinite while it prunes
    are counted in a warning and never become a score.

    Args:
        policy (dict or Callable): Config of the policy that draws the plans,
            or the policy itself. Defaults to ``dict(type='MeanThreshold')``.
        delta (float): Fraction of the iterations after which the data set is
            full again (annealing), in [0, 1). The paper advises at most
            0.875. Defaults to 0.85.

    Raises:
        ValueError: If ``delta`` is outside [0, 1).

    Examples:
        >>> custom_imports = dict(imports=['mmib'])
        >>> train_dataloader = dict(sampler=dict(type='InfoBatchSampler'))
        >>> custom_hooks = [
        >>>     dict(type='InfoBatchHook', policy=dict(type='QuantileTiers'))
        >>> ]
    """

    def __init__(
        self,
        policy: Union[dict, Callable] = dict(type='MeanThreshold'),
        delta: float = 0.85,
    ) -> None:
        if not 0 <= delta < 1:
            raise ValueError(
                '`delta` is the fraction of the iterations that prune and '
                f'must be in [0, 1), but got {delta}: change it at '
                'InfoBatchHook in `custom_hooks`.')
        self.policy = build_policy(policy)
        self.delta = delta

    def before_train(self, runner: Runner) -> None:
        """Check the config and connect the parts.

        Args:
            runner (Runner): The runner of the training process.
        """
        check_loop(runner)
        check_hooks(runner, self)
        loader = runner.train_dataloader
        check_loader(loader)
        self.sampler = loader.sampler
        self.dataset = loader.dataset
        self.batch_size = loader.batch_size
        self.slots_per_iter = self.batch_size * get_world_size()
        # Slots that may be in flight. A plan that begins fewer slots after
        # another one can't know any score of it, so it isn't worth waiting
        # for the device again, nor a line of log.
        self.lookahead = (
            loader.num_workers * (loader.prefetch_factor or 0) *
            self.slots_per_iter)
        self.num_samples = len(self.sampler)
        check_length(runner.max_iters, self.slots_per_iter, self.num_samples)
        self.annealing_iter = round(self.delta * runner.max_iters)
        self.annealing_start = self.annealing_iter * self.slots_per_iter
        self.annealing_slots = (
            runner.max_iters * self.slots_per_iter - self.annealing_start)
        if self.annealing_start <= self.num_samples:
            runner.logger.warning(
                'InfoBatch leaves nothing out: annealing begins at iteration '
                f'{self.annealing_iter}, before the first pass over '
                f'{self.num_samples} images ends. Train longer, or raise '
                '`delta`.')

        model = runner.model
        if is_model_wrapper(model):
            model = model.module
        self.losses = wrap_losses(model)
        self.device = next(model.parameters()).device
        # Number of the image of each index, where some repeat.
        self.images: Optional[np.ndarray] = image_numbers(
            one_pass(self.dataset))
        num_images = int(self.images.max()) + 1
        if num_images == self.num_samples:
            self.images = None
        self.scores = ScoreTable(num_images, self.device)
        self._scores: Optional[np.ndarray] = None
        self._logged_start = -self.lookahead
        self._is_delivered = DeliveryCheck(self.dataset)
        self._not_delivered: Set[int] = set()

        # The virtual epoch in training, and those drawn ahead of it.
        self.epoch: Optional[VirtualEpoch] = None
        self._next_epochs: Deque[VirtualEpoch] = deque()
        self._num_epochs = 0
        self._mean_score = 1.
        self._non_finite = self._non_finite_logged = 0
        self._noted = False
        self.sampler.connect(self.draw_plan)

    def draw_plan(self, start: int,
                  rng: np.random.Generator) -> Optional[EpochPlan]:
        """Draw the plan of the next virtual epoch. The sampler calls it.

        It waits for the scores of all ranks, in one collective. Those of the
        batches in flight aren't there yet. A plan that follows another one
        within the lookahead of the data loader is drawn from the same scores,
        without waiting.

        Args:
            start (int): Number of the plan's first slot in the stream.
            rng (np.random.Generator): Source of every random choice.

        Returns:
            EpochPlan, optional: The plan, or None for a full pass.
        """
        last = self._next_epochs[-1] if self._next_epochs else self.epoch
        covered = last.covered_until(start) if last else 0.
        logged = start - self._logged_start >= self.lookahead
        if logged:
            self._logged_start = start
        plan, note = None, ''
        if not self.scores.empty and start < self.annealing_start:
            if logged or self._scores is None:
                self._read_scores()
            if hasattr(self.policy, 'progress'):
                self.policy.progress = Progress(
                    slots_per_iter=self.slots_per_iter,
                    position=start,
                    slots_left=self.annealing_start - start,
                    annealing_slots=self.annealing_slots,
                    covered=covered)
            plan = self.policy(self._scores, rng)
            note = plan.note
            if len(plan) == 0:
                raise ValueError(
                    f'The policy {self.policy!r} left out every image: '
                    'change it at InfoBatchHook in `custom_hooks`.')
        if plan is None or plan.is_full:
            tiers = (Tier(self.num_samples, self.num_samples), )
            size, threshold, plan = self.num_samples, 0., None
        else:
            size, threshold, tiers = len(plan), plan.threshold, plan.tiers
            plan = plan[:self.annealing_start - start]
        self._next_epochs.append(
            VirtualEpoch(start, covered, size, threshold, tiers,
                         self._mean_score, self._non_finite, note, logged))
        return plan

    def _read_scores(self) -> None:
        """Wait for the scores of all ranks."""
        self.scores.merge()
        scores = self.scores.numpy()
        self._scores = scores if self.images is None else scores[self.images]
        self._mean_score = float(self._scores.mean())
        self._non_finite = self.scores.num_non_finite()

    def before_train_iter(self,
                          runner: Runner,
                          batch_idx: int,
                          data_batch: Optional[dict] = None) -> None:
        """Give the losses the weights of this batch.

        Args:
            runner (Runner): The runner of the training process.
            batch_idx (int): The index of the current batch.
            data_batch (dict): Data from the data loader.

        Raises:
            RuntimeError: If the batch isn't as long as it was asked for.
        """
        num_images = len(data_batch['inputs'])
        if num_images != self.batch_size:
            raise RuntimeError(
                f'A batch has {num_images} images where {self.batch_size} '
                'were asked for, so InfoBatch cannot tell which they are: '
                'check `train_dataloader.collate_fn`.')
        slots = self.sampler.take(self.batch_size)
        while (self._next_epochs
               and self._next_epochs[0].start < self.sampler.position):
            self._enter(runner, self._next_epochs.popleft())

        self._indices = slots.indices
        annealing = runner.iter >= self.annealing_iter
        weights = None if annealing else to_device(slots.weights, self.device)
        for loss in self.losses:
            loss.weights = weights

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Optional[dict] = None,
                         outputs: Optional[dict] = None) -> None:
        """Record the raw losses of this batch as scores.

        Args:
            runner (Runner): The runner of the training process.
            batch_idx (int): The index of the current batch.
            data_batch (dict): Data from the data loader.
            outputs (dict): Losses of the iteration.

        Raises:
            RuntimeError: If no head called its losses.
        """
        if runner.iter >= self.annealing_iter:
            return
        scores = [
            loss.scores for loss in self.losses if loss.scores is not None
        ]
        if not scores:
            raise RuntimeError(
                'No head called its `loss_decode` in this iteration, so '
                'InfoBatch has no scores: check the `loss` method of '
                '`model`, or train without InfoBatchHook.')
        self._record(runner, data_batch, sum(scores))
        for loss in self.losses:
            loss.weights = loss.scores = None

    def after_train(self, runner: Runner) -> None:
        """Log what the training saved.

        Args:
            runner (Runner): The runner of the training process.
        """
        self._log_non_finite(runner, self.scores.num_non_finite())
        position = self.sampler.position
        covered = self.epoch.covered_until(position)
        saved = self._saved_iters(self.epoch, position)
        self._add_scalars(runner, {'infobatch/saved_iters': saved})
        runner.logger.info(
            f'InfoBatch: {runner.iter} iterations ran {covered:.2f} virtual '
            f'epochs, for which stock training needs {runner.iter + saved:.0f}'
            f' iterations; {covered * self.num_samples - position:.0f} of '
            f'{covered * self.num_samples:.0f} images were left out.')

    def _record(self, runner: Runner, data_batch: dict,
                scores: Tensor) -> None:
        """Write the scores of the images that were asked for.

        Where an image can't be loaded the data set delivers another one.
        The image that was asked for then keeps the score it had.
        """
        indices = self._indices
        undecided = self._is_delivered.comparable is None
        delivered = self._is_delivered(indices, data_batch.get('data_samples'))
        if undecided and self._is_delivered.comparable is False:
            runner.logger.warning(
                'InfoBatch: the pipeline changes `img_path`, so images that '
                'cannot be read, for which the data set delivers others, are '
                'not noticed.')
        for index in set(indices[~delivered].tolist()) - self._not_delivered:
            self._not_delivered.add(index)
            runner.logger.warning(
                'InfoBatch: the data set delivered another image than '
                f'{image_path(self.dataset, index)}, which keeps its score. '
                'Check whether this file can be read.')
        if not delivered.all():
            indices = indices[delivered]
            scores = scores[to_device(np.flatnonzero(delivered), self.device)]
        if self.images is not None:
            indices = self.images[indices]
        self.scores.record(indices, scores, runner.iter)

    def _enter(self, runner: Runner, epoch: VirtualEpoch) -> None:
        """Log the virtual epoch that begins with this batch."""
        # The first plan knows too few scores, which the next ones make up.
        again = self.epoch is not None and self.epoch.note
        if epoch.note and again and not self._noted:
            runner.logger.warning(f'InfoBatch: {epoch.note}')
            self._noted = True
        self._num_epochs += 1
        self.epoch = epoch
        if not epoch.logged:
            return
        kept_share = epoch.size / self.num_samples
        saved = self._saved_iters(epoch, epoch.start)
        self._add_scalars(
            runner, {
                'infobatch/kept_share': kept_share,
                'infobatch/threshold': epoch.threshold,
                'infobatch/mean_score': epoch.mean_score,
                'infobatch/saved_iters': saved
            })
        tiers = ', '.join(f'{kept} of {size}' for size, kept in epoch.tiers)
        to_annealing = self.annealing_iter - runner.iter
        runner.logger.info(
            f'InfoBatch: virtual epoch {self._num_epochs}: '
            f'threshold {epoch.threshold:.4f}, kept share {kept_share:.3f} '
            f'({epoch.size} of {self.num_samples} images; by tier {tiers}), '
            f'mean score {epoch.mean_score:.4f}, {saved:.0f} iterations '
            'saved so far, ' +
            (f'{to_annealing} iterations until annealing' if to_annealing >
             0 else 'annealing'))
        self._log_non_finite(runner, epoch.non_finite)

    def _log_non_finite(self, runner: Runner, total: int) -> None:
        if total > self._non_finite_logged:
            runner.logger.warning(
                f'InfoBatch: {total - self._non_finite_logged} losses of '
                'images were NaN or infinite; these images keep the score '
                'they had before.')
        self._non_finite_logged = total

    def _add_scalars(self, runner: Runner, scalars: dict) -> None:
        for name, value in scalars.items():
            runner.message_hub.update_scalar(name, value)
        runner.visualizer.add_scalars(scalars, step=runner.iter)

    def _saved_iters(self, epoch: VirtualEpoch, position: int) -> float:
        """Iterations that stock training needs more for the same virtual
        epochs."""
        full = epoch.covered_until(position) * self.num_samples
        return (full - position) / self.slots_per_iter
