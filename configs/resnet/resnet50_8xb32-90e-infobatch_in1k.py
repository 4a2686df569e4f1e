# InfoBatch on ImageNet: 60 % of the iterations of 90 epochs, as many epochs as
# in the paper. The last step of the learning rate is ten epochs before the
# end, as in MMPretrain's 100 epochs.
_base_ = __import__(
    'mmpretrain').__path__[0] + '/.mim/configs/resnet/resnet50_8xb32_in1k.py'
custom_imports = dict(imports=['mmib'], allow_failed_imports=False)
train_dataloader = dict(sampler=dict(type='InfoBatchSampler'))
custom_hooks = [
    dict(
        type='InfoBatchHook',
        policy=dict(type='Neyman', ratio=0.6),
        delta=0.85)
]
train_cfg = dict(max_epochs=90)
param_scheduler = dict(milestones=[30, 60, 80])
