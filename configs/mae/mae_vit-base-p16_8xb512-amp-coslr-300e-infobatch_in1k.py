# InfoBatch with MAE on ImageNet: 60 % of the iterations of 300 epochs. What is
# masked is drawn anew at each visit of an image, so scores are averages over
# visits.
_base_ = __import__('mmpretrain').__path__[
    0] + '/.mim/configs/mae/mae_vit-base-p16_8xb512-amp-coslr-300e_in1k.py'
custom_imports = dict(imports=['mmib'], allow_failed_imports=False)
train_dataloader = dict(sampler=dict(type='InfoBatchSampler'))
custom_hooks = [
    dict(
        type='InfoBatchHook',
        policy=dict(type='Neyman', ratio=0.6),
        delta=0.85,
        ema=0.8)
]
