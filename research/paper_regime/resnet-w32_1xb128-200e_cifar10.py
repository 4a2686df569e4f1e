# A ResNet of width 32 on all 50,000 training images of CIFAR-10: 200 epochs.
_base_ = '../../benchmarks/cifar10/resnet-w16_1xb128-1875_cifar10.py'
model = dict(
    backbone=dict(stem_channels=32, base_channels=32),
    head=dict(in_channels=128))
train_dataloader = dict(
    dataset=dict(split='train+held_out', device='cuda'),
    sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True))
# On a CPU: --cfg-options optim_wrapper.type=OptimWrapper
# train_dataloader.dataset.device=cpu
optim_wrapper = dict(type='AmpOptimWrapper', optimizer=dict(lr=0.1))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=5),
    dict(type='CosineAnnealingLR', eta_min=0, T_max=195, begin=5, end=200)
]
train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=200)
default_hooks = dict(
    _delete_=True,
    runtime_info=None,
    timer=None,
    logger=None,
    sampler_seed=dict(type='DistSamplerSeedHook'),
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=1))
