# Copyright (c) mmib contributors. All rights reserved.
"""Convert every config of the installed MMPretrain, and connect the losses of
its model: both work, or are refused for a reason that is known here. Models
are built without memory for their parameters."""
import re

import pytest

pytest.importorskip('mmpretrain.models', exc_type=ImportError)

import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.registry import DefaultScope  # noqa: E402
from mmpretrain.registry import MODELS  # noqa: E402

from mmib import convert  # noqa: E402
from mmib.openmmlab import tasks  # noqa: E402
from mmib.openmmlab.batch import BatchContext  # noqa: E402
from mmib_cli import refusal  # noqa: E402
from mmib_cli import zoo  # noqa: E402
from mmib_cli.files import read, write_child  # noqa: E402

from .test_configs import check_schedule  # noqa: E402

SAMPLE = ('beit/beit_beit-base-p16_8xb256-amp-coslr-300e_in1k.py',
          'blip/blip-base_8xb32_nocaps.py',
          'deit3/deit3-small-p16_64xb64_in1k.py',
          'mae/mae_vit-base-p16_8xb512-amp-coslr-300e_in1k.py',
          'mocov2/mocov2_resnet50_8xb32-coslr-200e_in1k.py',
          'resnet/resnet18_8xb16_cifar10.py',
          'swin_transformer/swin-tiny_16xb64_in1k.py')
# Why MMEngine can't read a config, or MMPretrain can't build its model: by
# what the error says.
BROKEN = {
    'MMDetection is missing': 'mmdet is not installed',
    'its base has no such key': "KeyError: 'test_pipeline'",
    'its base is of another kind': 'inheritance chain',
    'multi-modal dependencies are missing': 'multi-modal dependencies',
    'it switches to deployment in a wrong way': 'switch_to_deploy',
    'it names an unknown augmentation': 'BatchCutMix',
}
# What mmib refuses: by what it says.
REFUSED = {
    'it trains nothing': 'has no training',
    'each image several times in an epoch': 'RepeatAugSampler',
    'images are compared with each other': 'compares images with each other',
    'mixes images by itself': 'does not show which images it mixes',
    'no loss per image of the model': 'in its own way|knows no losses',
    'its training loop is none of MMEngine': 'knows the training loops',
}


def reason(table, text):
    """The one that fits, or fail."""
    found = [name for name, said in table.items() if re.search(said, text)]
    assert found, text
    return found[0]


def of_no_network(node):
    """Remove what is downloaded from the config of a model."""
    if isinstance(node, dict):
        for key in ('init_cfg', 'pretrained', 'target_generator'):
            node.pop(key, None)
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for value in node:
            of_no_network(value)


def build(model, monkeypatch):
    """A model whose parameters have no values."""
    linspace = torch.linspace
    # Rates of stochastic depth are numbers.
    monkeypatch.setattr(
        torch, 'linspace',
        lambda *args, **kwargs: linspace(*args, **{
            **kwargs, 'device': 'cpu'
        }))
    of_no_network(model)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        # LoRA gives its parameters values.
        with torch.device('cpu' if 'LoRA' in str(model) else 'meta'):
            return MODELS.build(model)


def outcome(name, folder, monkeypatch):
    """What comes of a config, in a few words."""
    path = zoo.resolve_config(f'mmpretrain::{name}')
    try:
        before = read(path)
    except Exception as error:
        assert refusal(error) is None
        return 'broken: ' + reason(BROKEN, f'{type(error).__name__}: {error}')
    try:
        after = convert(before)
    except Exception as error:
        return 'refused: ' + reason(REFUSED, refusal(error) or repr(error))
    out = str(folder / 'converted.py')
    write_child(path, before, after, out)
    written = Config.fromfile(out)
    assert written.to_dict() == after.to_dict()
    check(before, written)
    try:
        model = build(after.model, monkeypatch)
    except Exception as error:
        return 'broken: ' + reason(BROKEN, f'{type(error).__name__}: {error}')
    try:
        tasks.attach(model, BatchContext())
    except Exception as error:
        return 'refused: ' + reason(REFUSED, refusal(error) or repr(error))
    return 'trains with InfoBatch'


def check(before, after):
    """Check a converted schedule."""
    if 'max_epochs' not in before.train_cfg:
        return check_schedule(before, after)
    hook = after.custom_hooks[-1]
    assert hook.policy == dict(type='Neyman', ratio=0.6)
    for key in ('train_cfg', 'param_scheduler', 'default_hooks'):
        assert after.get(key) == before.get(key), f'{key} has changed'


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow)
    for name in zoo.zoo_names(zoo.installed_configs('mmpretrain'))
])
def test_config(name, tmp_path, monkeypatch, record_property):
    zoo.allow_scoped_bases()
    record_property(outcome(name, tmp_path, monkeypatch), 1)
