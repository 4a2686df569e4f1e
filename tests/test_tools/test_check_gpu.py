# Copyright (c) mmib contributors. All rights reserved.
"""The script runs, on whatever device there is. Its figures, and the tests
that it starts on a GPU, are no business of this one."""
import json
import os.path as osp
import subprocess
import sys

import pytest
import torch

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))


@pytest.mark.skipif(
    torch.cuda.is_available(), reason='on a GPU it runs for minutes')
def test_without_a_gpu(tmp_path):
    out = tmp_path / 'result.json'
    result = subprocess.run([
        sys.executable,
        osp.join(ROOT, 'tools', 'check_gpu.py'), '--out',
        str(out), '--size', '64', '--batch-size', '2', '--iters', '3',
        '--warmup', '1', '--images', '4'
    ],
                            capture_output=True,
                            text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(out.read_text())
    assert report['machine']['device'] == 'cpu'
    tests = report['tests']
    assert tests['skipped'] > 10 and tests['passed'] == tests['failed'] == 0
    assert set(tests['messages'].values()) == {'there is no GPU'}
    assert report['float32']['iters'] == 3
    assert report['float32']['ratio_of_medians'] > 0
    assert 'skipped' in report['float16']
