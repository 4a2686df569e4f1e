# Copyright (c) mmib contributors. All rights reserved.
"""Weighing within a step that is compiled in one graph.

A graph has tensors alone. The loader therefore lays the tensors of a batch
ready before the step, and the log hears of the batch after the step.
"""
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from ..stream.slots import Slots
from .log import Entry, VisitLog

# Older versions were not tried.
_IS_SUPPORTED = TorchVersion(torch.__version__) >= '2.13'
# Batches that a framework may hold before they are weighed.
_MOST_READY = 256


class _WeighInGraph(torch.autograd.Function):
    """The Function of :func:`~mmib.scores.weigh.weigh_losses`, with a tensor
    for the gradient that flows into each loss."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor, relative_weights: Tensor,
                weights: Tensor, scores: Tensor, flow: Tensor) -> Tensor:
        # Not by `save_for_backward`, which refuses what is written later.
        ctx.kept = weights, flow
        scores.copy_(losses)
        return losses * relative_weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        weights, flow = ctx.kept
        weighted = gradient * weights
        flow.copy_(weighted)
        return weighted, None, None, None, None


def weigh_in_graph(losses: Tensor, slots: Slots,
                   predictions: Optional[Tensor]) -> Optional[Tensor]:
    """Weigh losses as :meth:`Session.weigh` does, while a graph is traced.
    Later batches need no other graph.

    Returns:
        Tensor, optional: Losses of shape (B,). None if the tensors of the
        batch aren't ready, or if the arguments don't fit together.
    """
    ready = slots.ready
    if ready is None:
        return None
    if not torch.is_grad_enabled() or not losses.requires_grad:
        return losses
    if slots.annealing:
        slots.was_weighed = True
        return losses
    relative_weights, weights, scores, norms, flow = ready
    if losses.device != weights.device or losses.shape != weights.shape or (
            predictions is not None and predictions.shape[:1] != losses.shape):
        return None
    slots.was_weighed = True

    def note_gradient(gradient: Optional[Tensor]) -> None:
        if gradient is None:  # If the graph begins behind the predictions.
            return
        rows = gradient.flatten(1) if gradient.dim() > 1 else gradient[:, None]
        norms.copy_(torch.linalg.vector_norm(rows.float(), dim=1) / flow)

    if predictions is not None and predictions.requires_grad:
        predictions.register_hook(note_gradient)
    if losses.dtype in (torch.float16, torch.bfloat16):
        losses = losses.float()
    return _WeighInGraph.apply(losses, relative_weights, weights, scores, flow)


class ReadyBatches:
    """The batches that a compiled step may weigh."""

    def __init__(self) -> None:
        self._device: Optional[torch.device] = None
        self._is_used = False
        self._batches: List[Tuple[Slots, Optional[Entry]]] = []

    def __bool__(self) -> bool:
        """Return whether a compiled step is expected, or was seen."""
        return self._device is not None

    def expect(self, device: Optional[torch.device] = None) -> None:
        """Expect losses of a compiled step on a device. If None, on the device
        that torch would train on."""
        if _IS_SUPPORTED:
            self._device = device or torch.accelerator.current_accelerator(
                check_available=True) or torch.device('cpu')

    def note_eager(self) -> None:
        """Note a step that isn't compiled. If none was before, no other batch
        is laid ready until the next :meth:`expect`."""
        if not self._is_used and self._device is not None:
            self._device = None
            self.clear()

    def add(self, slots: Slots, log: VisitLog) -> None:
        """Lay the tensors of a batch ready, if a compiled step is expected."""
        if self._device is None:
            return
        entry = None
        if slots.annealing:
            slots.ready = ()
        else:
            views = log.views(slots, self._device)
            if views is None:
                return
            entry = Entry(slots, views.scores, views.norms, views)
            # Detached, because a compiled step can't write to views that share
            # a tensor.
            rows = (*views[:4], torch.empty_like(views.norms))
            slots.ready = tuple(row.detach() for row in rows)
        self._batches.append((slots, entry))
        if len(self._batches) > _MOST_READY:
            self._batches.pop(0)[0].ready = None

    def take_weighed(self) -> List[Tuple[Slots, Optional[Entry]]]:
        """Return the batches that were weighed since the last call, with the
        entry of each for the log. None in annealing."""
        weighed = [each for each in self._batches if each[0].was_weighed]
        if weighed:
            self._is_used = True
            self._batches = [
                each for each in self._batches if not each[0].was_weighed
            ]
            for slots, _ in weighed:
                slots.ready = None
        return weighed

    def clear(self) -> None:
        """Let no batch be weighed that is ready now."""
        for slots, _ in self._batches:
            slots.ready = None
        self._batches.clear()
