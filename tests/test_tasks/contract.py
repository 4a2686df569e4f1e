# Copyright (c) mmib contributors. All rights reserved.
"""What the weights of images do in a model, whatever its heads and losses.

Where a network computes each image by itself, the gradient at the pixels of an
image is multiplied by its weight, what it adds to the loss by its relative
weight, and with weight 0 nothing is trained. The check knows no heads and
losses.
"""
import contextlib
import copy
import pkgutil
import re
from typing import Dict, List, NamedTuple, Optional
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.testing import assert_close

from mmib.errors import Refusal
from mmib.openmmlab import tasks
from mmib.openmmlab.batch import BatchContext
from mmib.openmmlab.losses import InfoBatchLoss

TOLERANCE = 1e-5


class Step(NamedTuple):
    """Loss of a step, and its gradients."""

    loss: Tensor
    parameters: Dict[str, Tensor]
    inputs: List[Tensor]
    """At each view of the images."""
    state: Dict[str, Tensor]
    """The state of the model after the step."""


class Known(NamedTuple):
    """What mmib knows of the images after a step."""

    scores: Optional[Tensor]
    norms: Optional[Tensor]


def take_step(model, inputs, samples):
    """A step with the same random numbers in each call."""
    torch.manual_seed(1)
    np.random.seed(1)
    model.zero_grad()
    views = inputs if isinstance(inputs, list) else [inputs]
    views = [view.clone().requires_grad_() for view in views]
    losses = model(
        views if isinstance(inputs, list) else views[0],
        copy.deepcopy(samples),
        mode='loss')
    loss, _ = model.parse_losses(losses)
    loss.backward()
    parameters = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return Step(loss.detach(), parameters,
                [view.grad for view in views if view.grad is not None],
                copy.deepcopy(model.state_dict()))


def assert_same_loss(got, expected):
    """Weighted losses are summed in float32."""
    assert_close(got, expected, rtol=TOLERANCE, atol=1e-7, check_dtype=False)


def assert_near(got, expected):
    """Compare gradients by their names.

    They may differ by 1e-5 of the largest element of a tensor, or of 1/1000 of
    the largest of all where that is more: biases in front of a normalization
    have no gradient but rounding.
    """
    assert got.keys() == expected.keys()
    scales = {name: x.abs().max() for name, x in expected.items()}
    floor = max(scales.values(), default=0) / 1000
    for name, gradient in got.items():
        error = (gradient - expected[name]).abs().max()
        assert error <= TOLERANCE * max(scales[name], floor), name


@contextlib.contextmanager
def image_by_image():
    """Let batch normalization normalize each image by itself."""

    def forward(self, x):
        return F.group_norm(x, 1, self.weight, self.bias)

    with mock.patch.object(_BatchNorm, 'forward', forward), \
            mock.patch.object(nn.SyncBatchNorm, 'forward', forward):
        yield


class LossAlone(nn.Module):
    """A loss as a model of predictions and targets."""

    def __init__(self, loss, **kwargs):
        super().__init__()
        self.loss = loss
        self.kwargs = kwargs

    def forward(self, inputs, samples, mode):
        return self.loss(inputs, samples, **self.kwargs)

    def parse_losses(self, loss):
        return loss.mean(), {}


def check_loss_weights(loss, pred, target, weights, rows=1, **kwargs):
    """:func:`check_weights` of a loss, which may have several rows for each
    image."""

    def wrap(model, batch):
        model.loss = InfoBatchLoss(model.loss, rows, batch)
        parse_losses = model.parse_losses

        def parse_and_watch(loss):
            total, logged = parse_losses(loss)
            batch.watch_total(total)
            return total, logged

        model.parse_losses = parse_and_watch

    return check_weights(lambda: LossAlone(copy.deepcopy(loss), **kwargs),
                         pred, target, weights, rows, wrap)


def check_weights(make, inputs, samples, weights, rows=1, attach=tasks.attach):
    """Check a model with weights for its images.

    Args:
        make (Callable): Makes the model, in the same state in each call.
        inputs (Tensor or list[Tensor]): Images, or views of them.
        samples (list): What the images show.
        weights (Tensor): Weights of the images.
        rows (int or list[int]): Rows of each image. Defaults to 1.
        attach (Callable): Attaches the model. Defaults to that of mmib.

    Returns:
        tuple[Known, Tensor]: What mmib knows of the images; and what each
        image adds to the loss, of shape (B,).
    """
    # As those of a training, whatever the model computes in.
    weights = weights.float()
    ones = torch.ones_like(weights)

    def with_weights(weights, relative_weights=None):
        model, batch = make(), BatchContext()
        attach(model, batch)
        if weights is not None:
            batch.set_weights(
                weights if relative_weights is None else relative_weights,
                weights)
        step = take_step(model, inputs, samples)
        known = Known(batch.scores, batch.norms)
        # Lets go of the graph, as the next step of a training does.
        batch.clear()
        return step, known

    plain = take_step(make(), inputs, samples)
    for none in (None, ones):
        step, _ = with_weights(none)
        assert_same_loss(step.loss, plain.loss)
        assert_near(step.parameters, plain.parameters)
        assert_close(step.state, plain.state)

    with image_by_image():
        plain = take_step(make(), inputs, samples)
        step, known = with_weights(weights)
        _, unweighted = with_weights(ones)
        relative_weights = weights / weights.mean()
        relative, also_known = with_weights(weights, relative_weights)
        parts = [
            with_weights(one)[0].loss
            for one in torch.eye(len(weights), dtype=weights.dtype)
        ]
        nothing, _ = with_weights(0 * ones)
    assert plain.loss == 0 or plain.inputs[0].any()
    of_rows = weights.repeat_interleave(torch.tensor(rows))
    for gradient, full in zip(step.inputs, plain.inputs, strict=True):
        factors = of_rows.view(-1, *[1] * (full.dim() - 1))
        assert_near(dict(inputs=gradient), dict(inputs=full * factors))
    for gradient in (*nothing.parameters.values(), *nothing.inputs):
        assert not gradient.any()
    # A part of the loss may have weights in its gradient alone.
    parts = torch.stack(parts) - nothing.loss
    assert_same_loss(plain.loss, parts.sum() + nothing.loss)
    assert_same_loss(step.loss, (weights * parts).sum() + nothing.loss)
    # The value has relative weights, and the gradient the full ones.
    assert_same_loss(relative.loss,
                     (relative_weights * parts).sum() + nothing.loss)
    assert_near(relative.parameters, step.parameters)
    # What is known of images doesn't depend on their weights.
    for other in (unweighted, also_known):
        assert_close(known, other, rtol=1e-4, atol=1e-6, equal_nan=True)
    return known, parts


def override(module, method='loss'):
    """Let a module be of a class of a user that overrides a method."""
    kind = type(module)
    module.__class__ = type('My' + kind.__name__, (kind, ),
                            {method: lambda self: None})


def told_to_call(model):
    """The function that mmib tells users of a model to call."""
    with pytest.raises(Refusal) as error:
        tasks.attach(model, BatchContext())
    name, = re.findall(r'`(mmib\.[\w.]+)`', str(error.value))
    return pkgutil.resolve_name(name)
