# A small diffusion model on 2,000 images of CIFAR-10, for a CPU: 16 passes.
# Nothing here knows of pruning: `mmib train --infobatch` adds it.
custom_imports = dict(
    imports=['examples.diffusion.model', 'examples.diffusion.data'],
    allow_failed_imports=False)
model = dict(
    type='DDPM',
    unet=dict(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32, 64),
        down_block_types=('DownBlock2D', 'DownBlock2D', 'AttnDownBlock2D'),
        up_block_types=('AttnUpBlock2D', 'UpBlock2D', 'UpBlock2D'),
        attention_head_dim=16,
        norm_num_groups=8),
    schedule=dict(beta_schedule='squaredcos_cap_v2'),
    normalize_score=True)
train_dataloader = dict(
    batch_size=32,
    num_workers=0,
    dataset=dict(
        type='ImageFolder',
        data_root='data/cifar10/train',
        size=32,
        indices=2000),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    collate_fn=dict(type='default_collate'))
max_iters = 1000
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='Adam', lr=0.001))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, end=50, by_epoch=False),
    dict(
        type='CosineAnnealingLR',
        eta_min=0,
        begin=50,
        end=max_iters,
        T_max=max_iters - 50,
        by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=max_iters))
log_processor = dict(by_epoch=False)
# Timesteps and noise follow from it.
randomness = dict(seed=0)
