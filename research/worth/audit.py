# Copyright (c) mmib contributors. All rights reserved.
"""Compare V as a training tells it with V from true gradients.

While a config trains with InfoBatch, it stops at the beginning of some plans,
loads images that the plan has still to come (with another crop than the
training will have), and takes the gradient of each image's loss alone, in as
many backward passes. V of these is what the plan is worth. BatchNorm uses its
running statistics meanwhile, so that an image doesn't depend on others.
"""
import argparse
from typing import Dict, List, Optional

import numpy as np
import pandas as pd
import torch
from mmengine.dataset import pseudo_collate
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmib.batch import BatchContext
from mmib.losses import InfoBatchLoss
from mmib.worth import variance_ratio
from research.pruned_training import (add_arguments, build_runner,
                                      infobatch_hook)


class Audit(Hook):
    """Measures the gradients of images of the plan in training, at some
    fractions of the iterations before annealing."""

    # What this iteration recorded is in the scores.
    priority = 'LOWEST'

    def __init__(self, at: List[float], num_images: int) -> None:
        self.at = sorted(at)
        self.num_images = num_images
        self.rows: List[Dict] = []
        self._plan = self._next_plan = None
        self._measured: Optional[Dict] = None

    def before_run(self, runner: Runner) -> None:
        self.infobatch = infobatch_hook(runner)
        self.infobatch.plan_observers.append(self._note)

    def _note(self, epoch, plan) -> None:
        # What followed the plan before is judged when this one is drawn.
        if self._measured is not None and epoch.variance_ratio is not None:
            self.rows.append(
                dict(
                    self._measured,
                    online=epoch.variance_ratio,
                    reliability=epoch.reliability))
            self._measured = None
        self._plan = None if plan.is_full else plan
        self._begin, self._size = epoch.start, epoch.kept

    def after_train_iter(self,
                         runner,
                         batch_idx,
                         data_batch=None,
                         outputs=None) -> None:
        hook = self.infobatch
        begins = hook.training.clock.annealing_at
        taken = hook.training.sampler.position - self._begin
        if (not self.at or self._plan is None or self._measured is not None
                or runner.iter < self.at[0] * begins
                or not 0 <= taken < 0.3 * self._size):
            return
        self.at.pop(0)
        plan = self._plan
        # More than once if the plan is short: each time another crop.
        slots = np.resize(np.arange(taken, len(plan)), self.num_images)
        norms = np.array([
            image_norms(runner.model, runner.train_dataloader.dataset[int(i)])
            for i in plan.indices[slots]
        ])
        keep = 1 / plan.weights[slots].astype(float)
        self._measured = dict(
            iteration=runner.iter + 1,
            kept_share=len(plan) / hook.training.sampler.pass_length,
            logits=variance_ratio(keep, norms[:, 0]),
            gradient=variance_ratio(keep, norms[:, 1]),
            correlation=np.corrcoef(norms.T)[0, 1])


def image_norms(model: torch.nn.Module, sample: dict) -> List[float]:
    """Norms of the gradient of an image's loss: at the predictions, and of
    all parameters."""
    batch = BatchContext()
    batch.begin(torch.ones(1))
    wrapped = [m for m in model.modules() if isinstance(m, InfoBatchLoss)]
    before = [loss.batch for loss in wrapped]
    gradients = [p.grad for p in model.parameters()]
    for loss in wrapped:
        loss.batch = batch
    model.eval()
    model.zero_grad(set_to_none=True)
    data = model.data_preprocessor(pseudo_collate([sample]), True)
    losses = model(**data, mode='loss')
    model.parse_losses(losses)[0].backward()
    total = sum(
        float(p.grad.square().sum()) for p in model.parameters()
        if p.grad is not None)
    for p, gradient in zip(model.parameters(), gradients):
        p.grad = gradient
    for loss, context in zip(wrapped, before):
        loss.batch = context
    model.train()
    return [float(batch.norms), total**0.5]


def show(ratio) -> str:
    return f'{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument('--policy', default='QuantileTiers')
    parser.add_argument('--ratio', type=float, default=0.6)
    parser.add_argument(
        '--at', type=float, nargs='+', default=[0.3, 0.6, 0.95])
    parser.add_argument('--images', type=int, default=300)
    args = parser.parse_args()

    runner = build_runner(
        args, ratio=args.ratio, policy=dict(type=args.policy))
    audit = Audit(args.at, args.images)
    runner.register_hook(audit)
    runner.train()
    table = pd.DataFrame(audit.rows)
    for name in ('online', 'logits', 'gradient'):
        table[name] = table[name].map(show)
    print(f'V of {args.policy}: online, and from {args.images} images at the '
          'predictions and of all parameters; correlation of the two norms')
    print(table.to_string(index=False, float_format='{:.3f}'.format))


if __name__ == '__main__':
    main()
