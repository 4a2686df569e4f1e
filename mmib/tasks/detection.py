# Copyright (c) mmib contributors. All rights reserved.
"""MMDetection: detectors whose heads get their predictions image by image.

Each head flattens, matches and selects boxes in its own way before it calls
its losses. But all heads get predictions whose images lie along one dimension.
So the weight of an image multiplies the gradient of its predictions there. The
loss of the batch keeps its value and its divisor. The norm of an image is the
norm of the sum over its boxes, without the divisor.
"""
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
import torch.nn as nn
from mmdet.models import dense_heads, detectors, roi_heads
from mmdet.models.losses import GHMC, GHMR
from mmengine.hooks import Hook
from mmengine.utils import apply_to
from torch import Tensor

from ..batch import BatchContext, Share, to_device
from ..compat import replace_method
from ..errors import ValueRefusal
from .heads import HeadTable

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
    'mmib.tasks.detection',
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
    """Tell mmib of a dense head, or a head of queries.

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


class DetectionTask:
    """Detectors of MMDetection."""

    # Flips, crops and matches change a gradient from one visit to the next.
    ema = 0.8
    # A head returns no loss of each image.
    score = 'gradient'

    def matches(self, model: nn.Module) -> bool:
        return isinstance(model, detectors.BaseDetector)

    def attach(self, model: nn.Module, batch: BatchContext,
               hooks: Sequence[Hook]) -> None:
        for name, module in model.named_modules():
            if isinstance(module, BATCH_LOSSES):
                raise ValueRefusal(
                    f'{type(module).__name__}, `model.{name}`, weighs a box by'
                    ' all boxes of the batch, so the loss of an image depends '
                    'on the others: use another loss, or train without '
                    'InfoBatchHook.')
        for _, head, images in TABLE.find(model):
            _weigh_predictions(head, batch, images)

        def note(parse_losses: Callable, losses: dict) -> Tuple[Tensor, Any]:
            loss, logged = parse_losses(losses)
            if batch.weights is not None:
                batch.add_scores(
                    torch.full_like(batch.weights, torch.nan), loss)
                batch.watch_loss(loss)
                _note_divisors(loss)
            return loss, logged

        replace_method(model, 'parse_losses', note)


def _weigh_predictions(head: nn.Module, batch: BatchContext,
                       images: Images) -> None:
    """Weight the gradients of all predictions among the arguments of the
    method with which a head computes its losses."""

    def is_pred(value: Any) -> bool:
        return isinstance(value, Tensor) and value.requires_grad

    def weigh(compute: Callable, *args: Any, **kwargs: Any) -> Any:
        preds: List[Tensor] = []
        if batch.weights is not None and torch.is_grad_enabled():
            apply_to((args, kwargs), is_pred, preds.append)
        if not preds:
            return compute(*args, **kwargs)
        # The regions of a batch lie image by image.
        counts = None if isinstance(images, int) else [
            len(getattr(x, images)) for x in kwargs['sampling_results']
        ]
        dim = images if isinstance(images, int) else 0
        weighed = iter(_Weigh.apply(batch, dim, counts, *preds))
        args, kwargs = apply_to((args, kwargs), is_pred,
                                lambda pred: next(weighed))
        return compute(*args, **kwargs)

    method = 'loss_by_feat' if isinstance(images, int) else 'loss_and_target'
    replace_method(head, method, weigh)


class _Weigh(torch.autograd.Function):
    """Return the predictions of a head as they are. The gradient of each
    image is multiplied by its weight, and its norm counts for the batch."""

    @staticmethod
    def forward(ctx: Any, batch: BatchContext, dim: int,
                counts: Optional[List[int]], *preds: Tensor) -> tuple:
        weights = batch.weights
        assert weights is not None
        ctx.num_images = len(weights)
        if counts is not None:
            images = np.repeat(np.arange(len(counts)), counts)
            weights = weights[to_device(images, weights.device)]
        for pred in preds:
            if pred.shape[dim] != len(weights):
                raise ValueRefusal(
                    'A head computes its losses from a prediction of shape '
                    f'{tuple(pred.shape)} in a batch of {ctx.num_images} '
                    f'images, and dimension {dim} should run over them: '
                    'correct `images` of '
                    '`mmib.tasks.detection.register_head`.')
        ctx.weights, ctx.dim, ctx.counts = weights, dim, counts
        ctx.watched = batch.add_watched()
        # What the sum over the boxes of each prediction is divided by.
        ctx.divisors = [None] * len(preds)
        ctx.set_materialize_grads(False)
        return tuple(pred.detach() for pred in preds)

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[Tensor]) -> tuple:
        # A prediction that no loss uses has the gradient None.
        seen = {i: x for i, x in enumerate(gradients) if x is not None}
        weights = {}
        for num_dims in {x.dim() for x in seen.values()}:
            shape = [1] * num_dims
            shape[ctx.dim] = -1
            weights[num_dims] = ctx.weights.view(shape)
        # One operation for all. Weights aren't rounded to half precision.
        rows = torch._foreach_mul(
            list(seen.values()), [weights[x.dim()] for x in seen.values()])
        norms = []
        weighed: List[Optional[Tensor]] = [None] * len(gradients)
        for (i, gradient), weighted in zip(seen.items(), rows):
            norm = _norms(weighted, ctx.dim, ctx.counts)
            if ctx.divisors[i] is not None:
                norm = norm * (ctx.divisors[i] / ctx.num_images)
            norms.append(norm)
            weighed[i] = weighted.to(gradient.dtype)
        ctx.watched.norms = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        return (None, None, None, *weighed)


def _norms(gradient: Tensor, dim: int, counts: Optional[List[int]]) -> Tensor:
    """Norm of each image, float32 of shape (B,)."""
    gradient = gradient.float()
    if counts is not None:
        return torch.stack([
            torch.linalg.vector_norm(image) for image in gradient.split(counts)
        ])
    others = list(range(gradient.dim()))
    del others[dim]
    return torch.linalg.vector_norm(gradient, dim=others)


@torch.no_grad()
def _note_divisors(loss: Tensor) -> None:
    """Find in the graph of the loss what the sum over the boxes of each
    prediction is divided by. The smallest of several divisors counts."""
    divisor: Share = 1.
    is_sum = False
    ways: List[tuple] = [(loss.grad_fn, 0, divisor, is_sum)]
    seen = set()
    while ways:
        node, output, divisor, is_sum = ways.pop()
        if isinstance(node, _Weigh._backward_cls):
            known = node.divisors[output]
            node.divisors[output] = (
                divisor if known is None else _smaller(known, divisor))
        elif node is not None and (node, divisor) not in seen:
            seen.add((node, divisor))
            if not is_sum:
                divisor, is_sum = _step_into(node, divisor)
            ways += [(*edge, divisor, is_sum) for edge in node.next_functions]


def _step_into(node: Any, divisor: Share) -> Tuple[Share, bool]:
    """What divides the inputs of an operation whose result, a scalar, is
    divided by ``divisor``, and whether the operation is a sum of elements."""
    name = node.name()
    if name == 'DivBackward0' and node._saved_other.numel() == 1:
        other = node._saved_other
        # A number on the GPU stays there: to read it would wait for the GPU.
        if other.device.type == 'cpu':
            other = float(np.ravel(other.tolist())[0])
        return divisor * other, False
    if name == 'SumBackward0':
        return divisor, len(node._saved_self_sym_sizes) > 0
    # MMEngine takes the mean of each loss, also of a scalar.
    if name == 'MeanBackward0' and node._saved_self_sym_numel > 1:
        return divisor * node._saved_self_sym_sizes[0], True
    if getattr(node, '_saved_reduction', None) == 1:  # 'mean'
        return divisor * len(node._saved_self), True
    return divisor, False


def _smaller(a: Share, b: Share) -> Share:
    if not isinstance(a, Tensor):
        a, b = b, a
    return a.clamp(max=b) if isinstance(a, Tensor) else min(a, b)


TASK = DetectionTask()

__all__ = ['TASK', 'register_detector', 'register_head']
