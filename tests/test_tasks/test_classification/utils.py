# Copyright (c) mmib contributors. All rights reserved.
"""A step of a classifier, and the same by hand."""
import torch
from mmpretrain.models.losses import SeesawLoss
from torch.testing import assert_close

from mmib.losses import InfoBatchLoss


def losses_in(model):
    """Names and losses that heads call, found by where their classes are
    defined."""
    names = [
        name for name, module in model.named_modules()
        if '.models.losses.' in type(module).__module__
    ]
    # LabelSmoothLoss calls another one inside.
    return [(name, model.get_submodule(name)) for name in names
            if not name.endswith('.ce')]


def sum_of(loss, pred, target):
    """The sum over the elements of one image, in the state that the loss has
    after a batch."""
    if isinstance(loss, SeesawLoss):
        return loss.loss_weight * loss.cls_criterion(
            pred, target, torch.ones(len(pred)), loss.cum_samples,
            loss.num_classes, loss.p, loss.q, loss.eps, 'sum')
    return loss.forward(pred, target, reduction_override='sum')


def shares_of(loss, pred, target, output):
    """What the loss of each image is in that of a batch, which is their sum.
    """
    sums = [
        sum_of(loss, pred[i:i + 1], target[i:i + 1]) for i in range(len(pred))
    ]
    divisor = (sum(sums) / output.mean()).detach()
    return torch.stack(sums) / divisor


class ByHand:
    """Mixes the losses of the images in a model without mmib, with hooks on
    its losses.

    ``mix(name, shares)`` makes the loss of a batch from the share of each
    image, of shape (B,).
    """

    def __init__(self, model, mix):
        self.calls = []
        """Shares of each call, and their losses."""
        for name, loss in losses_in(model):
            self._hang(name, loss, mix)

    def _hang(self, name, loss, mix):

        def hook(loss, args, kwargs, output):
            shares = shares_of(loss, *args[:2], output)
            assert_close(shares.sum(), output.mean(), rtol=1e-5, atol=1e-7)
            self.calls.append((name, shares.detach()))
            return mix(name, shares)

        loss.register_forward_hook(hook, with_kwargs=True)


def step(model, inputs, samples):
    """Loss and gradients of a step."""
    model.zero_grad()
    value, _ = model.parse_losses(model(inputs, samples, mode='loss'))
    value.backward()
    return value.detach(), {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def assert_same(step, other):
    for got, expected in zip(step, other):
        assert_close(got, expected, rtol=1e-5, atol=1e-6)


def wrapped_in(model):
    return [
        module for module in model.modules()
        if isinstance(module, InfoBatchLoss)
    ]
