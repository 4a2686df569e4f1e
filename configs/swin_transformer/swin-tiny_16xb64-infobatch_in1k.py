# InfoBatch on ImageNet with MixUp and CutMix: 60 % of the iterations of 300
# epochs. Each image is mixed with the one at the other end of the batch, so
# that both can be weighted.
_base_ = __import__('mmpretrain').__path__[
    0] + '/.mim/configs/swin_transformer/swin-tiny_16xb64_in1k.py'
custom_imports = dict(
    imports=['mmib', 'mmib.openmmlab.tasks.classification'],
    allow_failed_imports=False)
train_dataloader = dict(sampler=dict(type='InfoBatchSampler'))
custom_hooks = [
    dict(
        type='InfoBatchHook',
        policy=dict(type='Neyman', ratio=0.6),
        delta=0.85)
]
model = dict(
    train_cfg=dict(augments=[
        dict(type='PairedMixup', alpha=0.8),
        dict(type='PairedCutMix', alpha=1.0)
    ]))
