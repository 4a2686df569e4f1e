# The same training of a small network without residual connections.
_base_ = 'resnet.py'
custom_imports = dict(imports=[
    'mmpretrain.models', 'benchmarks.cifar10.data',
    'research.hard_selection.tempered', 'research.hard_selection.networks'
])
model = dict(backbone=dict(_delete_=True, type='PlainCNN'))
