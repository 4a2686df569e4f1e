# Copyright (c) mmib contributors. All rights reserved.
"""Take two training steps with a config of each algorithm family of
MMSegmentation, and compare them with stock and with weights by hand.

``python tools/check_families.py`` checks all of :data:`CONFIGS` in the stack
of the environment, ``python tools/check_families.py fcn unet`` two families.
Each config runs in a process of its own and adds one line to ``--out``.
Configs with a line there are not run again. ``--markdown`` prints the lines of
one or several such files as a table instead.

The models are those of the configs, without pretrained weights, where
:func:`shrink`, :func:`narrow` and :data:`CHANGES` make fields smaller. Of each
it checks:

a. Two steps of stock training (SGD) have finite losses.
b. With mmib and weight 1 for each image, losses and gradients are stock's.
c. With :data:`WEIGHTS`, they are those of the weights by hand, see
   :class:`ByHand`, which knows nothing of mmib.
d. Scores are finite, differ between images, and don't know the weights.

Results are ``prunes`` (all of them hold), ``score only`` (all but c, for which
the weights by hand know no formula), ``clear error`` (mmib refuses the config
with a sentence), ``cannot run here`` (stock fails) and ``WRONG``. The
second step starts where stock's, or the weights by hand, left off, as the last
bit of a parameter may turn a ReLU on or off. Losses may differ by
:data:`LOSS_TOLERANCE` of themselves. The gradient of a parameter may differ by
:data:`GRADIENT_TOLERANCE` of its largest element, or of 1/1000 of the largest
of the network where that is more: biases in front of a normalization have no
gradient but rounding. Networks compute in float32, and in float64 where
float32 differs by more than that.
"""
import argparse
import contextlib
import io
import itertools
import json
import multiprocessing
import os
import os.path as osp
import resource
import sys
import time
import traceback
import warnings
from importlib import metadata, util
from typing import NamedTuple

ROOT = osp.dirname(osp.dirname(osp.abspath(__file__)))
OUT = 'work_dirs/families.jsonl'
WEIGHTS = (1., 3.)
STEPS = 2
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-5
SIZE = 64

# One config of each family, the smallest backbone that stands for it, and
# more where other configs of the family have other losses.
CONFIGS = (
    'ann/ann_r50-d8_4xb4-80k_ade20k-512x512',
    'apcnet/apcnet_r50-d8_4xb4-80k_ade20k-512x512',
    'beit/beit-base_upernet_8xb2-160k_ade20k-640x640',
    'bisenetv1/bisenetv1_r18-d32_4xb4-160k_cityscapes-1024x1024',
    'bisenetv2/bisenetv2_fcn_4xb4-160k_cityscapes-1024x1024',
    'ccnet/ccnet_r50-d8_4xb4-80k_ade20k-512x512',
    'cgnet/cgnet_fcn_4xb4-60k_cityscapes-680x680',
    'convnext/convnext-tiny_upernet_8xb2-amp-160k_ade20k-512x512',
    'danet/danet_r50-d8_4xb4-80k_ade20k-512x512',
    'ddrnet/ddrnet_23-slim_in1k-pre_2xb6-120k_cityscapes-1024x1024',
    'deeplabv3/deeplabv3_r18-d8_4xb2-80k_cityscapes-512x1024',
    'deeplabv3/deeplabv3_r101-d16-mg124_4xb2-40k_cityscapes-512x1024',
    'deeplabv3plus/deeplabv3plus_r18-d8_4xb2-80k_cityscapes-512x1024',
    'deeplabv3plus/deeplabv3plus_r101-d16-mg124_4xb2-40k_cityscapes-512x1024',
    'dmnet/dmnet_r50-d8_4xb4-80k_ade20k-512x512',
    'dnlnet/dnl_r50-d8_4xb4-80k_ade20k-512x512',
    'dpt/dpt_vit-b16_8xb2-160k_ade20k-512x512',
    'dsdl/voc',
    'emanet/emanet_r50-d8_4xb2-80k_cityscapes-512x1024',
    'encnet/encnet_r50-d8_4xb4-80k_ade20k-512x512',
    'erfnet/erfnet_fcn_4xb4-160k_cityscapes-512x1024',
    'fastfcn/fastfcn_r50-d32_jpu_psp_4xb4-80k_ade20k-512x512',
    'fastfcn/fastfcn_r50-d32_jpu_enc_4xb4-80k_ade20k-512x512',
    'fastscnn/fast_scnn_8xb4-160k_cityscapes-512x1024',
    'fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024',
    'gcnet/gcnet_r50-d8_4xb4-80k_ade20k-512x512',
    'hrnet/fcn_hr18s_4xb4-80k_ade20k-512x512',
    'icnet/icnet_r18-d8_4xb2-80k_cityscapes-832x832',
    'isanet/isanet_r50-d8_4xb4-80k_ade20k-512x512',
    'knet/knet-s3_r50-d8_fcn_8xb2-adamw-80k_ade20k-512x512',
    'mae/mae-base_upernet_8xb2-amp-160k_ade20k-512x512',
    'mask2former/mask2former_r50_8xb2-90k_cityscapes-512x1024',
    'mask2former/mask2former_swin-t_8xb2-160k_ade20k-512x512',
    'maskformer/maskformer_r50-d32_8xb2-160k_ade20k-512x512',
    'mobilenet_v2/mobilenet-v2-d8_fcn_4xb4-160k_ade20k-512x512',
    'mobilenet_v3/mobilenet-v3-d8-s_lraspp_4xb4-320k_cityscapes-512x1024',
    'nonlocal_net/nonlocal_r50-d8_4xb4-80k_ade20k-512x512',
    'ocrnet/ocrnet_hr18s_4xb4-80k_ade20k-512x512',
    'ocrnet/ocrnet_r101-d8_4xb2-40k_cityscapes-512x1024',
    'pidnet/pidnet-s_2xb6-120k_1024x1024-cityscapes',
    'point_rend/pointrend_r50_4xb4-160k_ade20k-512x512',
    'poolformer/fpn_poolformer_s12_8xb4-40k_ade20k-512x512',
    'psanet/psanet_r50-d8_4xb4-80k_ade20k-512x512',
    'pspnet/pspnet_r18-d8_4xb2-80k_cityscapes-512x1024',
    'resnest/resnest_s101-d8_fcn_4xb4-160k_ade20k-512x512',
    'san/san-vit-b16_coco-stuff164k-640x640',
    'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512',
    'segmenter/segmenter_vit-s_mask_8xb1-160k_ade20k-512x512',
    'segmenter/segmenter_vit-s_fcn_8xb1-160k_ade20k-512x512',
    'segnext/segnext_mscan-t_1xb16-adamw-160k_ade20k-512x512',
    'sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512',
    'setr/setr_vit-l_pup_8xb2-160k_ade20k-512x512',
    'setr/setr_vit-l_mla_8xb2-160k_ade20k-512x512',
    'stdc/stdc1_4xb12-80k_cityscapes-512x1024',
    'swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512',
    'twins/twins_svt-s_uperhead_8xb2-160k_ade20k-512x512',
    'twins/twins_pcpvt-s_fpn_fpnhead_8xb4-80k_ade20k-512x512',
    'unet/unet-s5-d16_fcn_4xb4-40k_drive-64x64',
    'unet/unet-s5-d16_fcn_4xb4-ce-1.0-dice-3.0-40k_drive-64x64',
    'unet/unet-s5-d16_fcn_4xb4-160k_hsidrive-192x384',
    'upernet/upernet_r18_4xb4-80k_ade20k-512x512',
    'vit/vit_deit-s16_mln_upernet_8xb2-160k_ade20k-512x512',
    'vpd/vpd_sd_4xb8-25k_nyu-512x512',
)
# Sides of the images of families that need more than SIZE.
SIZES = {
    'icnet': 128,
    'ddrnet': 128,
    'pidnet': 128,
    'fastscnn': 128,
    'mobilenet_v3': 400
}
# Fields of configs by the beginning of their names: large backbones become
# shorter, and one config says None where both stacks want a bool.
CHANGES = {
    'beit/': {
        'model.backbone.num_layers': 4,
        'model.backbone.out_indices': (0, 1, 2, 3)
    },
    'dpt/': {
        'model.backbone.num_layers': 4,
        'model.backbone.out_indices': (0, 1, 2, 3)
    },
    'mae/': {
        'model.backbone.num_layers': 4,
        'model.backbone.out_indices': (0, 1, 2, 3)
    },
    'san/': {
        'model.text_encoder.num_layers': 1,
        'model.text_encoder.templates': ['{}']
    },
    'setr/': {
        'model.backbone.num_layers': 4,
        'model.backbone.out_indices': (0, 1, 2, 3)
    },
    'unet/unet-s5-d16_fcn_4xb4-160k_hsidrive': {
        'model.data_preprocessor.bgr_to_rgb': False
    },
    'vpd/': {
        'model.backbone':
        dict(_delete_=True, type='ResNet', depth=50, norm_cfg=dict(type='BN')),
        'model.decode_head.in_channels': [256, 512, 1024, 2048]
    },
}
# What the table says of configs with another network than their own.
NOTES = {
    'vpd/': ('a ResNet in place of its backbone, which needs the package '
             '`ldm` and downloaded weights'),
}

BEST_FIRST = ('prunes', 'score only', 'clear error', 'cannot run here',
              'WRONG')


def stack():
    """The stack of this environment and the version of its mmseg."""
    for name, package in (('OneDL', 'onedl-mmsegmentation'),
                          ('OpenMMLab', 'mmsegmentation')):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f'{name} {metadata.version(package)}'
    sys.exit('MMSegmentation is not installed in this environment.')


def shrink(cfg, size):
    """Make the config of a model one for small images and no downloads.

    Only fields change: the image size, the number of sampled points, and the
    thresholds of hard pixels, which would select all of so few.

    Args:
        cfg (dict or list): Part of a config, changed in place.
        size (int): Side of the images.
    """
    if isinstance(cfg, (list, tuple)):
        for value in cfg:
            shrink(value, size)
    if not isinstance(cfg, dict):
        return
    if cfg.get('type') == 'SyncBN':
        cfg['type'] = 'BN'
    for key, value in cfg.items():
        if key == 'pretrained' or (key == 'init_cfg'
                                   and 'Pretrained' in str(value)):
            cfg[key] = None
        elif key in ('img_size', 'crop_size', 'size', 'pad_shape') and value:
            cfg[key] = (size, size)
        elif key == 'size_divisor':
            cfg[key] = None
        elif key == 'num_points':
            cfg[key] = min(value, 64)
        elif key == 'min_kept':
            # The sampler of pixels multiplies it by the images.
            cfg[key] = size**2 // 6
        elif key in ('thres', 'thresh') and value is not None:
            cfg[key] = 1e-3
        else:
            shrink(value, size)


def narrow(cfg):
    """Give a network and its heads a quarter of the channels.

    Args:
        cfg (dict or list): Part of a config, changed in place.
    """
    if isinstance(cfg, (list, tuple)):
        for value in cfg:
            narrow(value)
    if not isinstance(cfg, dict):
        return
    for key, value in cfg.items():
        if 'channels' not in key:
            narrow(value)
        elif isinstance(value, int):
            cfg[key] = value // 4 if value >= 64 else value
        elif isinstance(value, (list, tuple)):
            cfg[key] = type(value)(v // 4 if v >= 64 else v for v in value)


def make_batch(size, num_classes, ignore_index, in_channels):
    """Two images of unlike classes, contents and ignored pixels.

    Args:
        size (int): Side of the images.
        num_classes (int): Number of classes.
        ignore_index (int): Label of ignored pixels.
        in_channels (int): Channels of an image.

    Returns:
        dict: What a data loader would return.
    """
    import torch
    import torch.nn.functional as F
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    generator = torch.Generator().manual_seed(0)

    def blocks(*shape):
        coarse = torch.rand(1, *shape, 8, 8, generator=generator)
        return F.interpolate(coarse, (size, size))[0]

    inputs, samples = [], []
    for i in range(len(WEIGHTS)):
        noise = torch.rand(in_channels, size, size, generator=generator)
        inputs.append(180 * blocks(in_channels) + 75 * noise)
        classes = min(3 + 2 * i, num_classes)
        label = (blocks(1) * classes).long() + (num_classes - classes) * i
        label[:, :size // 8 * (1 + 2 * i), :size // 2] = ignore_index
        depth = 5 * blocks(1) + noise[:1] - 0.5
        samples.append(
            SegDataSample(
                metainfo=dict(
                    img_shape=(size, size),
                    ori_shape=(size, size),
                    pad_shape=(size, size),
                    batch_input_shape=(size, size),
                    category_id=i),
                gt_sem_seg=PixelData(data=label),
                gt_edge_map=PixelData(data=(blocks(1) > 0.8).long()),
                gt_depth_map=PixelData(data=depth.clamp(min=0))))
    return dict(inputs=inputs, data_samples=samples)


def heads_of(model):
    """All heads of a segmentor, in order."""
    heads = []
    for part in ('decode_head', 'auxiliary_head'):
        head = getattr(model, part, None)
        if head is not None:
            is_list = type(head).__name__ == 'ModuleList'
            heads += head if is_list else [head]
    return heads


def losses_of(head):
    """Names and modules of the losses of a head, found by where their
    classes are defined."""
    return [(name, module) for name, module in head.named_modules()
            if '.models.losses.' in type(module).__module__]


def describe(model):
    """Heads and losses in a few words."""
    texts = []
    for head in heads_of(model):
        losses = []
        for _, loss in losses_of(head):
            extras = [
                text for key, text in (('use_sigmoid', 'sigmoid'),
                                       ('class_weight', 'class weights'),
                                       ('avg_non_ignore', 'avg_non_ignore'))
                if getattr(loss, key, None)
            ]
            losses.append(
                type(loss).__name__ +
                (f' ({", ".join(extras)})' if extras else ''))
        text = f'{type(head).__name__}: {", ".join(losses)}'
        sampler = getattr(head, 'sampler', None)
        if type(sampler).__name__ == 'OHEMPixelSampler':
            text += (', OHEM by loss'
                     if sampler.thresh is None else ', OHEM by probability')
        texts.append(text)
    return [
        text + (f' (x{count})' if count > 1 else '')
        for text, count in ((text, len(list(group)))
                            for text, group in itertools.groupby(texts))
    ]


class ByHand:
    """Mixes the loss of the images in a stock model, with hooks on its
    losses. It knows nothing of mmib.

    What a call returns is taken apart into the share of each image:

    - A loss that is a sum over pixels, images, queries or masks with a fixed
      divisor is called with ``reduction_override='sum'`` on the rows of one
      image after the other. The divisor is the sum of these over what stock
      returned. Queries and masks belong to images in order, masks by the
      number of classes in the labels of each image.
    - ``OhemCrossEntropy`` and ``BoundaryLoss`` choose or balance the pixels
      of the whole batch. Given this, each pixel counts for its image.

    In each call the shares must add up to stock's value, and their gradients
    to stock's gradient.

    Args:
        model (nn.Module): A segmentor.
        weights (Sequence[float]): Weight of each image.
    """

    SUMS = ('CrossEntropyLoss', 'DiceLoss', 'FocalLoss', 'SiLogLoss')
    SELECTIONS = dict(
        OhemCrossEntropy='_hard_pixels', BoundaryLoss='_balanced_pixels')
    MASK_HEADS = ('MaskFormerHead', 'Mask2FormerHead', 'SideAdapterCLIPHead')

    def __init__(self, model, weights):
        self.weights = weights
        self.masks = None
        """Classes in the labels of each image, without ignored ones."""
        self.unknown = set()
        """Classes of losses without a formula here."""
        self.handles = []
        for head in heads_of(model):
            of_masks = type(head).__name__ in self.MASK_HEADS
            for name, loss in losses_of(head):
                name += getattr(loss, 'loss_name', '')
                masks = of_masks and 'cls' not in name
                self.handles.append(
                    loss.register_forward_hook(
                        self._hook(masks), with_kwargs=True))

    def begin(self, data):
        """Look at the labels of a batch.

        Args:
            data (dict): What the data preprocessor returned.
        """
        self.masks = [
            len(set(sample.gt_sem_seg.data.unique().tolist()) - {255})
            for sample in data['data_samples']
        ]

    def remove(self):
        """Give the model back as it was."""
        for handle in self.handles:
            handle.remove()

    def _hook(self, masks):

        def hook(loss, args, kwargs, output):
            # A pixel sampler asks for the loss of the pixels.
            if kwargs.get('reduction_override') == 'none':
                return None
            name = type(loss).__name__
            if name not in self.SUMS and name not in self.SELECTIONS:
                self.unknown.add(name)
                return None
            shares = self._shares(loss, masks, args, kwargs, output)
            self._check(loss, masks, args, kwargs, output, sum(shares))
            return sum(w * share for w, share in zip(self.weights, shares))

        return hook

    def _check(self, loss, masks, args, kwargs, output, total):
        import torch
        torch.testing.assert_close(total, output, rtol=1e-5, atol=1e-7)
        pred = args[0].detach().requires_grad_()
        args = (pred, *args[1:])
        stock = loss.forward(*args, **kwargs)
        if not stock.requires_grad:  # no pixel was chosen
            return
        shares = self._shares(loss, masks, args, kwargs, stock)
        expected, = torch.autograd.grad(stock.sum(), pred)
        got, = torch.autograd.grad(sum(shares).sum(), pred)
        torch.testing.assert_close(
            got, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))

    def _shares(self, loss, masks, args, kwargs, output):
        """What each image adds to the value of a call."""
        if type(loss).__name__ in self.SELECTIONS:
            return getattr(self, self.SELECTIONS[type(loss).__name__])(loss,
                                                                       *args)
        rows = len(args[0])
        counts = self.masks if masks else [1] * len(self.weights)
        starts = [
            rows * sum(counts[:i]) // sum(counts)
            for i in range(len(counts) + 1)
        ]
        sums = []
        for start, stop in zip(starts, starts[1:]):

            def part(value):
                shape = getattr(value, 'shape', ())
                return value[start:stop] if shape[:1] == (rows, ) else value

            alone = {key: part(value) for key, value in kwargs.items()}
            alone.update(reduction_override='sum', avg_factor=None)
            sums.append(loss.forward(*map(part, args), **alone))
        if not output.any():
            return sums
        divisor = (sum(sums) / output).detach()
        return [value / divisor for value in sums]

    def _hard_pixels(self, loss, pred, target):
        import torch
        import torch.nn.functional as F
        valid = target != loss.ignore_label
        class_weight = loss.class_weight
        if class_weight is not None:
            class_weight = pred.new_tensor(class_weight)
        pixels = F.cross_entropy(
            pred,
            target,
            class_weight,
            ignore_index=loss.ignore_label,
            reduction='none')
        prob = pred.detach().softmax(1)
        prob = prob.gather(1, torch.where(valid, target, 0)[:, None])[:, 0]
        number = min(loss.min_kept + 1, int(valid.sum()))
        if number == 0:
            return [pixels[i].sum() * 0 for i in range(len(pred))]
        threshold = max(
            float(prob[valid].kthvalue(number).values), loss.thresh)
        hard = valid & (prob < threshold)
        return [
            loss.loss_weight * pixels[i][hard[i]].sum() / hard.sum()
            for i in range(len(pred))
        ]

    def _balanced_pixels(self, loss, pred, target):
        import torch
        import torch.nn.functional as F
        edge, other = target == 1, target == 0
        balance = torch.zeros_like(pred[:, 0])
        share = edge.sum() / (edge.sum() + other.sum())
        balance[edge], balance[other] = 1 - share, share
        pixels = balance * F.binary_cross_entropy_with_logits(
            pred[:, 0], target.float(), reduction='none')
        return [
            loss.loss_weight * pixels[i].sum() / pixels.numel()
            for i in range(len(pred))
        ]


class Step(NamedTuple):
    """What a training step gives.

    Args:
        start (list[Tensor]): Parameters and buffers before it.
        loss (float): The loss.
        gradients (dict[str, Tensor]): By the name of their parameter.
    """

    start: list
    loss: float
    gradients: dict


class Trainer:
    """Trains a model from the same start with the same random numbers.

    Args:
        model (nn.Module): A segmentor.
        batch (dict): What a data loader would return.
    """

    def __init__(self, model, batch):
        self.model = model
        self.batch = batch
        self.start = self._copy()

    def steps(self, before=lambda data: None, follow=()):
        """Train, and yield what each step gives.

        Args:
            before (Callable): Called with the data before each step.
            follow (Sequence[Step]): Steps of another training. Each step
                starts with the parameters and buffers of its step there.

        Yields:
            Step: The loss and the gradients.
        """
        import torch
        self._load(self.start)
        optimizer = torch.optim.SGD(
            [p for p in self.model.parameters() if p.requires_grad], lr=1e-3)
        self.model.train()
        for number in range(STEPS):
            start = self.start
            if follow:
                self._load(follow[number].start)
            elif number:
                start = self._copy()
            data = dict(
                inputs=[image.clone() for image in self.batch['inputs']],
                data_samples=[
                    sample.clone() for sample in self.batch['data_samples']
                ])
            data = self.model.data_preprocessor(data, training=True)
            data['inputs'] = data['inputs'].to(self.start[0].dtype)
            before(data)
            # Random points and dropout must be those of the other runs.
            torch.manual_seed(number)
            losses = self.model(**data, mode='loss')
            loss, _ = self.model.parse_losses(losses)
            optimizer.zero_grad()
            loss.backward()
            gradients = {
                name: parameter.grad.clone()
                for name, parameter in self.model.named_parameters()
                if parameter.grad is not None
            }
            yield Step(start, loss.item(), gradients)
            optimizer.step()

    def _tensors(self):
        # Not once for all: EMAHead replaces its buffer in each step.
        return itertools.chain(self.model.parameters(), self.model.buffers())

    def _copy(self):
        return [tensor.detach().clone() for tensor in self._tensors()]

    def _load(self, start):
        import torch
        with torch.no_grad():
            for tensor, value in zip(self._tensors(), start):
                tensor.copy_(value)


def compare(steps, expected):
    """Largest differences of a training from the expected one.

    Args:
        steps (iterable): Of :meth:`Trainer.steps`.
        expected (Sequence): The same of another training.

    Returns:
        dict: ``loss``, relative to the loss, and ``gradient`` of a parameter,
        relative to its largest element.
    """
    worst = dict(loss=0., gradient=0., parameter='')
    for step, expected_step in zip(steps, expected):
        _, loss, gradients = step
        _, loss_2, gradients_2 = expected_step
        worst['loss'] = max(worst['loss'], abs(loss - loss_2) / abs(loss_2))
        if gradients.keys() != gradients_2.keys():
            worst.update(
                gradient=float('inf'),
                parameter=str(gradients.keys() ^ gradients_2.keys())[:200])
            continue
        scales = {k: float(v.abs().max()) for k, v in gradients_2.items()}
        floor = max(scales.values()) / 1000
        for name, gradient in gradients.items():
            error = float((gradient - gradients_2[name]).abs().max())
            error /= max(scales[name], floor)
            if not error <= worst['gradient']:
                worst.update(gradient=error, parameter=name)
    return worst


def holds(difference):
    """Whether a difference is one of rounding."""
    return (difference['loss'] <= LOSS_TOLERANCE
            and difference['gradient'] <= GRADIENT_TOLERANCE)


def read_model(path):
    """The config of a small model.

    Args:
        path (str): Name in :data:`CONFIGS`.

    Returns:
        tuple: Config of the model, and side of its images.
    """
    from mmengine.config import Config
    folder = osp.join(
        osp.dirname(util.find_spec('mmseg').origin), '.mim', 'configs')
    cfg = Config.fromfile(osp.join(folder, path + '.py'))
    for start, changes in CHANGES.items():
        if path.startswith(start):
            cfg.merge_from_dict(changes)
    size = SIZES.get(path.split('/')[0], SIZE)
    shrink(cfg.model, size)
    cfg.model.data_preprocessor.update(size=(size, size), size_divisor=None)
    backbone, head = cfg.model.get('backbone', {}), cfg.model.decode_head
    if (backbone.get('type') in ('ResNet', 'ResNetV1c', 'ResNeSt', 'UNet')
            and 'FormerHead' not in str(head)):
        backbone.base_channels = 64
        if backbone.type != 'UNet':
            backbone.stem_channels = 64
        narrow(cfg.model)
    elif 'UPerHead' in str(head):
        head.channels = 128
    return cfg.model, size


def build(path, dtype):
    """Build the model of a config and a batch for it.

    Args:
        path (str): Name in :data:`CONFIGS`.
        dtype (torch.dtype): What the network computes in.

    Returns:
        Trainer: Trains it.
    """
    import torch
    from mmseg.registry import MODELS
    torch.manual_seed(0)
    cfg, size = read_model(path)
    model = MODELS.build(cfg)
    try:
        model.init_weights()
    except AttributeError:
        # SAN's head has no start of its own, it takes that of CLIP.
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02)
    for part in model.children():
        if part is not model.data_preprocessor:
            part.to(dtype)
    head = heads_of(model)[0]
    batch = make_batch(size, getattr(head, 'num_classes', 10),
                       getattr(head, 'ignore_index', 255),
                       cfg.get('backbone', {}).get('in_channels', 3))
    return Trainer(model, batch)


def check(path):
    """Run all checks of a config in this process.

    Args:
        path (str): Name in :data:`CONFIGS`.

    Returns:
        dict: What is known of the config.
    """
    import torch
    from mmseg.utils import register_all_modules
    register_all_modules(init_default_scope=True)
    torch.set_num_threads(1)
    line = check_in(torch.float32, path)
    if line['result'] == 'WRONG':
        precise = check_in(torch.float64, path)
        if precise['result'] != 'cannot run here':
            line = precise
    return line


def check_in(dtype, path):
    """Run all checks of a config with a network of one type.

    Args:
        dtype (torch.dtype): What the network computes in.
        path (str): Name in :data:`CONFIGS`.

    Returns:
        dict: What is known of the config.
    """
    import torch

    from mmib.heads import wrap_losses

    line = dict(dtype=str(dtype).split('.')[1])
    try:
        trainer = build(path, dtype)
        model = trainer.model
        line['heads'] = describe(model)
        stock = list(trainer.steps())
    except Exception as error:
        return failure(line, 'cannot run here', error)
    line['stock'] = [step.loss for step in stock]
    if not all(abs(loss) < float('inf') for loss in line['stock']):
        return dict(
            line, result='cannot run here', reason='its loss is not finite')

    by_hand = ByHand(model, WEIGHTS)
    mixed = list(trainer.steps(by_hand.begin))
    by_hand.remove()
    line['by_hand'] = [step.loss for step in mixed]

    try:
        losses = wrap_losses(model)
    except ValueError as error:
        return failure(line, 'clear error', error)
    scores = {}

    def steps(weights, follow):

        def before(data):
            for loss in losses:
                loss.weights = torch.tensor(weights)
                loss.scores = None

        for step in trainer.steps(before, follow):
            scores.setdefault(weights, []).append(
                sum((loss.scores
                     for loss in losses if loss.scores is not None),
                    torch.zeros(())))
            yield step

    ones = (1., ) * len(WEIGHTS)
    try:
        line['weight_1'] = compare(steps(ones, stock), stock)
        del stock
        line['weighted'] = compare(steps(WEIGHTS, mixed), mixed)
    except Exception as error:
        return failure(line, 'WRONG', error)
    line['scores'] = [step.tolist() for step in scores[ones]]

    wrong = []
    if not holds(line['weight_1']):
        wrong.append('with weight 1 it is not stock')
    if by_hand.unknown:
        line['reason'] = ('no weights by hand for ' +
                          ', '.join(sorted(by_hand.unknown)))
    elif not holds(line['weighted']):
        wrong.append('it is not what the weights by hand give')
    for step in scores[ones]:
        if step.shape != (len(WEIGHTS), ) or not step.isfinite().all():
            wrong.append('scores are not one finite number per image')
        elif step[0] == step[1]:
            wrong.append('the scores of two images are the same')
    if not torch.allclose(scores[ones][0], scores[WEIGHTS][0]):
        wrong.append('the scores of the first step depend on the weights')
    if wrong:
        return dict(line, result='WRONG', reason='; '.join(wrong))
    return dict(line, result='score only' if by_hand.unknown else 'prunes')


def failure(line, result, error):
    """Add an exception to what is known of a config."""
    if isinstance(error, ImportError):
        # What a failed `custom_imports` hides.
        while error.__context__ is not None:
            error = error.__context__
    text = ' '.join(str(error).split()) or 'without a message'
    if not isinstance(error, ValueError):
        text = f'{type(error).__name__}: {text}'
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = [f'{osp.basename(f.filename)}:{f.lineno}' for f in frames]
    return dict(line, result=result, reason=text[:500], where=where)


def check_and_send(path, connection, memory):
    """Body of a child process: check a config, and send the line."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    with open(os.devnull, 'w') as null:
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
    try:
        line = check(path)
    except Exception as error:
        line = failure({}, 'WRONG', error)
    line['peak_mib'] = resource.getrusage(
        resource.RUSAGE_SELF).ru_maxrss // 1024
    connection.send(line)


def check_in_process(path, timeout, memory):
    """Check a config in a process of its own.

    Args:
        path (str): Name in :data:`CONFIGS`.
        timeout (float): Seconds after which it is ended.
        memory (float): GiB that it may have.

    Returns:
        dict: The line of the config.
    """
    start = time.time()
    # What is imported here is there in each child.
    context = multiprocessing.get_context('fork')
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=check_and_send, args=(path, sender, int(memory * 2**30)))
    process.start()
    sender.close()
    try:
        if receiver.poll(timeout):
            line = receiver.recv()
        else:
            line = dict(
                result='cannot run here', reason=f'not done in {timeout} s')
    except EOFError:
        process.join()
        line = dict(
            result='cannot run here',
            reason=f'its process ended with {process.exitcode}')
    process.kill()
    process.join()
    line.update((('note', note) for name, note in NOTES.items()
                 if path.startswith(name)))
    return dict(
        family=path.split('/')[0],
        config=path,
        stack=stack(),
        seconds=round(time.time() - start, 1),
        **line)


def read_lines(path):
    """The lines of a file of results."""
    if not osp.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def table(lines):
    """The results as a Markdown table, one row for each config. Of several
    stacks it shows those with the best result.

    Args:
        lines (list[dict]): Results, also of several stacks.

    Returns:
        str: The table.
    """
    rows = [
        '| family | config | heads and losses | result | stack |',
        '|---|---|---|---|---|'
    ]
    counts = {}
    for path in sorted({line['config'] for line in lines}):
        group = [line for line in lines if line['config'] == path]
        best = min((line['result'] for line in group), key=BEST_FIRST.index)
        group = [line for line in group if line['result'] == best]
        counts[best] = counts.get(best, 0) + 1
        heads = max((line.get('heads', []) for line in group), key=len)
        note = group[0].get('reason') or group[0].get('note')
        rows.append(' | '.join([
            '| ' + path.split('/')[0], f'`{path.split("/")[1]}`',
            '; '.join(heads), best + (f': {note}' if note else ''),
            ', '.join(line['stack'].split()[0] for line in group) + ' |'
        ]))
    families = {line['family'] for line in lines}
    prune = {line['family'] for line in lines if line['result'] == 'prunes'}
    summary = ', '.join(f'{counts[r]} {r}' for r in BEST_FIRST if r in counts)
    return '\n'.join(rows + [
        '', f'{len(prune)} of {len(families)} families prune. '
        f'Configs: {summary}.'
    ])


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('family', nargs='*', help='families, default all')
    parser.add_argument(
        '--out',
        nargs='+',
        default=[OUT],
        metavar='FILE.jsonl',
        help=f'results, default {OUT}; several only with --markdown')
    parser.add_argument(
        '--markdown',
        action='store_true',
        help='run nothing, print the table of the results')
    parser.add_argument(
        '--timeout', type=float, default=300, help='seconds of a config')
    parser.add_argument(
        '--memory', type=float, default=10, help='GiB of a config')
    args = parser.parse_args(argv)
    families = {path.split('/')[0] for path in CONFIGS}
    unknown = set(args.family) - families
    if unknown:
        parser.error(f'no family {", ".join(sorted(unknown))}: known are '
                     f'{", ".join(sorted(families))}')

    if args.markdown:
        lines = sum(map(read_lines, args.out), [])
        print(
            table([
                line for line in lines
                if not args.family or line['family'] in args.family
            ]))
        return
    if len(args.out) > 1:
        parser.error('`--out` is one file where configs are run')
    out, = args.out
    os.makedirs(osp.dirname(osp.abspath(out)), exist_ok=True)
    done = {line['config'] for line in read_lines(out)}
    todo = [
        path for path in CONFIGS if path not in done and (
            not args.family or path.split('/')[0] in args.family)
    ]
    if todo:
        import_once()
    for path in todo:
        line = check_in_process(path, args.timeout, args.memory)
        with open(out, 'a') as file:
            file.write(json.dumps(line) + '\n')
        print(
            f'{line["result"]:16}{line["seconds"]:6.1f} s  {path}  '
            f'{line.get("reason", "")}',
            flush=True)


def import_once():
    """Import what all children need, before they are made."""
    os.environ['OMP_NUM_THREADS'] = '1'
    warnings.simplefilter('ignore')
    sys.path.insert(0, ROOT)
    # The stacks say much when they are imported.
    with contextlib.redirect_stdout(io.StringIO()), \
            contextlib.redirect_stderr(io.StringIO()):
        import mmseg.models  # noqa: F401

        import mmib  # noqa: F401


if __name__ == '__main__':
    main()
