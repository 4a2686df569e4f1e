# A small UperNet of half the width on Oxford-IIIT Pet at 128 x 128, 20 passes
# over 3,680 images.
_base_ = [
    '../_base_/models/upernet_r18.py', '../_base_/datasets/pet_96x96.py',
    __import__('mmseg').__path__[0] +
    '/.mim/configs/_base_/default_runtime.py',
    __import__('mmseg').__path__[0] +
    '/.mim/configs/_base_/schedules/schedule_20k.py'
]
model = dict(
    data_preprocessor=dict(size=(96, 96)),
    backbone=dict(base_channels=32, stem_channels=32),
    decode_head=dict(
        num_classes=3, in_channels=[32, 64, 128, 256], channels=32),
    auxiliary_head=dict(num_classes=3, in_channels=128, channels=32))
optim_wrapper = dict(optimizer=dict(lr=0.1))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=100, by_epoch=False),
    dict(
        type='PolyLR',
        eta_min=0,
        power=0.9,
        begin=100,
        end=4600,
        by_epoch=False)
]
train_cfg = dict(max_iters=4600, val_interval=920)
default_hooks = dict(logger=dict(interval=100), checkpoint=dict(interval=920))
custom_hooks = [
    dict(
        type='EMAHook',
        ema_type='ExponentialMovingAverage',
        momentum=0.01,
        update_buffers=True)
]
