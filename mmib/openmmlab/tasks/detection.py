# Copyright (c) mmib contributors. All rights reserved.
"""MMDetection: detectors whose heads get their predictions image by image.

Each head flattens, matches and selects boxes in its own way before it calls
its losses. But all heads get predictions whose images lie along one dimension.
So the weight of an image multiplies the gradient of its predictions there. The
loss of the batch keeps its value and its divisor. The norm of an image is the
norm of the sum over its boxes, without the divisor. A head has one divisor:
the smallest `avg_factor` of its losses. Where the losses divide by different
numbers, a norm depends somewhat on the other images.
"""
import functools
import math
from contextlib import ExitStack
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
import torch.nn as nn
from mmdet.models import dense_heads, detectors, roi_heads
from mmdet.models.losses import GHMC, GHMR
from mmengine.hooks import Hook
from mmengine.utils import apply_to
from torch import Tensor

from ...errors import Refusal
from ...scores.weigh import row_norms, to_device, weigh_gradients
from ..batch import BatchContext, Factor
from . import Task
from .heads import HeadTable
from .replace import replace_method

# Predictions of shape (B, ...), of each level or layer.
_DENSE = (dense_heads.ATSSHead, dense_heads.AnchorHead,
          dense_heads.CenterNetHead, dense_heads.CenterNetUpdateHead,
          dense_heads.FCOSHead, dense_heads.FSAFHead, dense_heads.FoveaHead,
          dense_heads.FreeAnchorRetinaHead, dense_heads.GARPNHead,
          dense_heads.GARetinaHead, dense_heads.GFLHead,
          dense_heads.Mask2FormerHead, dense_heads.PAAHead,
          dense_heads.RPNHead, dense_heads.RTMDetHead,
          dense_heads.SABLRetinaHead, dense_heads.SSDHead,
          dense_heads.TOODHead, dense_heads.VFNetHead, dense_heads.YOLOFHead,
          dense_heads.YOLOV3Head, dense_heads.YOLOXHead)
# Predictions of shape (layers, B, Q, C), and (B, Q, C) of an encoder.
_OF_QUERIES = (dense_heads.ConditionalDETRHead, dense_heads.DETRHead,
               dense_heads.DINOHead, dense_heads.DeformableDETRHead)
_OF_REGIONS = ('bbox_head', 'mask_head')
TABLE = HeadTable(
    __name__,
    methods=('loss', 'loss_and_predict', 'loss_by_feat', 'loss_and_target',
             'bbox_loss', 'mask_loss'),
    models={
        detectors.SingleStageDetector: ('bbox_head', ),
        detectors.DetectionTransformer: ('bbox_head', ),
        detectors.MaskFormer: ('panoptic_head', ),
        detectors.RPN: ('bbox_head', ),
        detectors.TwoStageDetector: ('rpn_head', 'roi_head'),
        roi_heads.CascadeRoIHead: _OF_REGIONS,
        roi_heads.DynamicRoIHead: _OF_REGIONS,
        roi_heads.StandardRoIHead: _OF_REGIONS,
    },
    heads={
        **dict.fromkeys(_DENSE, 0),
        **dict.fromkeys(_OF_QUERIES, -3),
        # Predictions of shape (layers, B, Q, ...), of classes and of masks.
        dense_heads.MaskFormerHead: 1,
        roi_heads.BBoxHead: 'priors',
        roi_heads.SABLHead: 'priors',
        roi_heads.FCNMaskHead: 'pos_priors',
    },
    register_model='register_detector')
register_detector = TABLE.register_model
# Losses that weight a box by all boxes of the batch.
BATCH_LOSSES: Tuple[type, ...] = (GHMC, GHMR)

# The row of a head: the dimension of its predictions that runs over the
# images; or, for a head of regions, the attribute of a sampling result that
# holds the regions of an image.
Images = Union[int, str]


def register_head(head_type: type, images: int = 0) -> None:
    """Register a dense head, or a head of queries.

    All predictions of the head must be arguments of its ``loss_by_feat``, as
    tensors or lists of tensors, and its loss must be a sum over images, up to
    a divisor. Subclasses count too, unless they override ``loss`` or
    ``loss_by_feat``.

    Args:
        head_type (type): Class of the head.
        images (int): Dimension of the predictions that runs over the images.
            Defaults to 0.
    """
    TABLE.heads[head_type] = images


class DetectionTask(Task):
    """Detectors of MMDetection."""

    # Flips, crops and matches change a gradient from one visit to the next.
    ema = 0.8
    score = 'gradient'

    def matches(self, model: nn.Module) -> bool:
        return isinstance(model, detectors.BaseDetector)

    def attach(self, model: nn.Module, batch: BatchContext,
               hooks: Sequence[Hook]) -> None:
        for name, module in model.named_modules():
            if isinstance(module, BATCH_LOSSES):
                raise Refusal(
                    f'{type(module).__name__}, `model.{name}`, weighs a box by'
                    ' all boxes of the batch, so the loss of an image depends '
                    'on the others: use another loss, or train without '
                    'InfoBatchHook.')
        for _, head, images in TABLE.find(model):
            _weigh_predictions(head, batch, images)

    def weigh(self, losses: dict, batch: BatchContext) -> dict:
        # A head returns no loss of each image.
        assert batch.weights is not None
        batch.add_scores(torch.full_like(batch.weights, torch.nan))
        return losses


def _weigh_predictions(head: nn.Module, batch: BatchContext,
                       images: Images) -> None:
    """Weigh the gradients of all predictions among the arguments of the method
    with which a head computes its losses."""
    losses = [x for x in head.modules() if hasattr(x, 'reduction')]

    # A batch has Python values, for which each step would be compiled anew.
    @torch.compiler.disable
    def weigh(compute: Callable, *args: Any, **kwargs: Any) -> Any:
        preds: List[Tensor] = []
        if batch.weights is not None and torch.is_grad_enabled():
            preds = _trained((args, kwargs))
        if not preds:
            return compute(*args, **kwargs)
        # The regions of a batch lie image by image.
        counts = None if isinstance(images, int) else [
            len(getattr(x, images)) for x in kwargs['sampling_results']
        ]
        dim = images if isinstance(images, int) else 0
        divisors: List[Factor] = []
        weights = _weights_of_rows(batch, preds, dim, counts)

        def norms_of_images(gradient: Tensor) -> Tensor:
            if counts is None:
                return row_norms(gradient, dim)
            return torch.stack([
                torch.linalg.vector_norm(image)
                for image in gradient.float().split(counts)
            ])

        def note(rows: Sequence[Tensor]) -> None:
            norms = torch.stack([norms_of_images(row) for row in rows])
            factor = _smallest(divisors) / batch.size
            batch.add_norms(
                torch.linalg.vector_norm(norms, dim=0) * factor, note)

        weighed = iter(weigh_gradients(weights, preds, dim, note))
        args, kwargs = apply_to((args, kwargs), _is_trained,
                                lambda pred: next(weighed))
        calls: List[tuple] = []
        with ExitStack() as stack:
            for loss in losses:
                hook = functools.partial(_note_call, calls)
                stack.enter_context(
                    loss.register_forward_hook(hook, with_kwargs=True))
            results = compute(*args, **kwargs)
        _note_divisors(divisors, calls, _trained(results))
        return results

    method = 'loss_by_feat' if isinstance(images, int) else 'loss_and_target'
    replace_method(head, method, weigh)


def _is_trained(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _trained(values: Any) -> List[Tensor]:
    """Return the tensors with a gradient in lists, tuples and dicts."""
    found: List[Tensor] = []
    apply_to(values, _is_trained, found.append)
    return found


def _note_call(calls: List[tuple], loss: Any, args: tuple, kwargs: dict,
               value: Any) -> None:
    """Note what a loss divides by: its ``avg_factor``, or without one the
    number of its rows. Only a loss that takes the mean divides."""
    factor: Any = 1
    if (kwargs.get('reduction_override') or loss.reduction) == 'mean':
        factor = kwargs.get('avg_factor')
        if factor is None:
            factor = len((*args, *kwargs.values())[0])
        elif isinstance(factor, Tensor):
            factor = factor.detach()
    calls += [(x, factor) for x in _trained(value)]


def _note_divisors(divisors: List[Factor], calls: List[tuple],
                   results: List[Tensor]) -> None:
    """Add the divisors of the losses of a head. If the head rescales a loss
    before it returns the loss, the divisor is read from the gradients."""
    of_results: List[Tensor] = []
    for result in results:
        result.register_hook(of_results.append)

    def note(factor: Factor, gradient: Tensor) -> None:
        divisors.append(factor * of_results[0].sum() / gradient.abs().max())

    for value, factor in calls:
        if any(value is result for result in results):
            divisors.append(factor)
        else:
            value.register_hook(functools.partial(note, factor))


def _smallest(divisors: List[Factor]) -> Factor:
    """Return the smallest divisor, or 1. Tensors stay where they are: to read
    a tensor would wait for the GPU."""
    numbers = [x for x in divisors if not isinstance(x, Tensor)]
    smallest: Factor = min(numbers, default=math.inf if divisors else 1)
    for tensor in filter(torch.is_tensor, divisors):
        smallest = tensor.clamp(max=smallest)
    return smallest


def _weights_of_rows(batch: BatchContext, preds: Sequence[Tensor], dim: int,
                     counts: Optional[List[int]]) -> Tensor:
    """Return the weight of each row of the predictions of a head."""
    weights = batch.weights
    assert weights is not None
    if counts is not None:
        images = np.repeat(np.arange(batch.size), counts)
        weights = weights[to_device(images, weights.device)]
    for pred in preds:
        if pred.shape[dim] != len(weights):
            raise Refusal(
                'A head computes its losses from a prediction of shape '
                f'{tuple(pred.shape)} in a batch of {batch.size} images, '
                f'and dimension {dim} should run over them: correct '
                '`images` of `mmib.openmmlab.tasks.detection.register_head`.')
    return weights


TASK = DetectionTask()

__all__ = ['TASK', 'register_detector', 'register_head']
