# InfoBatch on CIFAR-100: 60 % of the iterations of 200 epochs. The schedule is
# that of MMPretrain's ResNet-50, as it has no ResNet-18 there.
_base_ = __import__('mmpretrain').__path__[
    0] + '/.mim/configs/resnet/resnet50_8xb16_cifar100.py'
custom_imports = dict(imports=['mmib'], allow_failed_imports=False)
train_dataloader = dict(sampler=dict(type='InfoBatchSampler'))
custom_hooks = [
    dict(
        type='InfoBatchHook',
        policy=dict(type='Neyman', ratio=0.6),
        delta=0.85)
]
model = dict(backbone=dict(depth=18), head=dict(in_channels=512))
