# Copyright (c) mmib contributors. All rights reserved.
"""Check the weights of images in the heads of MMDetection, as in
docs/detection.md.

Each detector is a config of MMDetection's zoo, with random weights, and gets
two images, of 64 x 64 pixels in most cases. Its gradients with weights (1, 3)
are compared to a mix by hand, which knows nothing of mmib: gradients at the
predictions, as the head gets them, times the weight of their image, and from
there back to the parameters.

It needs MMDetection and the compiled operations of mmcv. Backbone and neck
aren't trained, as each gradient goes through them in the same way.
"""
import argparse
import copy
import json
import math
import multiprocessing
import os
import time
from contextlib import contextmanager
from typing import (Any, Callable, Dict, Iterator, List, NamedTuple, Optional,
                    Sequence, Tuple)
from unittest import mock

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor

from mmib import tasks
from mmib.batch import BatchContext

OUT = 'docs/evidence/detection/heads.jsonl'
# Rows of the table: heads, what they are checked in, configs. A config may
# have options, as in `mmib train --cfg-options`.
CHECKED = [
    ('`AnchorHead`, `RetinaHead`, `RetinaSepBNHead`',
     'RetinaNet, also with NAS-FPN', [
         'retinanet/retinanet_r18_fpn_1x_coco',
         'nas_fpn/retinanet_r50_nasfpn_crop640-50e_coco size=256'
     ]),
    ('`RPNHead`', 'RPN', ['rpn/rpn_r50_fpn_1x_coco']),
    ('`GARetinaHead`, `GARPNHead`', 'guided anchoring', [
        'guided_anchoring/ga-retinanet_r50_fpn_1x_coco',
        'guided_anchoring/ga-faster-rcnn_r50_fpn_1x_coco'
    ]),
    ('`SSDHead`', 'SSD300', ['ssd/ssd300_coco size=320']),
    ('`FreeAnchorRetinaHead`', 'FreeAnchor',
     ['free_anchor/freeanchor_r50_fpn_1x_coco']),
    ('`FSAFHead`', 'FSAF', ['fsaf/fsaf_r50_fpn_1x_coco']),
    ('`SABLRetinaHead`', 'SABL RetinaNet',
     ['sabl/sabl-retinanet_r50_fpn_1x_coco']),
    ('`ATSSHead`', 'ATSS', ['atss/atss_r50_fpn_1x_coco']),
    ('`PAAHead`', 'PAA', ['paa/paa_r50_fpn_1x_coco']),
    ('`TOODHead`', 'TOOD, both of its assigners', [
        'tood/tood_r50_fpn_1x_coco',
        'tood/tood_r50_fpn_1x_coco model.train_cfg.initial_epoch=0'
    ]),
    ('`VFNetHead`', 'VarifocalNet', ['vfnet/vfnet_r50_fpn_1x_coco']),
    ('`GFLHead`', 'GFL', ['gfl/gfl_r50_fpn_1x_coco']),
    ('`FCOSHead`, `NASFCOSHead`',
     'FCOS with both places of centerness, NAS-FCOS', [
         'fcos/fcos_r50-caffe_fpn_gn-head_1x_coco',
         'fcos/fcos_r18_fpn_gn-head-center-normbbox-centeronreg-giou_8xb8-amp-'
         'lsj-200e_coco',
         'nas_fcos/nas-fcos_r50-caffe_fpn_nashead-gn-head_4xb4-1x_coco'
     ]),
    ('`FoveaHead`', 'FoveaBox', ['foveabox/fovea_r50_fpn_4xb4-1x_coco']),
    ('`CenterNetHead`, `CenterNetUpdateHead`', 'CenterNet, CenterNet2\'s', [
        'centernet/centernet_r18_8xb16-crop512-140e_coco',
        'centernet/centernet-update_r50-caffe_fpn_ms-1x_coco'
    ]),
    ('`YOLOV3Head`', 'YOLOv3', ['yolo/yolov3_d53_8xb8-320-273e_coco']),
    ('`YOLOFHead`', 'YOLOF', ['yolof/yolof_r50-c5_8xb8-1x_coco']),
    ('`YOLOXHead`', 'YOLOX-s', ['yolox/yolox_s_8xb8-300e_coco']),
    ('`RTMDetHead`, `RTMDetSepBNHead`', 'RTMDet-s',
     ['rtmdet/rtmdet_s_8xb32-300e_coco']),
    ('`DETRHead`', 'DETR', ['detr/detr_r50_8xb2-150e_coco']),
    ('`ConditionalDETRHead`, `DABDETRHead`', 'Conditional and DAB-DETR', [
        'conditional_detr/conditional-detr_r50_8xb2-50e_coco',
        'dab_detr/dab-detr_r50_8xb2-50e_coco'
    ]),
    ('`DeformableDETRHead`', 'Deformable DETR, also in two stages', [
        'deformable_detr/deformable-detr_r50_16xb2-50e_coco',
        'deformable_detr/deformable-detr-refine-twostage_r50_16xb2-50e_coco '
        'model.num_queries=50'
    ]),
    ('`DINOHead`', 'DINO, with its denoising queries',
     ['dino/dino-4scale_r50_8xb2-12e_coco model.num_queries=50']),
    ('`MaskFormerHead`', 'MaskFormer',
     ['maskformer/maskformer_r50_ms-16xb1-75e_coco']),
    ('`Mask2FormerHead`', 'Mask2Former, with the same random points',
     ['mask2former/mask2former_r50_8xb2-lsj-50e_coco']),
    ('`BBoxHead` and what derives from it, in `StandardRoIHead`, '
     '`DoubleHeadRoIHead`, `DynamicRoIHead`',
     'Faster R-CNN, Libra, Double-Head, Dynamic R-CNN', [
         'faster_rcnn/faster-rcnn_r50_fpn_1x_coco',
         'libra_rcnn/libra-faster-rcnn_r50_fpn_1x_coco',
         'double_heads/dh-faster-rcnn_r50_fpn_1x_coco',
         'dynamic_rcnn/dynamic-rcnn_r50_fpn_1x_coco'
     ]),
    ('the same in `CascadeRoIHead`', 'Cascade Mask R-CNN',
     ['cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco']),
    ('`SABLHead`', 'SABL Faster R-CNN',
     ['sabl/sabl-faster-rcnn_r50_fpn_1x_coco']),
    ('`FCNMaskHead`', 'Mask R-CNN', ['mask_rcnn/mask-rcnn_r50_fpn_1x_coco']),
    ('`BBoxHead` with `SeesawLoss`, which counts objects as it goes',
     'Mask R-CNN on LVIS',
     ['seesaw_loss/mask-rcnn_r50_fpn_seesaw-loss_random-ms-2x_lvis-v1']),
]
# mmib refuses these: here they are let through to be measured.
REFUSED = [
    ('any head with `GHMC` or `GHMR`', 'RetinaNet',
     ['ghm/retinanet_r50_fpn_ghm-1x_coco']),
    ('`RepPointsHead`', 'RepPoints',
     ['reppoints/reppoints-moment_r50_fpn_1x_coco']),
    ('`AutoAssignHead`', 'AutoAssign',
     ['autoassign/autoassign_r50-caffe_fpn_1x_coco']),
    ('`PISARetinaHead`', 'PISA RetinaNet',
     ['pisa/retinanet-r50_fpn_pisa_1x_coco']),
    ('`DDODHead`', 'DDOD', ['ddod/ddod_r50_fpn_1x_coco size=400']),
]

Row = Tuple[str, str, List[str]]
# Float64 of shape (N,): a gradient, of all tensors one after the other.
Vector = Tensor


class Call(NamedTuple):
    """What a head was called with to compute its losses."""

    again: Callable
    """Calls the same method with other arguments. What the head counts of
    batches is as it was before the call."""
    args: tuple
    kwargs: Dict[str, Any]
    losses: Dict[str, Tensor]
    """Terms of its loss, scalars."""
    dim: int
    """Dimension of the predictions that runs over the images."""
    counts: List[int]
    """Rows of each image there, or a share of them."""

    def of_image(self, tensor: Tensor, image: int) -> Tensor:
        """What a tensor has of an image: a part of the same memory."""
        rows = tensor.shape[self.dim] // sum(self.counts)
        return tensor.narrow(self.dim, rows * sum(self.counts[:image]),
                             rows * self.counts[image])


def build(config: str, size: int) -> nn.Module:
    """A detector of MMDetection's zoo, with random weights."""
    from mmdet.registry import MODELS
    from mmengine.hub import get_config
    name, *options = config.split()
    cfg = get_config(f'mmdet::{name}.py')
    cfg.merge_from_dict({
        key: int(value)
        for key, value in (option.split('=') for option in options)
        if key != 'size'
    })
    cfg.model.backbone.pop('init_cfg', None)
    # It would change the size of the images.
    cfg.model.data_preprocessor.pop('batch_augments', None)
    model = MODELS.build(cfg.model)
    model.init_weights()
    for part in ('backbone', 'neck'):
        if hasattr(model, part):
            getattr(model, part).requires_grad_(False)
    return model.train()


def make_samples(size: int, has_masks: bool) -> list:
    """Annotations of two images, with one box and with three."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData
    samples = []
    for boxes in ([[5, 5, 30, 35]], [[2, 10, 25, 30], [20, 20, 60, 55],
                                     [35, 2, 50, 20]]):
        boxes = np.array(boxes) * size // 64
        objects = InstanceData(
            bboxes=torch.tensor(boxes).float(),
            labels=torch.arange(len(boxes)))
        if has_masks:
            masks = np.zeros((len(boxes), size, size), np.uint8)
            for mask, (left, top, right, bottom) in zip(masks, boxes):
                mask[top:bottom, left:right] = 1
            objects.masks = BitmapMasks(masks, size, size)
        shapes = ('img_shape', 'pad_shape', 'ori_shape', 'batch_input_shape')
        sample = DetDataSample(
            metainfo=dict(
                dict.fromkeys(shapes, (size, size)), scale_factor=(1., 1.)))
        sample.gt_instances = objects
        sample.ignored_instances = InstanceData(
            bboxes=torch.zeros(0, 4), labels=torch.zeros(0).long())
        samples.append(sample)
    return samples


@contextmanager
def same_draws() -> Iterator[None]:
    """Let an image get the same random numbers alone and in a batch."""
    from mmdet.models.task_modules.samplers import RandomSampler
    numbers = torch.rand(100_000, generator=torch.Generator().manual_seed(0))

    def rand(*shape: Any, **kwargs: Any) -> Tensor:
        if not isinstance(shape[0], int):
            shape = tuple(shape[0])
        row = numbers[:math.prod(shape[1:])].view(1, *shape[1:])
        return row.repeat(shape[0], *[1] * len(shape[1:]))

    def first(self: RandomSampler, gallery: Tensor, num: int) -> Tensor:
        return gallery[:num]

    with mock.patch.object(torch, 'rand', rand), \
            mock.patch.object(RandomSampler, 'random_choice', first):
        yield


def change(value: Any, by: Callable, by_list: Callable = list) -> Any:
    """Change the tensors in lists and tuples, and lists of anything else."""
    if torch.is_tensor(value):
        return by(value)
    if isinstance(value, (list, tuple)):
        if value and not isinstance(value[0], (Tensor, list, tuple)):
            return by_list(value)
        return type(value)(change(x, by, by_list) for x in value)
    return value


def tensors_of(*values: Any) -> List[Tensor]:
    """The predictions among arguments: tensors with a gradient."""
    found: List[Tensor] = []
    for value in values:
        change(value, lambda x: found.append(x) if x.requires_grad else None)
    return found


def terms_of(losses: Dict[str, Any]) -> Dict[str, Tensor]:
    """The terms that MMEngine adds, each a scalar."""
    terms: Dict[str, Tensor] = {}
    for name, value in losses.items():
        if 'loss' in name:
            if isinstance(value, dict):
                terms.update(terms_of(value))
            else:
                terms[name] = sum(
                    x.mean()
                    for x in ([value] if torch.is_tensor(value) else value))
    return terms


def images_of(head: nn.Module, kwargs: Dict[str, Any]) -> Tuple[int, list]:
    """Where the images lie in the predictions: see :class:`Call`."""
    from mmdet.models import dense_heads, roi_heads
    if 'sampling_results' in kwargs:
        name = ('pos_priors'
                if isinstance(head, roi_heads.FCNMaskHead) else 'priors')
        return 0, [len(getattr(x, name)) for x in kwargs['sampling_results']]
    if isinstance(head, dense_heads.DETRHead):
        return -3, [1, 1]
    if type(head) is dense_heads.MaskFormerHead:
        return 1, [1, 1]
    return 0, [1, 1]


def record_calls(model: nn.Module) -> List[Call]:
    """Let a detector note what its heads compute their losses from."""
    calls: List[Call] = []

    def record(head: nn.Module, method: str) -> None:
        function = getattr(head, method)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            before = copy.deepcopy(head)

            def again(*args: Any, **kwargs: Any) -> Any:
                return getattr(type(head), method)(copy.deepcopy(before),
                                                   *args, **kwargs)

            # A view has a gradient of its own, without that of other uses.
            def view(x: Tensor) -> Tensor:
                return x.view_as(x)

            args = change(args, view)
            kwargs = {key: change(x, view) for key, x in kwargs.items()}
            losses = function(*args, **kwargs)
            calls.append(
                Call(again, args, kwargs, terms_of(losses),
                     *images_of(head, kwargs)))
            return losses

        setattr(head, method, wrapper)

    for module in list(model.modules()):
        for method in ('loss_by_feat', 'loss_and_target'):
            if hasattr(module, method):
                record(module, method)
                break
    return calls


def vector(gradients: Sequence[Optional[Tensor]],
           like: Sequence[Tensor]) -> Vector:
    """Gradients one after the other. None is zero."""
    return torch.cat([
        (torch.zeros_like(x) if gradient is None else gradient).flatten()
        for gradient, x in zip(gradients, like)
    ]).double()


def distance(a: Vector, b: Vector) -> float:
    """Length of a - b, relative to that of b."""
    return ((a - b).norm() / b.norm()).item()


def gradients_of(loss: Tensor, tensors: Sequence[Tensor]) -> list:
    return torch.autograd.grad(
        loss, tensors, retain_graph=True, allow_unused=True)


def mixes_by_hand(loss: Tensor, calls: List[Call], parameters: List[Tensor],
                  *weights: Sequence[float]) -> Iterator[Vector]:
    """Gradients at the predictions, times weights of their images, back to
    the parameters."""
    preds = [(call, pred) for call in calls
             for pred in tensors_of(*call.args, *call.kwargs.values())]
    at_preds = gradients_of(loss, [pred for _, pred in preds])
    for pair in weights:
        weighted = []
        for (call, pred), gradient in zip(preds, at_preds):
            factor = torch.zeros_like(pred)
            for image, weight in enumerate(pair):
                call.of_image(factor, image).fill_(weight)
            weighted.append(factor * (0 if gradient is None else gradient))
        yield vector(
            torch.autograd.grad([pred for _, pred in preds],
                                parameters,
                                weighted,
                                retain_graph=True,
                                allow_unused=True), parameters)


def distance_alone(call: Call, image: int) -> float:
    """How far the gradients of an image alone are from those that it has in
    the batch, up to a factor: the largest of all terms of the loss."""

    def own_part(x: Tensor) -> Tensor:
        part = call.of_image(x, image).detach()
        return part.requires_grad_(x.requires_grad)

    def own_item(x: list) -> list:
        return x[image:image + 1] if len(x) == len(call.counts) else x

    args = change(call.args, own_part, own_item)
    kwargs = {
        key: change(x, own_part, own_item)
        for key, x in call.kwargs.items()
    }
    seed(1)
    alone = terms_of(call.again(*args, **kwargs))
    own = tensors_of(*args, *kwargs.values())
    preds = tensors_of(*call.args, *call.kwargs.values())
    distances = [0.]
    for name, loss in call.losses.items():
        if not loss.requires_grad:
            continue
        in_batch = vector([
            None if x is None else call.of_image(x, image)
            for x in gradients_of(loss, preds)
        ], own)
        by_itself = vector(
            gradients_of(alone[name], own)
            if alone[name].requires_grad else [None] * len(own), own)
        if by_itself.any():
            factor = (in_batch @ by_itself) / (by_itself @ by_itself)
            by_itself *= factor
        if in_batch.any():
            distances.append(distance(by_itself, in_batch))
    return max(distances)


def seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)


def measure(config: str) -> Dict[str, Any]:
    """Measure a config of the zoo.

    Args:
        config (str): Its name, and options after it: ``size=`` of the images,
            64 without it, and keys of the config.

    Returns:
        dict: Relative distances of gradients:

        - ``elsewhere``: of all of the gradient, to what comes through the
          predictions.
        - ``weights``: with weights (1, 3) by mmib, to a mix by hand.
        - ``unweighted``: without weights, to that mix.
        - ``alone``: of an image alone, to that in the batch, up to a factor.
    """
    from mmdet.models import dense_heads
    from mmengine.logging import MessageHub
    from mmengine.registry import init_default_scope

    from mmib.tasks import detection
    torch.set_num_threads(1)
    init_default_scope('mmdet')
    MessageHub.get_current_instance().update_info('epoch', 0)
    for head in ('AutoAssignHead', 'DDODHead', 'PISARetinaHead',
                 'RepPointsHead'):
        detection.register_head(getattr(dense_heads, head))
    detection.BATCH_LOSSES = ()
    begin = time.perf_counter()
    size = next((int(option[5:])
                 for option in config.split() if option.startswith('size=')),
                64)
    seed(0)
    model = build(config, size)
    inputs = torch.randn(2, 3, size, size)
    samples = make_samples(size, 'mask' in config)

    def loss_of(detector: nn.Module) -> Tensor:
        seed(1)
        losses = detector.loss(inputs, copy.deepcopy(samples))
        return detector.parse_losses(losses)[0]

    def trained(detector: nn.Module) -> List[Tensor]:
        return [x for x in detector.parameters() if x.requires_grad]

    with same_draws():
        # Before anything is counted in it.
        pruned, batch = copy.deepcopy(model), BatchContext()
        tasks.attach(pruned, batch)
        batch.begin(torch.tensor([1., 3.]))
        weighted = vector(
            gradients_of(loss_of(pruned), trained(pruned)), trained(pruned))

        calls = record_calls(model)
        loss = loss_of(model)
        plain = vector(gradients_of(loss, trained(model)), trained(model))
        through, by_hand = mixes_by_hand(loss, calls, trained(model), (1, 1),
                                         (1, 3))
        alone = max(
            distance_alone(call, image) for call in calls for image in (0, 1))
    return dict(
        config=config,
        elsewhere=rounded(distance(plain, through)),
        weights=rounded(distance(weighted, by_hand)),
        unweighted=rounded(distance(plain, by_hand)),
        alone=rounded(alone),
        seconds=round(time.perf_counter() - begin, 1))


def rounded(value: float) -> float:
    return float(f'{value:.2g}')


def cell(value: float) -> str:
    """A distance as in the table: 6e-8, 0.08, 0."""
    if value == 0 or value >= 0.001:
        return f'{value:.2g}'
    return f'{value:.0e}'.replace('e-0', 'e-')


def table(rows: Sequence[Row], results: Sequence[dict]) -> str:
    """The table of docs/detection.md, of the rows that were measured: the
    largest distances of their configs."""
    by_config = {result['config']: result for result in results}
    lines = [
        '| head | checked in | elsewhere | weights | alone |',
        '|---|---|---|---|---|'
    ]
    for heads, checked_in, configs in rows:
        found = [by_config[name] for name in configs if name in by_config]
        if found:
            cells = ' | '.join(
                cell(max(result[key] for result in found))
                for key in ('elsewhere', 'weights', 'alone'))
            lines.append(f'| {heads} | {checked_in} | {cells} |')
    return '\n'.join(lines) + '\n'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', help='file for the results')
    parser.add_argument('--only', default='', help='part of a config\'s name')
    parser.add_argument('--jobs', type=int, default=2, help='processes')
    args = parser.parse_args()
    configs = [
        config for _, _, configs in CHECKED + REFUSED for config in configs
        if args.only in config
    ]
    results = []
    with multiprocessing.get_context('spawn').Pool(args.jobs) as pool:
        for result in pool.imap(measure, configs, chunksize=1):
            results.append(result)
            print(json.dumps(result), flush=True)
    if args.out:
        os.makedirs(os.path.dirname(args.out), exist_ok=True)
        with open(args.out, 'w', encoding='utf-8') as file:
            file.writelines(json.dumps(x) + '\n' for x in results)
    print(table(CHECKED, results))
    print(table(REFUSED, results))


if __name__ == '__main__':
    main()
