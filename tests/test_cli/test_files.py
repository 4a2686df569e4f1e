# Copyright (c) mmib contributors. All rights reserved.
import copy
import os.path as osp
from argparse import Namespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mmengine.config import Config

from mmib_cli.files import ABSENT, changes, child, converted_name, find_config
from mmib_cli.resume import resumed


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
@example(
    dict(a=dict(b=1, c=2), d=dict(e=1, f=2)), dict(a=dict(b=1), d=dict(e=2)))
@example(dict(a=dict(b=1, c=2)), dict(a=dict(b=1, c=3)))
def test_child_turns_one_config_into_another(before, after):
    """It has what differs, and no more."""
    after = {**before, **after}
    difference = child(before, after)
    merged = Config._merge_a_into_b(copy.deepcopy(difference), before)
    assert Config(merged).to_dict() == after
    assert_differs(difference, before)


def assert_differs(difference, before):
    for key, value in difference.items():
        assert before.get(key,
                          ()) != value or type(before[key]) is not type(value)
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if '_delete_' in value:
                assert not old.keys() <= value.keys()
            else:
                assert_differs(value, old)


@pytest.mark.parametrize(
    'name, unit, old, new, expected',
    [
        ('vpd_sd_4xb8-25k_nyu-512x512', 'iters', 25000, 15000,
         'vpd_sd_4xb8-15k-infobatch_nyu-512x512'),
        ('psp_4xb4-40k_coco-stuff10k-512x512', 'iters', 40000, 26667,
         'psp_4xb4-26667-infobatch_coco-stuff10k-512x512'),
        # The schedule is of another length than the name.
        ('poolformer_8x4_512x512_40k_ade20k', 'iters', 80000, 48000,
         'poolformer_8x4_512x512_24k-infobatch_ade20k'),
        ('san_coco-stuff164k-640x640', 'iters', 60000, 36000,
         'san_coco-stuff164k-640x640-36k-infobatch'),
        ('my_config', 'iters', 100, 60, 'my_config-60-infobatch'),
        ('resnet18_8xb16_cifar10', 'epochs', 200, 200,
         'resnet18_8xb16-infobatch_cifar10'),
        ('resnet18_8xb16_cifar10', 'epochs', 200, 120,
         'resnet18_8xb16-120e-infobatch_cifar10'),
        ('mae_vit_8xb512-amp-coslr-400e_in1k', 'epochs', 200, 120,
         'mae_vit_8xb512-amp-coslr-240e-infobatch_in1k'),
        ('mine', 'epochs', 200, 200, 'mine-infobatch'),
        ('mine', 'epochs', 200, 120, 'mine-120e-infobatch'),
    ])
def test_names(name, unit, old, new, expected):
    path = osp.join('some', 'folder', f'{name}.py')
    before, after = (
        Config(
            dict(train_cfg={
                'by_epoch': unit == 'epochs',
                f'max_{unit}': number
            })) for number in (old, new))
    assert converted_name(path, before,
                          after) == expected.replace('-infobatch', '')
    after.custom_hooks = [dict(type='InfoBatchHook')]
    assert converted_name(path, before, after) == expected


def test_a_base_that_mmengine_fills_in(tmp_path):
    (tmp_path / 'base.py').write_text('a = 1\n')
    path = tmp_path / 'child.py'
    path.write_text("_base_ = ['{{ fileDirname }}/base.py']\n")
    assert find_config(str(path)) == str(path)
    assert Config.fromfile(str(path)).a == 1


@pytest.mark.parametrize('args, kept', [
    (['c.py', '--resume'], ['c.py']),
    (['c.py', '--resume', 'auto', '--amp'], ['c.py', '--amp']),
    (['c.py', '--resume=auto', '--amp'], ['c.py', '--amp']),
    (['c.py', '--work-dir', 'auto', '--resume'
      ], ['c.py', '--work-dir', 'auto']),
])
def test_resume_without_a_checkpoint(tmp_path, args, kept):
    """Only this option goes."""
    given, cfg = Namespace(resume='auto'), Config(dict(load_from='a.pth'))
    assert resumed(args, cfg, given, str(tmp_path)) == kept
