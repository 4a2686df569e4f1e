# Copyright (c) mmib contributors. All rights reserved.
"""How losses and gradients are weighed, and how norms are computed."""
from typing import Any, Callable, List, Optional, Sequence, Set, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks

# Of the graph between losses and predictions, at most so many nodes are looked
# at.
_MOST_NODES = 256


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the training device without waiting for the copy."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == 'cuda':
        # Only a copy from pinned memory is asynchronous.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def is_transformed(tensor: Tensor) -> bool:
    """Return whether a tensor is inside a transform of ``torch.func``, such as
    ``vmap``, or has a tangent of forward-mode differentiation."""
    return (torch._C._functorch.is_functorch_wrapped_tensor(tensor)
            # No level is open, so nothing has a tangent.
            or forward_ad._current_level >= 0
            and forward_ad.unpack_dual(tensor).tangent is not None)


def weigh_losses(losses: Tensor,
                 value_weights: Tensor,
                 gradient_weights: Tensor,
                 scores: Optional[Tensor] = None) -> Tensor:
    """Weigh the losses of images.

    The value of a loss is multiplied by the relative weight of the image, and
    its gradient by the full weight. Therefore the mean of the values estimates
    the mean loss of all images, as in the baseline, and the gradient is the
    gradient of Eq. 5 of InfoBatch (Qin et al., ICLR 2024).

    Args:
        losses (Tensor): Loss of each image, of shape (B,).
        value_weights (Tensor): Relative weight of each image, of shape (B,).
        gradient_weights (Tensor): Weight of each image, of shape (B,).
        scores (Tensor, optional): Where to copy the raw losses, of shape (B,).
            Defaults to None.

    Returns:
        Tensor: Losses of shape (B,).
    """
    if type(losses) is not Tensor:
        # The product of a subclass may end in an alias, and Entry.weigh needs
        # the node of the product itself.
        with torch._C.DisableTorchFunctionSubclass():
            losses = losses.view_as(losses)
    if scores is not None:
        scores.copy_(losses.detach())
    with _with_gradient_weights(value_weights, gradient_weights):
        return losses * value_weights


def weighted_sum(losses: Tensor, value_weights: Tensor,
                 gradient_weights: Tensor) -> Tensor:
    """Return the sum of the weighted losses of :func:`weigh_losses`, in one
    operation."""
    with _with_gradient_weights(value_weights, gradient_weights):
        return torch.dot(losses, value_weights)


def _with_gradient_weights(value_weights: Tensor,
                           gradient_weights: Tensor) -> saved_tensors_hooks:
    """Return a context in which a product saves the weights of the gradient
    for its backward pass, instead of its factor. A Function in Python would
    take twice as long."""

    def pack(saved: Tensor) -> Tensor:
        # Ctrl-C may leave the context open, where other tensors are saved.
        is_factor = saved.data_ptr() == value_weights.data_ptr()
        return gradient_weights if is_factor else saved

    return saved_tensors_hooks(pack, lambda kept: kept)


class _WeighGradients(torch.autograd.Function):
    """Return predictions as they are, and multiply their gradients."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, dim: int,
                note: Optional[Callable[[Sequence[Tensor]],
                                        None]], *predictions: Tensor) -> Any:
        ctx.weights, ctx.dim, ctx.note = weights, dim, note
        ctx.set_materialize_grads(False)
        # A head that adds to its predictions in place would fail with the
        # tensor itself or a view of it.
        return tuple(prediction.detach() for prediction in predictions)

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[Tensor]) -> Any:
        # A prediction that no loss uses has the gradient None.
        seen = [x for x in gradients if x is not None]
        weights = {
            dims: ctx.weights.view(-1, *[1] * (-(ctx.dim + 1) % dims))
            for dims in {x.dim()
                         for x in seen}
        }
        # One operation for all tensors. The weights stay in full precision.
        rows = torch._foreach_mul(seen, [weights[x.dim()] for x in seen])
        if ctx.note is not None:
            ctx.note(rows)
        left = iter(rows)
        return None, None, None, *(
            x if x is None else next(left).to(x) for x in gradients)


def weigh_gradients(
    weights: Tensor,
    predictions: Sequence[Tensor],
    dim: int = 0,
    note: Optional[Callable[[Sequence[Tensor]], None]] = None
) -> Tuple[Tensor, ...]:
    """Weigh the gradients at predictions, for losses that aren't a sum over
    images. The predictions keep their values.

    Args:
        weights (Tensor): Weight of each row of the predictions, of shape (R,).
        predictions (Sequence[Tensor]): Tensors with R rows.
        dim (int): The dimension of the rows. Defaults to 0.
        note (Callable, optional): Called in the backward pass with the
            weighted gradients of the predictions that a loss uses. Defaults to
            None.
    """
    return _WeighGradients.apply(weights, dim, note, *predictions)


def row_norms(gradient: Tensor,
              dim: int = 0,
              out: Optional[Tensor] = None) -> Tensor:
    """Return the norm of each row of a gradient, float32 of shape (R,), and
    write the norms to ``out`` if a tensor is given."""
    num_dims = gradient.dim()
    dim %= num_dims
    if num_dims == 2 and gradient.dtype is torch.float32:
        return torch.linalg.vector_norm(gradient, 2, 1 - dim, out=out)
    if num_dims == 1:
        gradient = gradient[:, None]
    others = [d for d in range(gradient.dim()) if d != dim]
    if gradient.dtype in (torch.float16, torch.bfloat16):
        gradient = gradient.float()
    norms = torch.linalg.vector_norm(gradient, dim=others).float()
    return norms if out is None else out.copy_(norms)


def own_norms(losses: Tensor, weights: Tensor,
              predictions: Tensor) -> Optional[Tensor]:
    """Return the norm of the gradient of each loss at its row of the
    predictions, without other terms that use the predictions. The graph of the
    losses stays.

    Args:
        losses (Tensor): Losses of shape (B,).
        weights (Tensor): Weight of each loss, of shape (B,). They matter if a
            loss depends on several rows of the predictions.
        predictions (Tensor): Predictions of shape (B, ...).

    Returns:
        Tensor, optional: Norms of shape (B,). None if they can't be computed
        apart from the backward pass.
    """
    # FSDP gathers parameters in hooks at predictions. A Function of a user may
    # write to its gradient in place.
    if predictions._backward_hooks or not _has_own_nodes(losses, predictions):
        return None
    try:
        gradient, = torch.autograd.grad(
            losses,
            predictions,
            weights.to(losses),
            retain_graph=True,
            allow_unused=True)
    except RuntimeError:
        # Within checkpointed or compiled functions there may be one backward.
        return None
    return None if gradient is None else row_norms(gradient) / weights


def _has_own_nodes(losses: Tensor, predictions: Tensor) -> bool:
    """Return whether torch's own operations alone compute losses from
    predictions. False as well where these are many."""
    seen: Set[Any] = {predictions.grad_fn, None}
    nodes: List[Any] = [losses.grad_fn]
    while nodes and len(seen) < _MOST_NODES:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            return False
        nodes += [each for each, _ in node.next_functions]
    return not nodes
