# Copyright (c) mmib contributors. All rights reserved.
import copy
import os
import os.path as osp
import sys

import pytest
from convert_config import (ABSENT, changes, child, converted_name, main,
                            one_line_refusals)
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.utils import is_installed

import mmib
from mmib.tasks.segmentation.zoo import resolve_config

NAME = 'mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512'
OWN = """
train_cfg = dict(type='IterBasedTrainLoop', max_iters=1000, val_interval=100)
param_scheduler = dict(type='PolyLR', by_epoch=False)
custom_imports = None
train_dataloader = dict(
    sampler=dict(type='DefaultSampler', shuffle=True, round_up=True))
"""


@pytest.fixture
def convert_config(monkeypatch, tmp_path):
    """Call the tool in another folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(MODULE2PACKAGE, 'mmseg', MODULE2PACKAGE['mmseg'])

    def call(*arguments):
        monkeypatch.setattr(sys, 'argv',
                            ['convert_config.py', *map(str, arguments)])
        with one_line_refusals():
            main()

    return call


def test_a_config_of_mmseg_to_a_folder(convert_config, tmp_path, capsys,
                                       monkeypatch):
    convert_config(NAME, 'out')
    out, = (tmp_path / 'out').iterdir()
    assert out.name == 'upernet_r50_4xb4-48k-infobatch_ade20k-512x512.py'
    text = out.read_text()
    assert "'/.mim/configs/upernet/upernet_r50_4xb4-80k_ade20k" in text
    # Nothing of this machine, and only what differs.
    assert sys.prefix not in text and str(tmp_path) not in text
    assert len(text.splitlines()) < 35 and 'model' not in text
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ['train_cfg.max_iters', '80000', '48000'] in rows
    assert 'It saves 32000 of 80000 iterations.'.split() == rows[-3][-6:]
    assert ['param_scheduler.0.end', '80000', '48000'] in rows
    # From any folder.
    monkeypatch.chdir(osp.sep)
    expected = mmib.convert(Config.fromfile(resolve_config(NAME)))
    assert Config.fromfile(str(out)).to_dict() == expected.to_dict()


def test_a_config_of_ones_own_to_a_file(convert_config, tmp_path):
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'own.py').write_text(OWN)
    convert_config('mine/own.py', 'out/short.py', '--ratio', 0.5, '--delta',
                   0.7, '--policy', 'MeanThreshold')
    out = tmp_path / 'out' / 'short.py'
    assert "_base_ = '../mine/own.py'" in out.read_text()
    # Both may move together.
    (tmp_path / 'moved').mkdir()
    for folder in ('mine', 'out'):
        os.rename(folder, f'moved/{folder}')
    cfg = Config.fromfile('moved/out/short.py')
    assert cfg.train_cfg.max_iters == 500
    assert cfg.custom_imports.imports == ['mmib']
    # DefaultSampler's `round_up` is gone.
    assert cfg.train_dataloader.sampler == dict(
        type='InfoBatchSampler', shuffle=True)
    assert cfg.custom_hooks == [
        dict(
            type='InfoBatchHook', policy=dict(type='MeanThreshold'), delta=0.7)
    ]


def test_a_base_of_mmseg_by_its_name(convert_config, tmp_path, monkeypatch):
    """The file loads where nothing of mmib has changed MMEngine, as in
    MMSegmentation's own train.py."""
    (tmp_path / 'own.py').write_text(f"_base_ = '{NAME}.py'\n")
    convert_config('own.py', 'short.py')
    converted = mmib.convert(Config.fromfile('own.py')).to_dict()
    monkeypatch.setitem(MODULE2PACKAGE, 'mmseg', 'mmsegmentation')
    assert Config.fromfile('short.py').to_dict() == converted
    # On OneDL's stack it has no base; on OpenMMLab's the scope works.
    text = (tmp_path / 'short.py').read_text()
    assert ('_base_' in text) != is_installed('onedl-mmsegmentation')


@pytest.mark.parametrize('outside', [True, False])
def test_a_folder_behind_a_link(convert_config, tmp_path, outside):
    """MMEngine finds the base from there and from its real place."""
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'own.py').write_text(OWN)
    real = tmp_path / ('deep/real' if outside else 'real')
    real.mkdir(parents=True)
    (tmp_path / 'mine' / 'link').symlink_to(real)
    convert_config('mine/own.py', 'mine/link/out.py')
    for path in ('mine/link/out.py', real / 'out.py'):
        assert Config.fromfile(str(path)).train_cfg.max_iters == 600


@pytest.mark.parametrize('arguments, ratio', [
    ([], 0.6),
    (['--policy', 'QuantileTiers'], 0.6),
    (['--policy', 'MeanThreshold'], 0.8),
    (['--policy', 'MeanThreshold', '--ratio', '0.7'], 0.7),
])
def test_a_policy_brings_its_ratio(convert_config, tmp_path, arguments, ratio):
    (tmp_path / 'own.py').write_text(OWN)
    convert_config('own.py', 'out.py', *arguments)
    assert Config.fromfile('out.py').train_cfg.max_iters == 1000 * ratio


@pytest.mark.parametrize(
    'text, arguments, match',
    [
        (OWN, ['own.py'], 'own.py exists: remove it, or give another OUT'),
        (OWN, ['link.py'], 'link.py exists'),
        # Also where the conversion would fail.
        ("_base_ = 'base.py'\n", ['base.py'], 'base.py exists'),
        ("_base_ = 'base.py'\nx = dict(b=float('inf'))\n", ['base.py'],
         'base.py exists'),
        (OWN, ['out.py', '--ratio', '2'], '`ratio` is the share'),
        (OWN, ['out.py', '--delta', '85'
               ], 'got 85.0: .* or --delta of the tool'),
        (OWN, ['out.py', '--policy', 'MeanTreshold'
               ], 'MeanTreshold is none of the policies.*MeanThreshold'),
        ('from mmengine.optim import SGD\n', ['out.py'],
         r'lazy config.*tools/train.py own.py --infobatch'),
        ('', ['out.py'], 'add `train_cfg'),
        (OWN + "custom_hooks = [dict(type='A', b=float('inf'))]\n", ['out.py'],
         'cannot be converted to a file.*NameError'),
    ])
def test_errors(convert_config, tmp_path, text, arguments, match):
    own = tmp_path / 'own.py'
    own.write_text(text)
    (tmp_path / 'link.py').symlink_to(own)
    base = tmp_path / 'base.py'
    base.write_text(OWN)
    with pytest.raises(SystemExit, match=f'(?s)^Error: .*{match}'):
        convert_config('own.py', *arguments)
    assert own.read_text() == text and base.read_text() == OWN
    assert len(os.listdir(tmp_path)) == 3


def test_unknown_configs(convert_config):
    with pytest.raises(SystemExit, match='Error: .*upernet_r50.*Close'):
        convert_config(NAME + 'x', 'out.py')


def test_changes():
    before = Config(dict(a=dict(b=1, c=2), d=[dict(e=1), dict(e=2)], f=(1, 2)))
    after = Config(dict(a=dict(b=1), d=[dict(e=1), dict(e=3)], f=(1, 3), g=[]))
    assert changes(before, after) == [('a.c', 2, ABSENT), ('d.1.e', 2, 3),
                                      ('f', (1, 2), (1, 3)), ('g', ABSENT, [])]


values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2)
    | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from('abc'), inner)
    | st.lists(inner, max_size=2))
dicts = st.dictionaries(st.sampled_from('abc'), values)


@given(dicts, dicts)
def test_child_turns_one_config_into_another(before, after):
    after = {**before, **after}
    difference = child(before, after)
    merged = Config._merge_a_into_b(copy.deepcopy(difference), before)
    assert Config(merged).to_dict() == after
    assert not [
        key for key in difference if before.get(key, ()) == after[key]
        and type(before[key]) is type(after[key])
    ]


def test_child_is_small():
    before = dict(a=dict(b=1, c=2), d=dict(e=1, f=2))
    after = dict(a=dict(b=1, c=3), d=dict(e=1))
    assert child(before, after) == dict(
        a=dict(c=3), d=dict(e=1, _delete_=True))


@pytest.mark.parametrize('name, old, new, expected', [
    ('upernet_r50_4xb4-80k_ade20k-512x512', 80000, 48000,
     'upernet_r50_4xb4-48k-infobatch_ade20k-512x512'),
    ('upernet_r18_1xb8-1k_camvid-144x192', 1000, 600,
     'upernet_r18_1xb8-600-infobatch_camvid-144x192'),
    ('vpd_sd_4xb8-25k_nyu-512x512', 25000, 15000,
     'vpd_sd_4xb8-15k-infobatch_nyu-512x512'),
    ('psp_4xb4-40k_coco-stuff10k-512x512', 40000, 26667,
     'psp_4xb4-26667-infobatch_coco-stuff10k-512x512'),
    ('beit_8xb1-amp-160k_ade20k_ms', 320000, 192000,
     'beit_8xb1-amp-96k-infobatch_ade20k_ms'),
    ('poolformer_8x4_512x512_40k_ade20k', 40000, 24000,
     'poolformer_8x4_512x512_24k-infobatch_ade20k'),
    ('san_coco-stuff164k-640x640', 60000, 36000,
     'san_coco-stuff164k-640x640-36k-infobatch'),
    ('my_config', 100, 60, 'my_config-60-infobatch'),
])
def test_names(name, old, new, expected):
    path = osp.join('some', 'folder', f'{name}.py')
    before, after = (
        Config(dict(train_cfg=dict(max_iters=n))) for n in (old, new))
    assert converted_name(path, before,
                          after) == expected.replace('-infobatch', '')
    after.custom_hooks = [dict(type='InfoBatchHook')]
    assert converted_name(path, before, after) == expected
