# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp
import subprocess
import sys

import mmengine
import pytest
import torch

import mmib
from mmib.errors import Refusal


@pytest.mark.parametrize('is_mixed', [False, True])
def test_versions_are_told_also_of_two_stacks(run, capsys, monkeypatch,
                                              is_mixed):

    def mixed():
        raise Refusal('two stacks')

    if is_mixed:
        monkeypatch.setattr('mmib.openmmlab.runner.checks.check_stack', mixed)
        with pytest.raises(SystemExit, match='Error: two stacks'):
            run('env')
    else:
        run('env')
    lines = capsys.readouterr().out.splitlines()
    place = osp.dirname(mmib.__file__)
    assert f'mmib: {mmib.__version__}, {place}' in lines
    assert f'PyTorch: {torch.__version__}' in lines
    for package in ('mmengine', 'mmseg'):
        assert any(
            line.startswith((f'onedl-{package}', package)) for line in lines)
    assert mmengine.__version__ in ' '.join(lines)
    # The packages come first, and mmib is one of them.
    names = [line.partition(':')[0] for line in lines]
    assert names[0] == 'mmib' and names.count('mmib') == 1
    assert names.index('torch') < names.index('sys.platform')


def test_without_mmengine():
    """As where a Session prunes a PyTorch loop."""
    code = ("import sys; sys.modules['mmengine'] = None\n"
            "import mmib_cli; mmib_cli.main(['env'])")
    out = subprocess.run([sys.executable, '-c', code],
                         capture_output=True,
                         text=True,
                         check=True).stdout
    # Metadata of some builds lack what follows a plus.
    version = torch.__version__.partition('+')[0]
    assert f'torch: {version}' in out and '\nPython: 3' in out
