# Copyright (c) mmib contributors. All rights reserved.
import subprocess
import sys

import pytest
from mmengine.registry import DATA_SAMPLERS, HOOKS, MODELS

import mmib


def test_import_registers_everything():
    assert HOOKS.get('InfoBatchHook') is mmib.InfoBatchHook
    assert DATA_SAMPLERS.get('InfoBatchSampler') is mmib.InfoBatchSampler
    assert MODELS.get('InfoBatchLoss') is mmib.InfoBatchLoss
    assert mmib.__version__


@pytest.mark.parametrize('missing', ['mmengine', 'mmcv', 'mmseg'])
def test_without_a_stack_the_import_says_what_to_install(missing):
    code = f'import sys; sys.modules[{missing!r}] = None; import mmib'
    run = subprocess.run([sys.executable, '-c', code],
                         capture_output=True,
                         text=True)
    assert run.returncode
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith('ModuleNotFoundError: mmib needs MMSegmentation')
    assert f'`{missing}` is missing' in last
    assert "pip install -e '.[onedl]'" in last
