# Copyright (c) mmib contributors. All rights reserved.
"""The weights of images in the heads of MMDetection's zoo.

Each detector has random weights, and gets two images, of 64 x 64 pixels in
most cases. The gradient at the pixels of an image is multiplied by its weight,
and is the same beside another image, up to a factor. Detectors that call
compiled operations of mmcv are left out where there are none.
"""
import copy
import gc
import math
import os.path as osp
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest

from ..test_tasks import test_detection  # noqa: F401, stands in for mmcv

pytest.importorskip('mmdet.models', exc_type=ImportError)

import mmdet  # noqa: E402
import torch  # noqa: E402
from mmdet.models.task_modules.samplers import RandomSampler  # noqa: E402
from mmdet.registry import MODELS  # noqa: E402
from mmdet.structures import DetDataSample  # noqa: E402
from mmdet.structures.mask import BitmapMasks  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.logging import MessageHub  # noqa: E402
from mmengine.registry import DefaultScope  # noqa: E402
from mmengine.structures import InstanceData  # noqa: E402

from ..test_tasks.contract import TOLERANCE  # noqa: E402
from ..test_tasks.contract import check_weights, image_by_image  # noqa: E402

pytestmark = pytest.mark.mmdet

ZOO = osp.join(mmdet.__path__[0], '.mim', 'configs')
# Names of configs, with options as in `mmib train --cfg-options`, and `size=`
# of the images.
SEESAW = ('seesaw_loss/'
          'mask-rcnn_r50_fpn_seesaw-loss_random-ms-2x_lvis-v1')
CHECKED = [
    'retinanet/retinanet_r18_fpn_1x_coco',
    'nas_fpn/retinanet_r50_nasfpn_crop640-50e_coco size=256',
    'rpn/rpn_r50_fpn_1x_coco',
    'guided_anchoring/ga-retinanet_r50_fpn_1x_coco',
    'guided_anchoring/ga-faster-rcnn_r50_fpn_1x_coco',
    'ssd/ssd300_coco size=320',
    'free_anchor/freeanchor_r50_fpn_1x_coco',
    'fsaf/fsaf_r50_fpn_1x_coco',
    'sabl/sabl-retinanet_r50_fpn_1x_coco',
    'atss/atss_r50_fpn_1x_coco',
    'paa/paa_r50_fpn_1x_coco',
    'tood/tood_r50_fpn_1x_coco',
    'tood/tood_r50_fpn_1x_coco model.train_cfg.initial_epoch=0',
    'vfnet/vfnet_r50_fpn_1x_coco',
    'gfl/gfl_r50_fpn_1x_coco',
    'fcos/fcos_r50-caffe_fpn_gn-head_1x_coco',
    'fcos/fcos_r18_fpn_gn-head-center-normbbox-centeronreg-giou_'
    '8xb8-amp-lsj-200e_coco',
    'nas_fcos/nas-fcos_r50-caffe_fpn_nashead-gn-head_4xb4-1x_coco',
    'foveabox/fovea_r50_fpn_4xb4-1x_coco',
    'centernet/centernet_r18_8xb16-crop512-140e_coco',
    'centernet/centernet-update_r50-caffe_fpn_ms-1x_coco',
    'yolo/yolov3_d53_8xb8-320-273e_coco',
    'yolof/yolof_r50-c5_8xb8-1x_coco',
    'yolox/yolox_s_8xb8-300e_coco',
    'rtmdet/rtmdet_s_8xb32-300e_coco',
    'detr/detr_r50_8xb2-150e_coco',
    'conditional_detr/conditional-detr_r50_8xb2-50e_coco',
    'dab_detr/dab-detr_r50_8xb2-50e_coco',
    'deformable_detr/deformable-detr_r50_16xb2-50e_coco',
    'deformable_detr/deformable-detr-refine-twostage_r50_16xb2-50e_coco '
    'model.num_queries=50',
    'dino/dino-4scale_r50_8xb2-12e_coco model.num_queries=50',
    'maskformer/maskformer_r50_ms-16xb1-75e_coco',
    'mask2former/mask2former_r50_8xb2-lsj-50e_coco',
    'faster_rcnn/faster-rcnn_r50_fpn_1x_coco',
    'libra_rcnn/libra-faster-rcnn_r50_fpn_1x_coco',
    'double_heads/dh-faster-rcnn_r50_fpn_1x_coco',
    'dynamic_rcnn/dynamic-rcnn_r50_fpn_1x_coco',
    'cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco',
    'sabl/sabl-faster-rcnn_r50_fpn_1x_coco',
    'mask_rcnn/mask-rcnn_r50_fpn_1x_coco',
    SEESAW,
]
# One of anchors, and one of queries.
SAMPLE = (CHECKED[0], 'detr/detr_r50_8xb2-150e_coco')


def make_samples(size, has_masks):
    """Annotations of two images, with one box and with three."""
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
def same_draws():
    """Let an image get the same random numbers beside any other."""
    numbers = torch.rand(100_000, generator=torch.Generator().manual_seed(0))

    def rand(*shape, **kwargs):
        if not isinstance(shape[0], int):
            shape = tuple(shape[0])
        row = numbers[:math.prod(shape[1:])].view(1, *shape[1:])
        return row.repeat(shape[0], *[1] * len(shape[1:]))

    def first(self, gallery, num):
        return gallery[:num]

    with mock.patch.object(torch, 'rand', rand), \
            mock.patch.object(RandomSampler, 'random_choice', first):
        yield


def gradients_at_pixels(model, inputs, samples):
    """Those of each term of the loss, but of denoising queries, which are
    drawn for all boxes of the batch."""
    inputs = inputs.clone().requires_grad_()
    torch.manual_seed(1)
    np.random.seed(1)
    model = copy.deepcopy(model)
    _, terms = model.parse_losses(model.loss(inputs, copy.deepcopy(samples)))
    return {
        name: torch.autograd.grad(
            loss, inputs, retain_graph=True, materialize_grads=True)[0]
        for name, loss in terms.items()
        if loss.requires_grad and name != 'loss' and 'dn_' not in name
    }


def distance_beside(model, inputs, samples):
    """How far the gradients of an image beside the other one are from those
    beside itself, up to a factor: the largest of all terms of the loss."""
    distances = []
    with image_by_image(), same_draws():
        together = gradients_at_pixels(model, inputs, samples)
        for i, sample in enumerate(samples):
            twice = gradients_at_pixels(model, inputs[[i, i]], [sample] * 2)
            for name, gradients in together.items():
                one = gradients[i].flatten().double()
                two = torch.zeros_like(one)
                if name in twice:
                    two += twice[name][i].flatten()
                if two.any():
                    two *= (one @ two) / (two @ two)
                if one.any():
                    distances.append((two - one).norm() / one.norm())
    return max(distances)


def prepare(config):
    """A detector of MMDetection's zoo with a batch of two images, or skip."""
    name, *options = config.split()
    options = dict(option.split('=') for option in options)
    size = int(options.pop('size', 64))
    cfg = Config.fromfile(osp.join(ZOO, f'{name}.py'))
    cfg.merge_from_dict({key: int(value) for key, value in options.items()})
    cfg.model.backbone.pop('init_cfg', None)
    # It would change the size of the images.
    cfg.model.data_preprocessor.pop('batch_augments', None)
    MessageHub.get_current_instance().update_info('epoch', 0)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.model)
    model.init_weights()
    batch = torch.randn(2, 3, size, size), make_samples(size, 'mask' in config)
    try:
        gradients_at_pixels(model.train(), *batch)
    except RuntimeError as error:
        if test_detection.COMPILED or 'is not compiled' not in str(error):
            raise
        pytest.skip(str(error))
    return model, batch


@pytest.mark.parametrize('config', [
    pytest.param(config, marks=() if config in SAMPLE else pytest.mark.slow)
    for config in CHECKED
])
def test_weights_multiply_the_gradients_of_images(config):
    model, batch = prepare(config)

    def make():
        # What is attached refers to itself, and is large.
        gc.collect()
        return copy.deepcopy(model)

    check_weights(make, *batch, torch.tensor([1., 3.]))
    # `SeesawLoss` counts the objects of the batches until then.
    tolerance = 0.05 if config == SEESAW else TOLERANCE
    assert distance_beside(model, *batch) < tolerance
