# Copyright (c) mmib contributors. All rights reserved.
"""Weights at losses and at predictions, against what they have to be."""
import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmib.scores.log import Entry
from mmib.scores.weigh import (row_norms, to_device, weigh_gradients,
                               weigh_losses, weighted_sum)

NUMBERS = st.floats(-8, 8, width=32)
ROWS = st.lists(
    st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=6)


def columns_of(rows):
    """Losses, relative weights, weights, and gradients from above."""
    losses, value_weights, gradient_weights, above = torch.tensor(
        rows).T.contiguous()
    return losses.requires_grad_(), value_weights, gradient_weights, above


@given(ROWS)
def test_losses_of_images(rows):
    """The value has the relative weight, and the gradient the weight as it
    is, to the bit."""
    losses, value_weights, gradient_weights, above = columns_of(rows)
    entry = Entry(
        np.arange(len(losses)),
        torch.zeros_like(losses.detach()),
        weights=(value_weights, gradient_weights))
    entry.awaits_norms = True
    for weigh in (entry.weigh,
                  functools.partial(
                      weigh_losses,
                      value_weights=value_weights,
                      gradient_weights=gradient_weights)):
        losses.grad = None
        weighted = weigh(losses)
        assert torch.equal(weighted, losses.detach() * value_weights)
        assert torch.equal(entry.scores, losses.detach())
        weighted.backward(above)
        assert torch.equal(losses.grad, above * gradient_weights)
    entry.note_gradient(losses.detach())
    norms = losses.detach().abs() / losses.grad
    torch.testing.assert_close(
        entry.norms, norms, rtol=0, atol=0, equal_nan=True)


def test_weights_where_what_is_saved_is_rounded():
    """As by hooks that keep the activations of a network in half precision.
    """
    losses = torch.rand(8).requires_grad_()
    weights = torch.rand(8) + 1
    assert not torch.equal(weights, weights.half().float())
    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.half,
                                                  torch.Tensor.float):
        weighted = weigh_losses(losses, torch.ones(8), weights)
    weighted.sum().backward()
    assert torch.equal(losses.grad, weights)


def test_an_interrupt_while_losses_are_weighed(monkeypatch):
    """Later gradients are right, although the context stays open."""
    hooks = torch.autograd.graph.saved_tensors_hooks

    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hooks, '__exit__', interrupt)
        with pytest.raises(KeyboardInterrupt):
            weigh_losses(
                torch.rand(8).requires_grad_(), torch.ones(8), torch.rand(8))
    factor, leaf = torch.rand(8), torch.ones(8).requires_grad_()
    try:
        (leaf * factor).sum().backward()
    finally:
        hooks(None, None).__exit__()
    assert torch.equal(leaf.grad, factor)


@given(ROWS, NUMBERS)
def test_the_sum_of_weighed_losses(rows, above):
    losses, value_weights, gradient_weights, _ = columns_of(rows)
    value = weighted_sum(losses, value_weights, gradient_weights)
    expected = weigh_losses(losses, value_weights, gradient_weights).sum()
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-4)
    value.backward(torch.tensor(above))
    assert torch.equal(losses.grad, above * gradient_weights)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('dim', [0, 1])
def test_gradients_at_predictions(dtype, dim):
    """Those of the loss, times the weight of each row, whatever dimensions a
    prediction has. Weights aren't rounded to its type."""
    torch.manual_seed(0)
    weights = torch.tensor([0., 1.0009765625, 2.5])
    shapes = [(3, ), (3, 4), (3, 2, 5)] if dim == 0 else [(2, 3), (2, 3, 5)]
    plain, weighted = ([
        torch.ones(shape, dtype=dtype, requires_grad=True) for shape in shapes
    ] for _ in range(2))
    above = [torch.randn(shape).to(dtype) for shape in shapes]
    noted = []
    out = weigh_gradients(weights, weighted, dim, noted.append)
    for one, other in zip(out, weighted):
        assert torch.equal(one, other) and one.dtype == dtype
    for predictions in (plain, out):
        sum((x * y).sum().float()
            for x, y in zip(predictions, above)).backward()
    for one, other, rows in zip(plain, weighted, noted[0]):
        factor = weights.view([1] * dim + [3] + [1] * (one.dim() - dim - 1))
        assert rows.dtype == torch.float32
        torch.testing.assert_close(rows, one.grad.float() * factor)
        assert torch.equal(other.grad, rows.to(dtype))


def test_heads_that_share_what_is_weighed():
    """A head may add to its prediction in place, and leave one out."""
    weights = torch.tensor([2., 3.])
    leaves = [torch.ones(2, requires_grad=True) for _ in range(3)]
    noted = []
    one, _, other = weigh_gradients(weights, leaves, note=noted.append)
    one += 1
    other *= 5
    (one.sum() + other.sum()).backward()
    assert leaves[0].grad.tolist() == [2, 3] and leaves[1].grad is None
    assert leaves[2].grad.tolist() == [10, 15]
    assert [rows.tolist() for rows in noted[0]] == [[2, 3], [10, 15]]


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_norms_of_rows(shape, dim, dtype):
    """Also of those that half a float would round to infinity."""
    dim %= len(shape)
    torch.manual_seed(0)
    gradient = 100 * torch.randn(shape).to(dtype)
    norms = row_norms(gradient, dim)
    assert norms.shape == (shape[dim], ) and norms.dtype == torch.float32
    rows = gradient.movedim(
        dim, 0).flatten(1) if len(shape) > 1 else (gradient[:, None])
    torch.testing.assert_close(
        norms, rows.double().square().sum(1).sqrt(), check_dtype=False)
    if len(shape) > 1:
        assert torch.equal(norms, row_norms(gradient, dim - len(shape)))
    large = torch.full((2, 9), 60000., dtype=torch.float16)
    assert row_norms(large).tolist() == pytest.approx([180000, 180000])


def test_what_goes_to_the_device_is_what_is_given():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[::2, ::2]
    tensor = to_device(array, torch.device('cpu'))
    assert tensor.tolist() == array.tolist() and tensor.is_contiguous()
