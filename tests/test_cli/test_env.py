# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp

import mmengine
import pytest
import torch

import mmib
from mmib.errors import Refusal


def test_what_is_told(run, capsys):
    run('env')
    lines = capsys.readouterr().out.splitlines()
    place = osp.dirname(mmib.__file__)
    assert f'mmib: {mmib.__version__}, {place}' in lines
    assert f'PyTorch: {torch.__version__}' in lines
    assert {
        f'onedl-mmengine: {mmengine.__version__}',
        f'mmengine: {mmengine.__version__}'
    } & {*lines}
    assert any(line.startswith(('onedl-mmseg', 'mmseg')) for line in lines)


def test_two_stacks(run, capsys, monkeypatch):

    def mixed():
        raise Refusal('two stacks')

    monkeypatch.setattr('mmib_cli.env.check_stack', mixed)
    with pytest.raises(SystemExit, match='Error: two stacks'):
        run('env')
    assert 'PyTorch: ' in capsys.readouterr().out
