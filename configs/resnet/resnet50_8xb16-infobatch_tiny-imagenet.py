# InfoBatch on Tiny-ImageNet: 60 % of the iterations of 200 epochs. MMPretrain
# has no config for it: network and schedule are those of CIFAR-100. Make the
# list of the validation labels in bash:
#   cd data/tiny-imagenet-200
#   awk 'NR==FNR {label[$1] = NR - 1; next} {print $1, label[$2]}' \
#       <(ls train | LC_ALL=C sort) val/val_annotations.txt > val.txt
_base_ = __import__('mmpretrain').__path__[
    0] + '/.mim/configs/resnet/resnet50_8xb16_cifar100.py'
custom_imports = dict(imports=['mmib'], allow_failed_imports=False)
train_dataloader = dict(
    sampler=dict(type='InfoBatchSampler'),
    dataset=dict(
        _delete_=True,
        type='CustomDataset',
        data_root='data/tiny-imagenet-200',
        data_prefix='train',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='RandomCrop', crop_size=64, padding=8),
            dict(type='RandomFlip', prob=0.5, direction='horizontal'),
            dict(type='PackInputs')
        ]))
custom_hooks = [
    dict(
        type='InfoBatchHook',
        policy=dict(type='Neyman', ratio=0.6),
        delta=0.85)
]
model = dict(head=dict(num_classes=200))
data_preprocessor = dict(
    num_classes=200,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True)
val_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='CustomDataset',
        data_root='data/tiny-imagenet-200',
        ann_file='val.txt',
        data_prefix='val/images',
        pipeline=[dict(type='LoadImageFromFile'),
                  dict(type='PackInputs')]))
test_dataloader = val_dataloader
