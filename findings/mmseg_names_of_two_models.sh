#!/usr/bin/env bash
# Nine names of MMSegmentation's model zoo stand for two models each, and a
# lookup by name finds the first.
#
# Version: onedl-mmsegmentation 1.4.2 and onedl-mmengine 0.10.12. The metafiles
# of mmsegmentation 1.2.2 have the same nine names.
#
# The metafiles name each published model after its config. Nine names stand
# there twice, with other weights and another mIoU. MMEngine's inferencer looks
# a name up in this list and takes the first entry, without a word on the
# second. For DeepLabV3+ with R-101 after 160,000 iterations this is the model
# that was trained for 80,000, 0.87 points lower, and for PSPNet with R-50b the
# model with R-50. Of the other seven names the second model can't be reached:
# FastFCN with a batch of 4 images (three names), Twins SVT-L, BiSeNetV1 with
# R-101, and OCRNet after 160,000 iterations (two names). Twelve models of
# OCRNet have a comment of their page, "# HRNet backbone" or "# ResNet
# backbone", as their dataset.
#
# Who compares published figures by name, or loads published weights by name,
# should look at the file name of the weights.
#
# Output seen:
#
#     626 models, of which 9 names stand for two
#     deeplabv3plus_r101-d8_4xb4-160k_ade20k-512x512:
#         44.6 deeplabv3plus_r101-d8_512x512_80k_ade20k
#         45.47 deeplabv3plus_r101-d8_512x512_160k_ade20k
#     12 models have a comment as their dataset
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0 onedl-mmengine==0.10.12 opencv-python-headless==4.13.0.92
"$folder/venv/bin/python" -m pip install -q --no-deps onedl-mmsegmentation==1.4.2
cat > "$folder/finding.py" <<'END'
import warnings
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

warnings.simplefilter('ignore')

from mmengine.infer import BaseInferencer  # noqa: E402

# Found without an import, which would need mmcv.
folder = find_spec('mmseg').submodule_search_locations[0] + '/.mim'
# As an inferencer looks a name up.
models = list(BaseInferencer._get_models_from_metafile(folder))
by_name = defaultdict(list)
for model in models:
    by_name[model['Name']].append(model)
twice = {
    name: found
    for name, found in by_name.items()
    if len({model['Weights'] for model in found}) > 1
}
print(f'{len(models)} models, of which {len(twice)} names stand for two')
name = 'deeplabv3plus_r101-d8_4xb4-160k_ade20k-512x512'
print(f'{name}:')
figures = []
for model in twice[name]:
    weights = Path(model['Weights']).parent.name
    figures.append((model['Results']['Metrics']['mIoU'], weights))
    print('   ', *figures[-1])
comments = [
    model for model in models
    if 'Results' in model and '# ' in str(model['Results'])
]
print(len(comments), 'models have a comment as their dataset')
assert len(twice) == 9 and all(len(found) == 2 for found in twice.values())
assert figures == [(44.6, 'deeplabv3plus_r101-d8_512x512_80k_ade20k'),
                   (45.47, 'deeplabv3plus_r101-d8_512x512_160k_ade20k')]
assert len(comments) == 12
END
cd "$folder"
venv/bin/python finding.py
