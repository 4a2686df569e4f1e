# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp
import sys
from importlib.metadata import PackageNotFoundError

import torch

import mmib
from mmib_cli import env, main


def rows_of(capsys):
    main(['env'])
    lines = capsys.readouterr().out.splitlines()
    return {line[:19].strip(): line[19:] for line in lines}


def test_what_is_told(capsys):
    rows = rows_of(capsys)
    place = osp.dirname(mmib.__file__)
    assert rows['mmib'] == f'{mmib.__version__}, {place}'
    # A build for CUDA has a suffix, which its package lacks.
    assert torch.__version__.startswith(rows['torch'])
    assert rows['stack'] in ('OneDL', 'OpenMMLab')
    prefix = 'onedl-' if rows['stack'] == 'OneDL' else ''
    for module, name in (('mmengine', 'mmengine'), ('mmcv', 'mmcv'),
                         ('mmseg', 'mmsegmentation')):
        assert rows[module].endswith(f' ({prefix}{name})')
    assert rows['import mmib'] == rows['import mmseg'] == 'works'


def test_two_stacks(capsys, monkeypatch):
    monkeypatch.setattr(env, 'version', lambda name: '1.0')
    rows = rows_of(capsys)
    assert rows['stack'].startswith('OneDL and OpenMMLab are mixed')
    assert rows['mmseg'] == '1.0 (onedl-mmsegmentation), 1.0 (mmsegmentation)'


def test_nothing_is_installed(capsys, monkeypatch):

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(env, 'version', missing)
    for name in ('torch', 'mmengine', 'mmseg', 'mmpretrain', 'mmdet', 'mmib'):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(env, 'own', lambda: '0')  # Its place is still known.
    rows = rows_of(capsys)
    assert rows['stack'] == 'none'
    assert rows['numpy'] == rows['mmengine'] == 'not installed'
    for name in ('mmseg', 'mmpretrain', 'mmdet', 'mmib'):
        assert rows[f'import {name}'] == 'not installed'
    assert rows['devices'].startswith('ModuleNotFoundError: ')


def test_a_library_whose_own_imports_fail(monkeypatch):
    monkeypatch.delitem(sys.modules, 'mmib_cli.train', raising=False)
    monkeypatch.setitem(sys.modules, 'mmib_cli.scripts', None)
    told = env.attempt('mmib_cli.train')
    assert told.startswith('ModuleNotFoundError: ')
    assert 'mmib_cli.scripts' in told


def test_a_mixed_stack_by_the_words_of_the_check(monkeypatch):

    def mixed():
        raise RuntimeError('two\nstacks')

    monkeypatch.setattr('mmib.runner.checks.check_stack', mixed)
    assert env.attempt('mmib') == 'RuntimeError: two stacks'
