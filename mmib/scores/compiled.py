# Copyright (c) mmib contributors. All rights reserved.
"""Weighing within a step that is compiled in one graph.

A graph handles only tensors. Until a step shows that it is eager, the loader
prepares the tensors of each batch. The log records the batch after the step.
"""
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from ..stream.slots import Slots
from .log import Entry, VisitLog
from .weigh import row_norms

# Older versions were not tried.
_IS_SUPPORTED = TorchVersion(torch.__version__) >= '2.13'
# Batches that a framework may hold before they are weighed, and eager steps
# after which none is prepared.
_MOST_PREPARED, _MOST_EAGER = 256, 8


class _WeighInGraph(torch.autograd.Function):
    """What :meth:`~mmib.scores.log.Entry.weigh` does, by tensors alone."""

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
    Later batches need no other graph. Whether another term uses the
    predictions isn't noticed.

    Returns:
        Tensor, optional: Losses of shape (B,). None if the batch isn't
        prepared or was weighed, or if the arguments don't fit together.
    """
    prepared = slots.prepared
    if prepared is None or slots.was_weighed:
        return None
    if not torch.is_grad_enabled() or not losses.requires_grad:
        return losses
    relative_weights, weights, scores, norms, flow = prepared
    if losses.device != weights.device or losses.shape != weights.shape or (
            predictions is not None and predictions.shape[:1] != losses.shape):
        return None
    slots.was_weighed = True
    if losses.dtype in (torch.float16, torch.bfloat16):
        losses = losses.float()
    if slots.annealing:
        return losses

    def note_gradient(gradient: Optional[Tensor]) -> None:
        if gradient is None:  # If the graph begins after the predictions.
            return
        norms.copy_(row_norms(gradient) / flow)

    if predictions is not None and predictions.requires_grad:
        predictions.register_hook(note_gradient)
    return _WeighInGraph.apply(losses, relative_weights, weights, scores, flow)


class PreparedBatches:
    """The batches that a compiled step may weigh."""

    def __init__(self) -> None:
        self._device: Optional[torch.device] = None
        self._num_eager = 0  # Eager steps since a compiled one.
        self._batches: List[Slots] = []

    def __bool__(self) -> bool:
        """Return whether batches are prepared."""
        return self._device is not None

    def begin(self, device: Optional[torch.device]) -> None:
        """Prepare batches for losses on a device. None stands for the CPU, but
        on a machine with an accelerator the device isn't known then, and
        nothing is prepared. After many eager steps, the first two steps show
        whether the loop is compiled now."""
        if device is None and not torch.accelerator.is_available():
            device = torch.device('cpu')
        if _IS_SUPPORTED:
            self._device = device
            self._num_eager = min(self._num_eager, _MOST_EAGER - 2)

    def note_eager(self) -> None:
        """Note a step that isn't compiled. After several such steps in a row,
        nothing is prepared until the next :meth:`begin`."""
        self._num_eager += 1
        if self._num_eager >= _MOST_EAGER:
            self._device = None
            self.clear()

    def add(self, slots: Slots, log: VisitLog) -> None:
        """Prepare a batch, unless no compiled step is expected."""
        if self._device is None:
            return
        views = log.views(slots, self._device)
        if views is None:
            return
        # Views share a version counter with their tensor, and autograd would
        # refuse what it has saved of one batch when another one is weighed.
        scores, norms, flow = (
            torch.full_like(views.scores, torch.nan) for _ in range(3))
        slots.prepared = *views[:2], scores, norms, flow
        self._batches.append(slots)
        if len(self._batches) > _MOST_PREPARED:
            self._batches.pop(0).prepared = None

    def take_weighed(self) -> List[Tuple[Slots, Entry]]:
        """Return the batches that were weighed since the last call, with the
        entry of each for the log."""
        weighed = [slots for slots in self._batches if slots.was_weighed]
        if not weighed:
            return []
        self._num_eager = 0
        self._batches = [
            slots for slots in self._batches if not slots.was_weighed
        ]
        found = []
        for slots in weighed:
            assert slots.prepared is not None
            _, _, scores, norms, _ = slots.prepared
            slots.prepared, slots.was_weighed = None, False
            found.append((slots, Entry(slots, scores, norms)))
        return found

    def clear(self) -> None:
        """Discard the prepared batches."""
        for slots in self._batches:
            slots.prepared = None
        self._batches.clear()
