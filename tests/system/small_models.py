# Copyright (c) mmib contributors. All rights reserved.
"""How the models of MMSegmentation's configs become small."""
import os.path as osp

import mmseg
import torch.nn as nn
from mmengine.config import Config

# Side of the images, and of those of families that need more.
SIZE = 64
SIZES = dict(icnet=128, ddrnet=128, pidnet=128, fastscnn=128, mobilenet_v3=400)
FOUR_LAYERS = {
    'model.backbone.num_layers': 4,
    'model.backbone.out_indices': (0, 1, 2, 3)
}
# Fields of configs by the beginning of their names: large backbones become
# shorter, and one config says None where both stacks want a bool.
CHANGES = {
    'beit/': FOUR_LAYERS,
    'dpt/': FOUR_LAYERS,
    'mae/': FOUR_LAYERS,
    'ocrnet/ocrnet_hr18s': {
        f'model.backbone.extra.stage{stage}.num_modules': 1
        for stage in (3, 4)
    },
    'san/': {
        'model.text_encoder.num_layers': 1,
        'model.text_encoder.templates': ['{}']
    },
    'setr/': FOUR_LAYERS,
    'unet/unet-s5-d16_fcn_4xb4-160k_hsidrive': {
        'model.data_preprocessor.bgr_to_rgb': False
    },
    'vpd/': {
        'model.backbone': dict(
            _delete_=True, type='ResNet', depth=50, norm_cfg=dict(type='BN')),
        'model.decode_head.in_channels': [256, 512, 1024, 2048]
    },
}


def read_model(path):
    """Read a config of MMSegmentation, a name without ``.py``: the config of
    a small model, and the side of its images."""
    cfg = Config.fromfile(
        osp.join(mmseg.__path__[0], '.mim', 'configs', path + '.py'))
    for start, changes in CHANGES.items():
        if path.startswith(start):
            cfg.merge_from_dict(changes)
    model = cfg.model
    size = SIZES.get(path.split('/')[0], SIZE)
    shrink(model, size)
    model.data_preprocessor.update(size=(size, size), size_divisor=None)
    backbone, head = model.get('backbone', {}), str(model.decode_head)
    if (backbone.get('type') in ('ResNet', 'ResNetV1c', 'ResNeSt', 'UNet')
            and 'FormerHead' not in head):
        narrow(model)
        backbone.base_channels = 16
        if backbone.type != 'UNet':
            backbone.stem_channels = 16
    elif 'UPerHead' in head:
        model.decode_head.channels = 128
    return model, size


def shrink(cfg, size):
    """Make the config of a model one for small images and no downloads.

    Only fields change: the image size, the number of sampled points, and the
    thresholds of hard pixels, which would select all of so few.
    """
    for part in dicts_in(cfg):
        for key, value in part.items():
            if value == 'SyncBN':
                part[key] = 'BN'
            elif key == 'pretrained' or (key == 'init_cfg'
                                         and 'Pretrained' in str(value)):
                part[key] = None
            elif key in ('img_size', 'crop_size', 'size') and value:
                part[key] = (size, size)
            elif key == 'num_points':
                part[key] = min(value, 64)
            elif key == 'min_kept':
                # The sampler of pixels multiplies it by the images.
                part[key] = size**2 // 6
            elif key in ('thres', 'thresh') and value is not None:
                part[key] = 1e-3


def narrow(cfg):
    """Give a network and its heads a quarter of the channels."""

    def quarter(channels):
        return channels // 4 if channels >= 64 else channels

    for part in dicts_in(cfg):
        for key, value in part.items():
            if 'channels' in key and isinstance(value, int):
                part[key] = quarter(value)
            elif 'channels' in key and isinstance(value, (list, tuple)):
                part[key] = type(value)(map(quarter, value))


def dicts_in(cfg):
    """All dicts in a config, those that hold others first."""
    if isinstance(cfg, dict):
        yield cfg
        cfg = list(cfg.values())
    if isinstance(cfg, (list, tuple)):
        for value in cfg:
            yield from dicts_in(value)


def heads_of(model):
    """All heads of a segmentor, in order."""
    heads = []
    for part in ('decode_head', 'auxiliary_head'):
        head = getattr(model, part, None)
        heads += head if isinstance(head, nn.ModuleList) else [head]
    return [head for head in heads if head is not None]


def names_of(model):
    """Of the classes of heads and losses, which are found by where these are
    defined."""
    heads = heads_of(model)
    losses = (
        module for head in heads for module in head.modules()
        if '.models.losses.' in type(module).__module__)
    return {type(module).__name__ for module in (*heads, *losses)}
