# Copyright (c) mmib contributors. All rights reserved.
"""Each model that is trained without labels."""
import copy

import pytest
import torch
import torch.nn as nn
from torch.testing import assert_close

pytest.importorskip('mmpretrain.models', exc_type=ImportError)

from mmengine.registry import DefaultScope  # noqa: E402
from mmpretrain.models import selfsup  # noqa: E402
from mmpretrain.registry import MODELS  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402

from mmib.errors import Refusal  # noqa: E402
from mmib.openmmlab import tasks  # noqa: E402
from mmib.openmmlab.batch import BatchContext  # noqa: E402
from mmib.openmmlab.tasks import masked_images  # noqa: E402

from .contract import check_weights  # noqa: E402
from .contract import override, take_step, told_to_call  # noqa: E402
from .test_classification import small_classifier  # noqa: E402,F401

PIXELS = dict(type='PixelReconstructionLoss', criterion='L2')
COSINE = dict(type='CosineSimilarityLoss', shift_factor=2., scale_factor=2.)
TOKENS = dict(embed_dims=16, num_embed=8, loss=dict(type='CrossEntropyLoss'))
ARCH = dict(embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32)
SWIN = dict(
    arch=dict(embed_dims=8, depths=[1] * 4, num_heads=[1] * 4), img_size=64)
DECODER = dict(decoder_embed_dim=16, decoder_depth=1, decoder_num_heads=2)
MAE_DECODER = dict(
    DECODER,
    type='MAEPretrainDecoder',
    num_patches=16,
    patch_size=8,
    embed_dim=16)
MAE_HEAD = dict(
    type='MAEPretrainHead', norm_pix=True, patch_size=8, loss=PIXELS)
FEATURES = dict(
    type='NonLinearNeck', in_channels=8, hid_channels=8, out_channels=8)
TWO_VIEWS = dict(
    backbone=dict(type='OneConvClassifier', form='map'),
    neck=FEATURES,
    head=dict(
        type='LatentPredictHead',
        loss=dict(type='CosineSimilarityLoss'),
        predictor=dict(FEATURES, with_avg_pool=False, with_last_bn=False)))


@MODELS.register_module()
class RandomTarget(nn.Module):
    """In the place of another network: features of an image, and what it pays
    attention to."""

    def forward(self, x):
        generator = torch.Generator().manual_seed(0)
        return [
            torch.rand(len(x), 17, size, generator=generator)
            for size in (8, 17)
        ]


@MODELS.register_module()
class RandomTokens(nn.Module):
    """In the place of DALL-E or VQ-KD: scores or numbers of tokens."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape

    def forward(self, x):
        generator = torch.Generator().manual_seed(0)
        tokens = torch.rand(len(x), *self.shape, generator=generator)
        return tokens if len(self.shape) > 1 else (tokens * 8).long()


def vit(kind, **kwargs):
    return dict(
        dict(type=kind, arch=ARCH, img_size=32, patch_size=8), **kwargs)


def itpn(reconstruction_type, **neck):
    """iTPN without a head."""
    return dict(
        type='iTPN',
        backbone=dict(
            type='iTPNHiViT',
            arch=dict(embed_dims=32, depths=[1, 1, 2], num_heads=2),
            img_size=64,
            reconstruction_type=reconstruction_type),
        neck=dict(
            type='iTPNPretrainDecoder',
            num_patches=16,
            patch_size=16,
            embed_dim=32,
            fpn_dim=16,
            fpn_depth=1,
            reconstruction_type=reconstruction_type,
            **neck))


MODEL = {
    'BEiT v1': dict(
        type='BEiT',
        backbone=vit('BEiTPretrainViT', final_norm=True, out_type='raw'),
        head=dict(TOKENS, type='BEiTV1Head'),
        target_generator=dict(type='RandomTokens', shape=(8, 4, 4))),
    'BEiT v2': dict(
        type='BEiT',
        backbone=vit(
            'BEiTPretrainViT',
            final_norm=False,
            out_type='raw',
            out_indices=[0, 1],
            use_shared_rel_pos_bias=True),
        neck=dict(
            type='BEiTV2Neck',
            num_layers=1,
            early_layers=0,
            backbone_arch=dict(depth=2, **ARCH)),
        head=dict(TOKENS, type='BEiTV2Head'),
        target_generator=dict(type='RandomTokens', shape=(16, ))),
    'BYOL': dict(TWO_VIEWS, type='BYOL', base_momentum=0.01),
    'EVA': dict(
        type='EVA',
        backbone=vit('MAEViT'),
        neck=dict(MAE_DECODER, predict_feature_dim=8),
        head=dict(type='MIMHead', loss=COSINE),
        target_generator=dict(type='RandomTarget')),
    'MAE': dict(
        type='MAE', backbone=vit('MAEViT'), neck=MAE_DECODER, head=MAE_HEAD),
    'MaskFeat': dict(
        type='MaskFeat',
        backbone=vit('MaskFeatViT', img_size=112),
        neck=dict(
            type='LinearNeck', in_channels=16, out_channels=27, norm_cfg=None),
        head=dict(type='MIMHead', loss=PIXELS),
        target_generator=dict(
            type='HOGGenerator', nbins=9, pool=8, gaussian_window=16)),
    'MFF': dict(
        type='MFF',
        backbone=vit('MFFViT', out_indices=[0, 1]),
        neck=MAE_DECODER,
        head=MAE_HEAD),
    'MILAN': dict(
        type='MILAN',
        backbone=vit('MILANViT'),
        neck=dict(
            MAE_DECODER, type='MILANPretrainDecoder', predict_feature_dim=8),
        head=dict(type='MIMHead', loss=COSINE),
        target_generator=dict(type='RandomTarget')),
    'MixMIM': dict(
        type='MixMIM',
        backbone=dict(
            type='MixMIMPretrainTransformer',
            window_size=[2] * 4,
            drop_path_rate=0.,
            **SWIN),
        neck=dict(
            DECODER,
            type='MixMIMPretrainDecoder',
            num_patches=4,
            encoder_stride=32,
            embed_dim=64),
        head=dict(
            type='MixMIMPretrainHead',
            norm_pix=True,
            patch_size=32,
            loss=PIXELS)),
    'SimMIM': dict(
        type='SimMIM',
        backbone=dict(
            type='SimMIMSwinTransformer',
            stage_cfgs=dict(block_cfgs=dict(window_size=2)),
            **SWIN),
        neck=dict(
            type='SimMIMLinearDecoder', in_channels=64, encoder_stride=32),
        head=dict(
            type='SimMIMHead',
            patch_size=4,
            loss=dict(
                type='PixelReconstructionLoss', criterion='L1', channel=3))),
    'SimSiam': dict(TWO_VIEWS, type='SimSiam'),
    'SparK': dict(
        type='SparK',
        input_size=64,
        downsample_raito=32,
        mask_ratio=0.6,
        enc_dec_norm_cfg=dict(type='SparseBatchNorm2d'),
        enc_dec_norm_dim=2048,
        backbone=dict(type='SparseResNet', depth=50, out_indices=range(4)),
        neck=dict(
            type='SparKLightDecoder',
            feature_dim=32,
            upsample_ratio=32,
            mid_channels=0,
            last_act=False),
        head=dict(type='SparKPretrainHead', loss=PIXELS)),
    'iTPN': dict(itpn('pixel', **DECODER), head=dict(MAE_HEAD, patch_size=16)),
    'iTPN of CLIP': dict(
        itpn('clip', num_outs=3, decoder_embed_dim=32),
        head=dict(
            type='iTPNClipHead',
            embed_dims=32,
            num_embed=8,
            loss=dict(type='CosineSimilarityLoss')),
        target_generator=dict(type='RandomTarget')),
}
SIZE = dict(
    dict.fromkeys(['MixMIM', 'SimMIM', 'SparK', 'iTPN', 'iTPN of CLIP'], 64),
    MaskFeat=112)
MASK = dict(MaskFeat=14, SimMIM=16)
# They take the masks from the samples.
OF_SAMPLES = ('BEiT v1', 'BEiT v2', 'MaskFeat', 'SimMIM', 'iTPN of CLIP')
# What a model multiplies its losses by.
FACTOR = dict(BYOL=2, SimSiam=0.5)
VIEWS = ('BEiT v1', 'BEiT v2', 'BYOL', 'SimSiam', 'iTPN of CLIP')


def build(name):
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(copy.deepcopy(MODEL[name]))
    model.init_weights()
    return model.train()


def make_batch(name):
    """Inputs, and samples with masks of different sizes."""
    generator = torch.Generator().manual_seed(0)
    size, side = SIZE.get(name, 32), MASK.get(name, 4)
    inputs = [*3 * torch.rand(2, 2, 3, size, size, generator=generator)]
    masks = [
        torch.rand(side, side, generator=generator) < share
        for share in (0.3, 0.6)
    ]
    samples = [
        DataSample().set_mask(mask.float() if name == 'SimMIM' else mask)
        for mask in masks
    ]
    return inputs if name in VIEWS else inputs[0], samples


@pytest.mark.parametrize('name', MODEL)
def test_weights_of_images(name):
    inputs, samples = make_batch(name)
    known, parts = check_weights(lambda: build(name), inputs, samples,
                                 torch.tensor([1., 3.]))
    # A score is the mean over the masked patches of an image.
    masked = torch.ones(2)
    if name in OF_SAMPLES:
        masked = torch.stack([sample.mask.sum() for sample in samples])
    scale = FACTOR.get(name, 1) * masked / masked.sum()
    assert_close(known.scores, parts / scale, rtol=1e-5, atol=1e-6)
    assert known.norms.isfinite().all() and (known.norms > 0).all()
    assert tasks.attach(build(name), BatchContext()).ema == 0.8


@pytest.mark.parametrize('name, message', [
    *((name, 'compares images with each other')
      for name in ('BarlowTwins', 'DenseCL', 'MoCo', 'MoCoV3', 'SimCLR',
                   'SwAV')),
    ('CAE', 'CAE, which is `model`, .*masked_images.register_model'),
])
def test_models_that_are_refused(name, message):
    model = build('MAE')
    model.__class__ = type(name, (getattr(selfsup, name), ), {})
    with pytest.raises(Refusal, match=message):
        tasks.attach(model, BatchContext())


def test_what_users_are_told_to_call():
    model = build('MAE')
    override(model.head)
    assert told_to_call(model) is masked_images.register_head
    override(model)
    assert told_to_call(model) is masked_images.register_model


def test_an_image_without_a_masked_patch_has_score_zero():
    model, (inputs, samples) = build('SimMIM'), make_batch('SimMIM')
    samples[0].mask[:] = 0
    context = BatchContext()
    tasks.attach(model, context)
    context.set_weights(*[torch.tensor([2., 3.])] * 2)
    loss = take_step(model, inputs, samples).loss
    assert context.scores[0] == 0
    assert_close(loss, 3 * context.scores[1])
