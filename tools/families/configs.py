# Copyright (c) mmib contributors. All rights reserved.
"""Which configs are checked, and how their models become small."""
import os.path as osp
from importlib import util

from mmengine.config import Config

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
    'san/': {
        'model.text_encoder.num_layers': 1,
        'model.text_encoder.templates': ['{}']
    },
    'setr/': FOUR_LAYERS,
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


def read_model(path):
    """The config of a small model.

    Args:
        path (str): Name in :data:`CONFIGS`.

    Returns:
        tuple: Config of the model, and side of its images.
    """
    # Without importing the stack, which the list of names doesn't need.
    mmseg = osp.dirname(util.find_spec('mmseg').origin)
    cfg = Config.fromfile(osp.join(mmseg, '.mim', 'configs', path + '.py'))
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

    Args:
        cfg (dict): Config of a model, changed in place.
        size (int): Side of the images.
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
    """Give a network and its heads a quarter of the channels.

    Args:
        cfg (dict): Config of a model, changed in place.
    """

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
