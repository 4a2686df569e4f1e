# Copyright (c) mmib contributors. All rights reserved.
"""Losses of samples, from what a model of transformers returns."""
import math
from collections.abc import Mapping
from typing import Any, List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import Refusal


def sample_losses(logits: Tensor,
                  labels: Tensor,
                  shift: bool = False) -> Tensor:
    """Return the mean cross entropy over the labels of each sample, float32 of
    shape (B,). Labels of -100 are ignored.

    Args:
        logits (Tensor): Of shape (B, C), or (B, T, C) with a label for each of
            T tokens.
        labels (Tensor): Of shape (B,) or (B, T).
        shift (bool): Whether a token predicts the label of the next one, as in
            causal language models. Defaults to False.
    """
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    losses = F.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(),
        reduction='none').view(len(labels), -1)
    counts = (labels != -100).view(len(labels), -1).sum(1)
    return losses.sum(1) / counts.clamp(min=1)


def shifts_labels(outputs: Any, labels: Optional[Tensor]) -> List[bool]:
    """Return whether a model shifts its labels, found by its own loss: the
    values of ``shift`` in :func:`sample_losses` that give this loss. These may
    be both, where a network at random has the same loss for all labels, or
    none, where no label counts.

    Args:
        outputs (ModelOutput): What the model returns for a batch.
        labels (Tensor, optional): The labels of the batch.

    Raises:
        Refusal: If the loss isn't the mean cross entropy of the labels.
    """
    if not isinstance(outputs, Mapping):  # Such as a tuple.
        outputs = {}
    logits, loss = outputs.get('logits'), outputs.get('loss')
    found = []
    if torch.is_tensor(logits) and torch.is_tensor(loss) and (
            labels is not None and outputs.get('aux_loss') is None):
        if (labels == -100).all():
            return []
        # The same operation on the same numbers, unless the loss was rounded.
        tolerance = 1e-5 if loss.dtype == torch.float32 else 1e-2
        for shift in (False, True)[:labels.dim()]:
            own, target = ((logits[:, :-1], labels[:, 1:]) if shift else
                           (logits, labels))
            if own.shape[:-1] == target.shape and not (
                    target.is_floating_point()):
                mean = F.cross_entropy(own.detach().float().flatten(0, -2),
                                       target.flatten())
                if math.isclose(mean.item(), loss.item(), rel_tol=tolerance):
                    found.append(shift)
    if not found:
        raise Refusal(
            'The loss of the model is not the mean cross entropy of `labels`, '
            'so the loss of each sample is not known: override `losses` of '
            'InfoBatchTrainerMixin.')
    return found
