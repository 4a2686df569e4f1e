# Copyright (c) mmib contributors. All rights reserved.
"""Connects sampler, losses, scores and logs to the Runner."""
import functools
from typing import Any, Callable, Dict, List, Optional, Set, Union

import numpy as np
import torch
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmengine.utils import apply_to
from torch import Tensor

from .checks import check_hooks, check_length, check_loader, check_loop
from .datasets import DeliveryCheck, image_numbers, image_path, one_pass
from .heads import wrap_losses
from .planner import Planner, VirtualEpoch
from .pruning import ScoreTable
from .pruning.scores import to_device
from .registry import build_policy
from .resume import restart_loader


@HOOKS.register_module()
class InfoBatchHook(Hook):
    """Train with InfoBatch, unbiased dynamic data pruning.

    In each virtual epoch images with a low score are left out at random, and
    the loss of those that stay is scaled up (Qin et al., ICLR 2024). The
    score of an image is its loss at its last visit, or with ``ema`` a moving
    average of the losses at its visits. The last part of the training, after
    ``delta``, sees everything with weight 1.

    It needs ``InfoBatchSampler`` in ``train_dataloader`` and a schedule that
    is shorter by what pruning saves. Each virtual epoch it logs one line, and
    the scalars ``infobatch/kept_share``, ``infobatch/threshold`` (0 where
    nothing is left out, or no score decides), ``infobatch/mean_score`` and
    ``infobatch/saved_iters``. Losses that are NaN or infinite while it prunes
    are counted in a warning and never become a score.

    Checkpoints have its state under the key ``infobatch``. A training that is
    resumed goes on with the same slots and weights, and with the same plans
    wherever the losses are the same. ``load_from`` without ``resume`` leaves
    it out.

    Args:
        policy (dict or Callable): Config of the policy that draws the plans,
            or the policy itself. Defaults to ``dict(type='MeanThreshold')``.
        delta (float): Fraction of the iterations after which the data set is
            full again (annealing), in [0, 1]. With 1 there is no annealing.
            The paper advises at most 0.875. Defaults to 0.85.
        ema (float): Share of the old score in the new one at each visit but
            the first, in [0, 1). Defaults to 0, the last loss alone.

    Raises:
        ValueError: If ``delta`` is outside [0, 1], or ``ema`` outside [0, 1).

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
        ema: float = 0.,
    ) -> None:
        if not 0 <= delta <= 1:
            raise ValueError(
                '`delta` is the fraction of the iterations that prune and '
                f'must be in [0, 1], but got {delta}: change it at '
                'InfoBatchHook in `custom_hooks`.')
        if not 0 <= ema < 1:
            raise ValueError(
                '`ema` is the share of the old score in the new one and must '
                f'be in [0, 1), but got {ema}: change it at InfoBatchHook in '
                '`custom_hooks`.')
        self.policy = build_policy(policy)
        self.delta = delta
        self.ema = ema
        self.plan_observers: List[Callable] = []
        """list[Callable]: Each is called as ``observe(epoch, plan)`` with the
        ``VirtualEpoch`` and the ``EpochPlan`` (None is a full pass) of every
        plan, when it was drawn and before its first slot is issued. To see
        all plans, append to it before the training, as in ``before_run`` of a
        hook."""
        self.planner: Optional[Planner] = None
        self._loaded: Optional[dict] = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Keep the state in the checkpoint until it is known whether the
        training is resumed: this also runs for ``load_from`` and in testing.

        Args:
            runner (Runner): The runner.
            checkpoint (dict): The checkpoint that was read.
        """
        if 'infobatch' in checkpoint:
            # It may have been loaded to the training device.
            self._loaded = apply_to(checkpoint['infobatch'], torch.is_tensor,
                                    lambda tensor: tensor.cpu())

    def before_train(self, runner: Runner) -> None:
        """Check the config and connect the parts.

        Args:
            runner (Runner): The runner of the training process.

        Raises:
            RuntimeError: If the hook has trained before.
            ValueError: If the state in the checkpoint is damaged.
        """
        if self.planner is not None:
            raise RuntimeError(
                'InfoBatchHook has trained already: build a new Runner with '
                '`resume=True` to go on from the last checkpoint.')
        check_loop(runner)
        check_hooks(runner, self)
        loader = runner.train_dataloader
        check_loader(loader)
        self.sampler = loader.sampler
        self.dataset = loader.dataset
        self.batch_size = loader.batch_size
        slots_per_iter = self.batch_size * get_world_size()
        num_samples = len(self.sampler)

        model = runner.model
        if is_model_wrapper(model):
            model = model.module
        self.losses = wrap_losses(model)
        self.device = next(model.parameters()).device
        # Number of the image of each index, where some repeat.
        self.images: Optional[np.ndarray] = image_numbers(
            one_pass(self.dataset))
        num_images = int(self.images.max()) + 1
        if num_images == num_samples:
            self.images = None
        self.scores = ScoreTable(num_images, self.device, self.ema)
        self._is_delivered = DeliveryCheck(self.dataset)
        self._not_delivered: Set[int] = set()
        self.planner = Planner(
            self.policy,
            self.scores,
            num_samples,
            self.images,
            slots_per_iter=slots_per_iter,
            max_iters=runner.max_iters,
            annealing_iter=round(self.delta * runner.max_iters),
            lookahead=loader.num_workers * (loader.prefetch_factor or 0) *
            slots_per_iter,
            observers=self.plan_observers)
        self._non_finite_logged = 0
        self._noted = False

        state, self._loaded = self._loaded, None
        if runner.iter > 0:
            try:
                self._resume(runner, state)
            except KeyError as error:
                raise ValueError(
                    f'`infobatch` in the checkpoint lacks {error}: resume '
                    'from an earlier one, or delete this key from it, and '
                    'scores start at 1 again.') from error
        else:
            check_length(runner.max_iters, slots_per_iter, num_samples)
        if (self.planner.leaves_nothing_out
                and runner.iter < runner.max_iters):
            runner.logger.warning(
                'InfoBatch leaves nothing out: pruning ends at iteration '
                f'{self.planner.annealing_iter}, before the first pass over '
                f'{num_samples} images does. Train longer, or raise `delta` '
                'if it is less than 1.')
        self.sampler.connect(self.planner)
        if runner.iter > 0:
            restart_loader(runner.train_loop)
        self._merge_before_saving(runner)

    def _resume(self, runner: Runner, state: Optional[Dict[str, Any]]) -> None:
        """Go on with the slots that the checkpoint has, or where there are
        none for this data set, with full passes.

        Args:
            runner (Runner): The runner of the training process.
            state (dict, optional): ``infobatch`` of the checkpoint.
        """
        reason = self._why_afresh(state)
        if reason is None:
            self.sampler.load_state_dict(state['sampler'])
            changes = self.scores.load_state_dict(state['scores'])
            changes += self.planner.load_state_dict(state['planner'],
                                                    runner.iter,
                                                    self.sampler.position)
            self._is_delivered.comparable = state['paths_comparable']
            self._non_finite_logged = self.planner.epoch.non_finite
            runner.logger.info(
                f'InfoBatch goes on in virtual epoch {self.planner.num_epochs}'
                f' at slot {self.sampler.position}' +
                ''.join(f'; {change}' for change in changes) + '.')
        else:
            runner.logger.warning(
                f'InfoBatch: {reason}. All scores start at 1, and nothing is '
                'left out until every image was trained on once.')
            self.sampler.skip(runner.iter * self.batch_size)
            self.planner.begin(
                runner.iter, self.sampler.position, runner.iter
                if state is None else state['planner']['full_equivalent'])

    def _why_afresh(self, state: Optional[Dict[str, Any]]) -> Optional[str]:
        """Why a training can't go on from a state, or None."""
        if state is None:
            return 'the checkpoint is of a training without InfoBatchHook'
        sizes = [(state['sampler']['size'], len(state['scores']['scores'])),
                 (len(self.sampler), len(self.scores))]
        if sizes[0] == sizes[1]:
            return None
        before, now = (f'{images} images' +
                       (f', {slots} with repeats' if slots > images else '')
                       for slots, images in sizes)
        return (f'the checkpoint is of {before}, and '
                f'`train_dataloader.dataset` has {now}')

    def _merge_before_saving(self, runner: Runner) -> None:
        """Let every checkpoint hold the scores of all ranks.

        All ranks call ``save_checkpoint``, of which all but the first return
        at once. Nothing later is called on more than the first one, where a
        collective would wait for good.
        """
        save_checkpoint = runner.save_checkpoint

        @functools.wraps(save_checkpoint)
        def merge_and_save(*args, **kwargs) -> None:
            self.planner.merge_scores()
            save_checkpoint(*args, **kwargs)

        runner.save_checkpoint = merge_and_save

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Put everything needed to continue into the checkpoint.

        Args:
            runner (Runner): The runner of the training process.
            checkpoint (dict): The checkpoint that will be written.
        """
        if self.planner is None or self.planner.epoch is None:
            return  # Nothing was trained on.
        checkpoint['infobatch'] = dict(
            sampler=self.sampler.state_dict(),
            scores=self.scores.state_dict(),
            planner=self.planner.state_dict(self.sampler.position),
            paths_comparable=self._is_delivered.comparable)

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
        for last, epoch in self.planner.enter(self.sampler.position):
            self._log(runner, last, epoch)

        self._indices = slots.indices
        annealing = runner.iter >= self.planner.annealing_iter
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
        if runner.iter >= self.planner.annealing_iter:
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
        covered = self.planner.epoch.covered_until(position)
        left_out = covered * len(self.sampler) - position
        saved = self.planner.saved_iters(self.planner.epoch, position)
        self._add_scalars(runner, {'infobatch/saved_iters': saved})
        runner.logger.info(
            f'InfoBatch: {runner.iter} iterations ran {covered:.2f} virtual '
            f'epochs, for which stock training needs {runner.iter + saved:.0f}'
            f' iterations; {left_out:.0f} of {left_out + position:.0f} visits '
            'of images were left out.')

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

    def _log(self, runner: Runner, last: Optional[VirtualEpoch],
             epoch: VirtualEpoch) -> None:
        """Log the virtual epoch that begins with this batch."""
        # The first plan knows too few scores, which the next ones make up.
        if epoch.note and last is not None and last.note and not self._noted:
            runner.logger.warning(f'InfoBatch: {epoch.note}')
            self._noted = True
        if not epoch.logged:
            return
        kept_share = epoch.size / len(self.sampler)
        saved = self.planner.saved_iters(epoch, epoch.start)
        self._add_scalars(
            runner, {
                'infobatch/kept_share': kept_share,
                'infobatch/threshold': epoch.threshold,
                'infobatch/mean_score': epoch.mean_score,
                'infobatch/saved_iters': saved
            })
        tiers = ', '.join(f'{kept} of {size}' for size, kept in epoch.tiers)
        runner.logger.info(
            f'InfoBatch: virtual epoch {self.planner.num_epochs}: '
            f'threshold {epoch.threshold:.4f}, kept share {kept_share:.3f} '
            f'({epoch.size} of {len(self.sampler)} images; by tier {tiers}), '
            f'mean score {epoch.mean_score:.4f}, {saved:.0f} iterations '
            f'saved so far, {self._until_annealing(runner.iter)}')
        self._log_non_finite(runner, epoch.non_finite)

    def _until_annealing(self, iteration: int) -> str:
        annealing_iter = self.planner.annealing_iter
        if annealing_iter >= self.planner.max_iters:
            return 'no annealing'
        if iteration >= annealing_iter:
            return 'annealing'
        return f'{annealing_iter - iteration} iterations until annealing'

    def _log_non_finite(self, runner: Runner, total: int) -> None:
        # Each text is another one: MMEngine leaves out warnings that repeat.
        if total > self._non_finite_logged:
            runner.logger.warning(
                f'InfoBatch: {total - self._non_finite_logged} losses of '
                f'images were NaN or infinite, {total} so far; these images '
                'keep the score they had before.')
        self._non_finite_logged = total

    def _add_scalars(self, runner: Runner, scalars: dict) -> None:
        for name, value in scalars.items():
            runner.message_hub.update_scalar(name, value)
        runner.visualizer.add_scalars(scalars, step=runner.iter)
