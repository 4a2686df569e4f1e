# The pretrained training on CamVid, with the policy of this study.
_base_ = '../../benchmarks/camvid/' \
    'upernet_efficientnet-lite0_1xb8-1k_camvid-72x96.py'
custom_imports = dict(imports=[
    'benchmarks.camvid.efficientnet_lite', 'research.hard_selection.tempered'
])
fast_backbone = dict(bfloat16=False)
