# Copyright (c) mmib contributors. All rights reserved.
import os
import os.path as osp
import sys
from functools import partial

import pytest
from mmengine.config import Config
from mmengine.utils import is_installed

import mmib
from mmib_cli.zoo import resolve_config

NAME = 'mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512'
OF_MMIB = 'mmib::upernet/upernet_r18_1xb8-1k_camvid-144x192'
FIND_BASE = Config._get_cfg_path
OWN = """
train_cfg = dict(type='IterBasedTrainLoop', max_iters=1000, val_interval=100)
param_scheduler = dict(type='PolyLR', by_epoch=False)
custom_imports = None
train_dataloader = dict(
    sampler=dict(type='DefaultSampler', shuffle=True, round_up=True))
"""


@pytest.fixture
def convert(run):
    return partial(run, 'convert')


@pytest.mark.parametrize('name, written, iters', [
    (NAME, 'upernet_r50_4xb4-48k-infobatch_ade20k-512x512', 80000),
    (OF_MMIB, 'upernet_r18_1xb8-600-infobatch_camvid-144x192', 1000),
])
def test_a_config_of_a_library_to_a_folder(convert, tmp_path, capsys,
                                           monkeypatch, name, written, iters):
    convert(name, 'out')
    out, = (tmp_path / 'out').iterdir()
    assert out.name == f'{written}.py'
    text = out.read_text()
    assert f"/configs/{name.partition('::')[2]}.py'" in text
    # Nothing of this machine, and only what differs.
    assert sys.prefix not in text and str(tmp_path) not in text
    assert len(text.splitlines()) < 35 and 'model' not in text
    said = capsys.readouterr().out
    short = 6 * iters // 10
    saved = 'It saves 32,000 of 80,000' if short == 48000 else (
        'It saves 400 of 1000')
    # The answer comes first, then what it costs, then what changes.
    parts = said.split('\n\n')
    cost = 'This model has a published mIoU of 40.70 after 80k, 42.05' if (
        name.startswith('mmseg')) else 'Fewer iterations cost '
    assert parts[0].startswith(f'{saved} iterations.\n{cost}')
    assert parts[0].endswith(f'\n  mmib train {name} --shorten')
    assert said.count('It saves') == 1
    rows = ' '.join(parts[1].split())
    for row in (f'train_cfg.max_iters {iters} {short}',
                f'param_scheduler.0.end {iters} {short}',
                'custom_hooks.0.policy.type - Neyman'):
        assert row in rows
    # Nor what every conversion changes, nor a command for data that are none.
    for text in 'custom_imports', 'InfoBatchSampler', 'mmib forecast':
        assert text not in said
    # From any folder.
    monkeypatch.chdir(osp.sep)
    expected = mmib.convert(Config.fromfile(resolve_config(name)))
    assert Config.fromfile(str(out)).to_dict() == expected.to_dict()


def test_a_config_of_ones_own_to_a_file(convert, tmp_path):
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'own.py').write_text(OWN)
    convert('mine/own.py', 'out/short.py', '--ratio', 0.5, '--delta', 0.7,
            '--policy', 'MeanThreshold')
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


def test_verbose_lists_what_every_conversion_changes(convert, tmp_path,
                                                     capsys):
    (tmp_path / 'own.py').write_text(OWN)
    convert('own.py', 'short.py', '-v')
    said = capsys.readouterr().out
    for text in 'custom_imports.imports ', 'InfoBatchSampler', 'InfoBatchHook':
        assert text in said
    # The data of a config that names no files may be there.
    assert '`mmib forecast` reads the data' in said


@pytest.mark.parametrize('options, control', [
    ('--ratio 0.75', '--ratio 0.75'),
    ('--policy MeanThreshold',
     '--ratio 0.8 --policy MeanThreshold --steps MEAN_WEIGHT'),
    ('--policy RandomPruning --delta 0.7',
     '--policy RandomPruning --delta 0.7'),
    ('--subset a.txt', '--subset a.txt'),
])
def test_the_control_is_as_short_and_has_the_same_images(
        convert, tmp_path, capsys, options, control):
    (tmp_path / 'own.py').write_text(
        OWN.replace('sampler=', "dataset=dict(type='A'), sampler="))
    (tmp_path / 'a.txt').write_text('1\n')
    convert('own.py', 'short.py', *options.split())
    said = capsys.readouterr().out
    assert f'\n  mmib train own.py --shorten {control}\n' in said


@pytest.mark.parametrize('text, policy', [
    ('QuantileTiers(quantiles=(0.2, 0.85))',
     dict(type='QuantileTiers', quantiles=(0.2, 0.85))),
    ('Neyman( min_keep = 0.2 ,num_tiers=5)',
     dict(type='Neyman', min_keep=0.2, num_tiers=5, ratio=0.6)),
    ('QuantileTiers()', dict(type='QuantileTiers')),
])
def test_a_policy_with_arguments(convert, tmp_path, text, policy):
    (tmp_path / 'own.py').write_text(OWN)
    convert('own.py', 'short.py', '--policy', text)
    assert Config.fromfile('short.py').custom_hooks[0].policy == policy


@pytest.mark.parametrize('text, message', [
    ('QuantileTier(ratios=(0.5, 0.5))', '.*did you mean QuantileTiers'),
    ('QuantileTiers(ratio=0.5)', '`ratio` in .* did you mean `ratios`'),
    *[(text, '--policy .* write the type of a policy, and its arguments as ')
      for text in ('Neyman(0.5)', 'Neyman(ratio=x)', 'Neyman(ratio=0.5',
                   'Neyman(**{})', 'Neyman(type=1)', '(1, 2)',
                   "Neyman(ratio=__import__('os').mkdir('out.py'))")],
])
def test_a_policy_that_is_none(convert, tmp_path, text, message):
    """It is refused, and nothing in it is run."""
    (tmp_path / 'own.py').write_text(OWN)
    with pytest.raises(SystemExit, match=f'Error: {message}'):
        convert('own.py', 'out.py', '--policy', text)
    assert not (tmp_path / 'out.py').exists()


INFINITE = OWN + "custom_hooks = [dict(type='A', b=float('inf'))]\n"
LAZY = ('from mmengine.runner import IterBasedTrainLoop\n' +
        OWN.replace("'IterBasedTrainLoop'", 'IterBasedTrainLoop'))


@pytest.mark.parametrize(
    'text, is_child',
    [
        (INFINITE, True),
        ("_base_ = ['base.py']\nx = dict(y=(float('-inf'), ))\n", True),
        # MMEngine alone finds configs of OpenMMLab's distributions.
        ("_base_ = 'by_name.py'\n", is_installed('mmsegmentation')),
        ("_base_ = 'of_mmib.py'\n", False),
        (LAZY, False),
    ])
def test_what_is_written_loads_as_it_was(convert, tmp_path, monkeypatch, text,
                                         is_child):
    """Also where nothing of mmib has changed MMEngine, as in MMSegmentation's
    own train.py."""
    (tmp_path / 'base.py').write_text(INFINITE)
    (tmp_path / 'by_name.py').write_text(f"_base_ = '{NAME}.py'\n")
    (tmp_path / 'of_mmib.py').write_text(f"_base_ = '{OF_MMIB}.py'\n")
    (tmp_path / 'own.py').write_text(text)
    convert('own.py', 'short.py')
    expected = mmib.convert(Config.fromfile('own.py')).to_dict()
    monkeypatch.setattr(Config, '_get_cfg_path', staticmethod(FIND_BASE))
    assert Config.fromfile('short.py').to_dict() == expected
    assert ('_base_' in (tmp_path / 'short.py').read_text()) is is_child


@pytest.mark.parametrize('outside', [True, False])
def test_a_folder_behind_a_link(convert, tmp_path, outside):
    """MMEngine finds the base from there and from its real place."""
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'own.py').write_text(OWN)
    real = tmp_path / ('deep/real' if outside else 'real')
    real.mkdir(parents=True)
    (tmp_path / 'mine' / 'link').symlink_to(real)
    convert('mine/own.py', 'mine/link/out.py')
    for path in ('mine/link/out.py', real / 'out.py'):
        assert Config.fromfile(str(path)).train_cfg.max_iters == 600


def test_shorten_writes_the_control(run, tmp_path, capsys):
    """As short as the converted config, and with its steps, or of mmib
    nothing."""
    (tmp_path / 'own-1k.py').write_text(OWN)
    run('shorten', 'own-1k.py', 'long.py', '--delta', 0.7)
    long = mmib.shorten(Config.fromfile('own-1k.py'), steps=None, delta=0.7)
    assert Config.fromfile('long.py').to_dict() == long.to_dict()
    assert long.custom_hooks[-1].delta == 0.7
    capsys.readouterr()
    run('shorten', 'own-1k.py', '.', '--steps', 1)
    text = (tmp_path / 'own-600.py').read_text()
    assert text.startswith('# Without pruning: 60 % of')
    assert 'mmib' not in text and 'InfoBatch' not in text
    expected = mmib.shorten(Config.fromfile('own-1k.py'), 0.6)
    assert Config.fromfile('own-600.py').to_dict() == expected.to_dict()
    said = capsys.readouterr().out
    assert said.startswith('It saves 400 of 1000 iterations.\nFewer ')
    assert 'prunes' not in said and '--shorten' not in said
    run('shorten', 'own-1k.py', 'half.py', '--ratio', 0.5)
    assert Config.fromfile('half.py').train_cfg.max_iters == 500
