# Copyright (c) mmib contributors. All rights reserved.
"""MMDetection: detectors whose heads get their predictions image by image.

How a head flattens, matches and selects the boxes of a batch before it calls
its losses differs from head to head. What it gets doesn't: predictions whose
images lie along one dimension. So the weight of an image multiplies what flows
back to its predictions there. The loss keeps its value and its divisor.
"""
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple, Union

import torch
import torch.nn as nn
from mmdet.models import dense_heads, detectors, roi_heads
from mmdet.models.losses import GHMC, GHMR
from mmengine.hooks import Hook
from torch import Tensor

from ..batch import BatchContext
from ..compat import change_calls, observe_calls
from ..losses import scale_gradient
from .wrapping import known

# Predictions (B, ...), of each level or layer.
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
# (layers, B, Q, C), and of an encoder (B, Q, C).
_OF_QUERIES = (dense_heads.ConditionalDETRHead, dense_heads.DETRHead,
               dense_heads.DINOHead, dense_heads.DeformableDETRHead)
# Head: the dimension of its predictions that runs over the images.
_IMAGES_OF_HEAD: Dict[type, int] = {
    **dict.fromkeys(_DENSE, 0),
    **dict.fromkeys(_OF_QUERIES, -3),
    # (layers, B, Q, ...), of classes and of masks.
    dense_heads.MaskFormerHead: 1,
}
# Head of regions: which of the regions of an image it predicts.
_REGIONS_OF_HEAD: Dict[type, str] = {
    roi_heads.BBoxHead: 'priors',
    roi_heads.SABLHead: 'priors',
    roi_heads.FCNMaskHead: 'pos_priors',
}
# What has heads: the attributes that hold them.
_HEADS: Dict[type, Tuple[str, ...]] = {
    detectors.DetectionTransformer: ('bbox_head', ),
    detectors.MaskFormer: ('panoptic_head', ),
    detectors.RPN: ('bbox_head', ),
    detectors.SingleStageDetector: ('bbox_head', ),
    detectors.TwoStageDetector: ('rpn_head', 'roi_head'),
    roi_heads.CascadeRoIHead: ('bbox_head', 'mask_head'),
    roi_heads.DynamicRoIHead: ('bbox_head', 'mask_head'),
    roi_heads.StandardRoIHead: ('bbox_head', 'mask_head'),
}
# Losses that weigh a box by all boxes of the batch.
BATCH_LOSSES: Tuple[type, ...] = (GHMC, GHMR)
# A subclass that has another one of these computes its losses in its own way.
_METHODS = ('loss', 'loss_and_predict', 'loss_by_feat', 'loss_and_target',
            'bbox_loss', 'mask_loss')

Losses = Dict[str, Union[Tensor, List[Tensor]]]


def register_head(head_type: type, images: int = 0) -> None:
    """Tell mmib of a dense head, or of one of queries.

    All that it predicts must be among the arguments of its ``loss_by_feat``,
    as tensors or lists of them, and its loss must be a sum over images, up to
    a divisor. This counts for subclasses too, unless they override ``loss`` or
    ``loss_by_feat``.

    Args:
        head_type (type): Class of the head.
        images (int): Dimension of these tensors that runs over the images.
            Defaults to 0.
    """
    _IMAGES_OF_HEAD[head_type] = images


def register_detector(detector_type: type, *heads: str) -> None:
    """Tell mmib of a detector that overrides ``loss``.

    All of its loss must come from its heads.

    Args:
        detector_type (type): Class of the detector. Subclasses that don't
            override ``loss`` again are meant too.
        *heads (str): Attributes with a head. Without any it is ``bbox_head``.
    """
    _HEADS[detector_type] = heads or ('bbox_head', )


class DetectionTask:
    """Detectors of MMDetection."""

    # Boxes are counted in the whole batch, and divide the loss of each image.
    ema = 0.8
    # The losses of the images aren't told apart.
    scores = ('gradient', )

    def matches(self, model: nn.Module) -> bool:
        return isinstance(model, detectors.BaseDetector)

    def attach(self,
               model: nn.Module,
               batch: BatchContext,
               hooks: Sequence[Hook] = ()) -> None:
        for head, where in list(_heads_of(model, 'model')):
            _connect(head, where, batch)

        def note(losses: Losses) -> None:
            if batch.weights is not None:
                _note_losses(losses, batch)

        observe_calls(model, 'parse_losses', note)


def _heads_of(owner: nn.Module, where: str) -> Iterator[Tuple[nn.Module, str]]:
    """The heads in a detector that compute losses, and the place of each."""
    names = known(owner, _HEADS, _METHODS)
    if names is None:
        raise ValueError(
            f'{type(owner).__name__}, which is `{where}`, computes its losses '
            'in its own way, so that some might be trained without weights: '
            'if all of its loss comes from its heads, say so with '
            '`mmib.tasks.detection.register_detector`, or train without '
            'InfoBatchHook.')
    for name in names:
        heads = getattr(owner, name, None)
        for head in heads if isinstance(heads, nn.ModuleList) else [heads]:
            if head is None:
                continue
            if any(isinstance(head, kind) for kind in _HEADS):
                yield from _heads_of(head, f'{where}.{name}')
            else:
                yield head, f'{where}.{name}'


def _connect(head: nn.Module, where: str, batch: BatchContext) -> None:
    """Let a head compute its losses from predictions to which what flows back
    is weighted."""
    for name, module in head.named_modules():
        if isinstance(module, BATCH_LOSSES):
            raise ValueError(
                f'{type(module).__name__}, `{where}.{name}`, weighs a box by '
                'all boxes of the batch, so the loss of an image depends on '
                'which others there are: use another loss, or train without '
                'InfoBatchHook.')
    dim = known(head, _IMAGES_OF_HEAD, _METHODS)
    regions = known(head, _REGIONS_OF_HEAD, _METHODS)
    if dim is not None:
        _weigh_predictions(head, 'loss_by_feat', batch,
                           partial(_weigh_images, dim=dim))
    elif regions is not None:
        _weigh_predictions(head, 'loss_and_target', batch,
                           partial(_weigh_regions, name=regions))
    else:
        raise ValueError(
            'InfoBatch needs a loss that is a sum over images, and mmib does '
            f'not know whether that of {type(head).__name__} is one: change '
            f'`{where}`, tell mmib what it predicts with '
            '`mmib.tasks.detection.register_head`, or train without '
            'InfoBatchHook.')


def _weigh_predictions(head: nn.Module, method: str, batch: BatchContext,
                       weigh: Callable) -> None:
    """Change all predictions among the arguments of a method."""

    def change(*args: Any, **kwargs: Any) -> Tuple[tuple, Dict[str, Any]]:
        if batch.weights is None or not torch.is_grad_enabled():
            return args, kwargs

        def changed(value: Any) -> Any:
            if isinstance(value, Tensor) and value.requires_grad:
                return weigh(value, batch, kwargs)
            if isinstance(value, (list, tuple)):
                return type(value)(map(changed, value))
            return value

        return changed(args), {
            name: changed(value)
            for name, value in kwargs.items()
        }

    change_calls(head, method, change)


def _weigh_images(pred: Tensor, batch: BatchContext, kwargs: Dict[str, Any],
                  dim: int) -> Tensor:
    rows = pred.movedim(dim, 0)
    assert batch.weights is not None
    if len(rows) != len(batch.weights):
        raise ValueError(
            f'`loss_by_feat` gets a prediction of shape {tuple(pred.shape)} in'
            f' a batch of {len(batch.weights)} images, and dimension {dim} '
            'should run over them: correct `images` of '
            '`mmib.tasks.detection.register_head`.')
    batch.watch(rows, 1)
    return scale_gradient(rows, batch.weights).movedim(0, dim)


def _weigh_regions(pred: Tensor, batch: BatchContext, kwargs: Dict[str, Any],
                   name: str) -> Tensor:
    """The regions that were sampled in each image lie one after the other."""
    counts = [len(getattr(x, name)) for x in kwargs['sampling_results']]
    batch.watch(pred, counts)
    assert batch.weights is not None
    weights = [w.expand(n) for w, n in zip(batch.weights, counts)]
    return scale_gradient(pred, torch.cat(weights))


def _note_losses(losses: Losses, batch: BatchContext) -> None:
    """Note the loss of the batch. That of an image isn't known."""
    terms: List[Tensor] = []
    for name, loss in losses.items():
        if 'loss' in name:
            terms += [loss] if isinstance(loss, Tensor) else loss
    # MMEngine adds them all, so that the same flows into each.
    batch.watch_loss(next(term for term in terms if term.requires_grad))
    assert batch.weights is not None
    batch.add_scores(
        torch.full_like(batch.weights, torch.nan),
        torch.stack([term.detach().mean() for term in terms]).sum())


TASK = DetectionTask()

__all__ = ['TASK', 'DetectionTask', 'register_detector', 'register_head']
