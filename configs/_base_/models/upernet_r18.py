# A small UperNet that trains from scratch on one CPU or GPU.
_base_ = __import__(
    'mmseg').__path__[0] + '/.mim/configs/_base_/models/upernet_r50.py'
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    pretrained=None,
    backbone=dict(depth=18, norm_cfg=norm_cfg),
    decode_head=dict(
        in_channels=[64, 128, 256, 512], channels=64, norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=256, channels=64, norm_cfg=norm_cfg))
