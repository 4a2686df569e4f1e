# The full training of research/camvid: a small UperNet of half the width on
# CamVid at 160 x 120, 43.6 virtual epochs. It is made for comparisons: every
# random choice is made in the main process, so one thread gives the same bits
# again, and the moving average of the weights takes the noise of the last
# iterations out of the mIoU.
_base_ = [
    '../_base_/models/upernet_r18.py', '../_base_/datasets/camvid_72x96.py',
    __import__('mmseg').__path__[0] +
    '/.mim/configs/_base_/default_runtime.py',
    __import__('mmseg').__path__[0] +
    '/.mim/configs/_base_/schedules/schedule_20k.py'
]
model = dict(
    data_preprocessor=dict(size=(72, 96)),
    backbone=dict(base_channels=32, stem_channels=32),
    decode_head=dict(
        num_classes=11, in_channels=[32, 64, 128, 256], channels=32),
    auxiliary_head=dict(num_classes=11, in_channels=128, channels=32))
train_dataloader = dict(num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=0.1))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=100, by_epoch=False),
    dict(
        type='PolyLR',
        eta_min=0,
        power=0.9,
        begin=100,
        end=2000,
        by_epoch=False)
]
train_cfg = dict(max_iters=2000, val_interval=400)
default_hooks = dict(
    logger=dict(interval=100), checkpoint=dict(interval=-1, save_last=False))
custom_hooks = [
    dict(
        type='EMAHook',
        ema_type='ExponentialMovingAverage',
        momentum=0.01,
        update_buffers=True)
]
env_cfg = dict(mp_cfg=dict(opencv_num_threads=0))
