# The small ResNet of benchmarks/cifar10, with the policy of this study.
_base_ = '../../benchmarks/cifar10/resnet-w16_1xb128-1875_cifar10.py'
custom_imports = dict(imports=[
    'mmpretrain.models', 'benchmarks.cifar10.data',
    'research.hard_selection.tempered'
])
fast_backbone = dict(bfloat16=True)
