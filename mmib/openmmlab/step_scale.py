# Copyright (c) mmib contributors. All rights reserved.
"""The hook of a control: steps as long as those of a pruned run."""
from typing import List, Optional, Tuple, Union

from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..errors import Refusal
from ..plans import Policy
from .console.forecast import forecast
from .data.datasets import unwrap_repeats
from .registry import build_policy
from .runner.iterations import Iterations
from .runner.mean_weight import decide_mean_weight


@HOOKS.register_module()
class StepScaleHook(Hook):
    """Train the control of a pruned run with steps as long as in that run.

    The weights of a pruned run make steps of SGD longer by the mean weight of
    a plan, and don't make weight decay stronger. In the iterations in which
    that run prunes, this hook multiplies the learning rate by the mean weight,
    and divides the weight decay by it. Each step sets both anew, so schedulers
    and checkpoints see the values of the config. With an optimizer for which
    InfoBatchHook makes the mean weight 1, nothing changes.

    Args:
        policy (dict or Policy): Draws the plans of the pruned run. Defaults to
            ``dict(type='Neyman')``.
        delta (float): Fraction of the pruned run that prunes. Defaults to
            0.85.
        scale (float, optional): Factor of the learning rate. If None, the mean
            weight that is expected of ``policy``. Defaults to None.
        max_epochs (int, optional): Epochs of the pruned run, and of the
            baseline. Required in a run that counts epochs. Defaults to None.
    """

    # The learning rate in the log is that of the step.
    priority = 'HIGHEST'

    def __init__(self,
                 policy: Union[dict, Policy] = dict(type='Neyman'),
                 delta: float = 0.85,
                 scale: Optional[float] = None,
                 max_epochs: Optional[int] = None) -> None:
        self.policy = build_policy(policy)
        self.delta, self.scale, self.max_epochs = delta, scale, max_epochs
        self._begin, self._end = 0., 0.
        # Learning rate and weight decay of each group of parameters, within a
        # step whose length is changed.
        self._own: List[Tuple[dict, float, float]] = []

    def before_train(self, runner: Runner) -> None:
        """Decide which steps are longer, and by how much."""
        iterations = self._iterations_of(runner)
        is_one, why = decide_mean_weight(None, runner.optim_wrapper)
        expected = forecast(self.policy, iterations, normalize=is_one)
        scale = 1. if is_one else self.scale or expected.mean_weight
        if scale is None:
            raise no_scale(self.policy)
        self.scale = scale
        self._begin, self._end = iterations.pruning(expected.share or 1.)
        runner.logger.info(
            'InfoBatch: the control of a pruned run. The learning rate is '
            f'multiplied by {scale:.2f}, the mean weight of its plans, in '
            f'iterations {self._begin:.0f} to {self._end:.0f}: {why}.')

    def _iterations_of(self, runner: Runner) -> Iterations:
        """Return what the pruned run is in iterations."""
        loader, world_size = runner.train_dataloader, get_world_size()
        slots, num_indices = loader.batch_size * world_size, len(
            loader.dataset)
        if self.max_epochs is not None:
            return Iterations(
                num_indices,
                slots,
                self.max_epochs,
                self.delta,
                iters_per_epoch=len(loader))
        return Iterations(
            len(unwrap_repeats(loader.dataset)),
            slots,
            runner.max_iters,
            self.delta,
            first_pass=num_indices)

    def before_train_iter(self,
                          runner: Runner,
                          batch_idx: int,
                          data_batch: Optional[dict] = None) -> None:
        """Set the length of this step."""
        self._restore()  # After an error within a step.
        if self.scale == 1 or not self._begin <= runner.iter < self._end:
            return
        wrapper = runner.optim_wrapper
        wrappers = getattr(wrapper, 'optim_wrappers', {'': wrapper})
        for each in wrappers.values():
            for group in each.optimizer.param_groups:
                decay = group.get('weight_decay', 0.)
                self._own.append((group, group['lr'], decay))
                group['lr'] *= self.scale
                group['weight_decay'] = decay / self.scale

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Optional[dict] = None,
                         outputs: Optional[dict] = None) -> None:
        """Restore what schedulers go on from."""
        self._restore()

    def _restore(self) -> None:
        for group, rate, decay in self._own:
            group.update(lr=rate, weight_decay=decay)
        self._own = []


def no_scale(policy: Policy) -> Refusal:
    """Return the refusal where the mean weight of a policy isn't known."""
    return Refusal(
        f'How long the steps of a run with {policy!r} are depends on the '
        'losses: give its mean weight (`mmib report` shows the kept share, '
        'and the mean weight is 1 / kept share), by `steps` of `mmib.shorten`'
        ', or --steps of the command. With 1, steps are those of the config.')
