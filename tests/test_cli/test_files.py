# Copyright (c) mmib contributors. All rights reserved.
import copy
import os.path as osp

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config

from mmib_cli.files import ABSENT, changes, child, converted_name


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
        Config(dict(train_cfg=dict(by_epoch=False, max_iters=n)))
        for n in (old, new))
    assert converted_name(path, before,
                          after) == expected.replace('-infobatch', '')
    after.custom_hooks = [dict(type='InfoBatchHook')]
    assert converted_name(path, before, after) == expected


@pytest.mark.parametrize('name, epochs, expected', [
    ('resnet18_8xb16_cifar10', 200, 'resnet18_8xb16-infobatch_cifar10'),
    ('resnet18_8xb16_cifar10', 120, 'resnet18_8xb16-120e-infobatch_cifar10'),
    ('mae_vit_8xb512-amp-coslr-400e_in1k', 120,
     'mae_vit_8xb512-amp-coslr-240e-infobatch_in1k'),
    ('mae_vit_8xb512-amp-coslr-400e_in1k', 200,
     'mae_vit_8xb512-amp-coslr-400e-infobatch_in1k'),
    ('mine', 200, 'mine-infobatch'),
    ('mine', 120, 'mine-120e-infobatch'),
])
def test_names_of_trainings_that_count_epochs(name, epochs, expected):
    before, after = (
        Config(dict(train_cfg=dict(by_epoch=True, max_epochs=n)))
        for n in (200, epochs))
    assert converted_name(f'{name}.py', before,
                          after) == expected.replace('-infobatch', '')
    after.custom_hooks = [dict(type='InfoBatchHook')]
    assert converted_name(f'{name}.py', before, after) == expected
