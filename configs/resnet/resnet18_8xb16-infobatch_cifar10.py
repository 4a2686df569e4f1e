# InfoBatch on CIFAR-10: 60 % of the iterations of 200 epochs.
_base_ = __import__('mmpretrain').__path__[
    0] + '/.mim/configs/resnet/resnet18_8xb16_cifar10.py'
custom_imports = dict(imports=['mmib'], allow_failed_imports=False)
train_dataloader = dict(sampler=dict(type='InfoBatchSampler'))
custom_hooks = [
    dict(
        type='InfoBatchHook',
        policy=dict(type='Neyman', ratio=0.6),
        delta=0.85)
]
