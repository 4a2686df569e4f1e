# Copyright (c) mmib contributors. All rights reserved.
"""The script runs. Its figures are no business of this test."""
import json
import os
import os.path as osp
import subprocess
import sys

import pytest
import torch

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))


@pytest.mark.skipif(
    torch.cuda.is_available(), reason='on a GPU it runs for minutes')
def test_without_a_gpu():
    result = subprocess.run([
        sys.executable,
        osp.join(ROOT, 'benchmarks', 'gpu_step.py'), '--size', '64',
        '--batch-size', '2', '--iters', '3', '--warmup', '1', '--images', '4'
    ],
                            env=dict(os.environ, PYTHONPATH=ROOT),
                            stdout=subprocess.PIPE,
                            text=True)
    assert result.returncode == 0
    lines = [line for line in result.stdout.split('\n') if line[:1] == '{']
    machine, float32 = map(json.loads, lines)
    assert machine['device'] == 'cpu'
    assert float32['iters'] == 3 and float32['ratio_of_medians'] > 0
