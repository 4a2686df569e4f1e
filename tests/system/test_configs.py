# Copyright (c) mmib contributors. All rights reserved.
"""Convert every config of the installed MMSegmentation: each is converted,
written as a child config, loaded again, and its schedule is checked."""
import pytest
from mmengine.config import Config

from mmib import convert
from mmib_cli.files import read, write_child
from mmib_cli.zoo import (allow_scoped_bases, installed_configs,
                          resolve_config, zoo_names)

SAMPLE = ('upernet/upernet_r50_4xb4-80k_ade20k-512x512.py',
          'vpd/vpd_sd_4xb8-25k_nyu-480x480.py',
          'knet/knet-s3_r50-d8_upernet_8xb2-adamw-80k_ade20k-512x512.py')


def numbers(node, name):
    """All integers in a config by their dotted name."""
    if isinstance(node, (dict, list, tuple)):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            yield from numbers(value, f'{name}.{key}')
    elif type(node) is int:
        yield name, node


def assert_as_often(interval, length, old_interval, old_length, what):
    """Something that is done every so many iterations and at the end."""
    assert 0 < interval <= length, what
    times, old_times = -(-length // interval), -(-old_length // old_interval)
    assert abs(times - old_times) <= 1, f'{times} {what}, not {old_times}'


def check_schedule(before, after):
    """Check that a converted schedule is consistent in itself and with the
    original one."""
    old, new = before.train_cfg.max_iters, after.train_cfg.max_iters
    pairs = list(
        zip(before.param_scheduler, after.param_scheduler, strict=True))
    for (one, short), (next_one, next_short) in zip(pairs, pairs[1:]):
        assert (short.end == next_short.begin) == (
            one.end == next_one.begin), 'schedulers follow in another way'
    for i, (full, short) in enumerate(pairs):
        where = f'param_scheduler[{i}]'
        begin, end = short.get('begin', 0), short.get('end', new)
        old_begin, old_end = full.get('begin', 0), full.get('end', old)
        assert 0 <= begin < end, f'{where} runs from {begin} to {end}'
        assert end <= new or old_end > old, f'{where} ends after the training'
        assert (end == new) == (old_end == old), f'{where} ends at {end}'
        times = [begin + step for step in short.get('milestones', [])]
        old_times = [old_begin + step for step in full.get('milestones', [])]
        assert times == sorted(set(times)), f'{where}.milestones: {times}'
        if all(old_begin < time < old_end for time in old_times):
            assert all(begin < time < end
                       for time in times), f'{where}.milestones are outside'
        if old_begin == 0 and old_end <= old / 4:
            assert short == full, f'{where} is a warm-up that changed'
    assert_as_often(after.train_cfg.val_interval, new,
                    before.train_cfg.val_interval, old, 'validations')
    assert after.train_cfg.get('val_begin', 1) <= new
    assert_as_often(after.default_hooks.checkpoint.interval, new,
                    before.default_hooks.checkpoint.interval, old,
                    'checkpoints')
    for hooks in ('default_hooks', 'custom_hooks'):
        for name, value in numbers(after.to_dict()[hooks], hooks):
            field = name.rpartition('.')[2]
            if field.endswith(('_iter', '_iters')):
                assert value <= new, f'{name}={value} is after the training'
    policy = after.custom_hooks[-1].policy
    assert policy.ratio == pytest.approx(
        new / old, rel=1e-3), f'{policy} is not for {new} of {old}'


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow)
    for name in zoo_names(installed_configs('mmseg'))
])
def test_config(name, tmp_path, record_property):
    allow_scoped_bases()
    path = resolve_config(f'mmseg::{name}')
    try:
        before = read(path)
    except ImportError as error:
        cause = error.__cause__ or error.__context__ or error
        pytest.skip(f'the config needs a package: {cause}')
    out = str(tmp_path / 'converted.py')
    after = convert(before, 0.6)
    write_child(path, before, after, out)
    written = Config.fromfile(out)
    assert written.to_dict() == after.to_dict()
    check_schedule(before, written)
    record_property('configs converted', 1)
