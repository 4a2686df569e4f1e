# Copyright (c) mmib contributors. All rights reserved.
"""These scripts run. Their figures are no business of tests, and what the
simulation says of a policy is tested with the policy."""
import json
import sys

import mmcv
import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import budget, gpu_step, plan
from benchmarks.camvid.shrink_data import shrink
from benchmarks.compare.results import read_results

from .utils import rows_of


def test_budget(monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['budget.py'])
    small = dict(
        num_images=300, slots_per_iter=4, max_iters=1200, full_iters=2000)
    monkeypatch.setattr(budget, 'FLAGSHIP', dict(small, delta=0.85))
    budget.main()
    rows = rows_of(capsys.readouterr().out)
    assert len(rows) == 21
    assert [row[1] for row in rows[:3]
            ] == ['Budget', 'QuantileTiers', 'MeanThreshold']
    assert {float(row[3]) for row in rows} == {26.67}
    assert abs(float(rows[0][2]) - 26.67) < 0.3


def test_plan(monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['plan.py'])
    monkeypatch.setattr(plan, 'SIZES', (1000, 2000))
    monkeypatch.setattr(plan, 'SECONDS', 0)
    plan.main()
    rows = rows_of(capsys.readouterr().out)
    assert [row[0] for row in rows] == ['1000'] * 4 + ['2000'] * 4
    # Its ratio is to itself.
    assert rows[0][1] == 'plain numpy' and float(rows[0][3]) == 1
    assert all(float(cell) > 0 for row in rows for cell in row[2:])


@pytest.mark.skipif(
    torch.cuda.is_available(), reason='on a GPU it runs for minutes')
def test_gpu_step_without_a_gpu(tmp_path, monkeypatch, capsys):
    for name, network in gpu_step.NETWORKS.items():
        monkeypatch.setitem(gpu_step.NETWORKS, name,
                            network._replace(size=64, batch_size=2))
    out = tmp_path / 'steps.jsonl'
    options = f'--iters 2 --warmup 0 --out {out} --networks segformer_b0'
    monkeypatch.setattr('sys.argv', ['gpu_step.py', *options.split()])
    gpu_step.main()
    monkeypatch.setattr('sys.argv', [*sys.argv, 'upernet_swin_t'])
    # What has a line isn't run again.
    gpu_step.main()
    lines = read_results(out)
    assert [line['network']
            for line in lines] == ['segformer_b0', 'upernet_swin_t']
    printed = capsys.readouterr().out.splitlines()
    assert [json.loads(x) for x in printed if x[:1] == '{'] == lines
    for line in lines:
        assert line['device'] == 'cpu'
        assert line['iters'] == 2 and line['median_of_ratios'] > 0
        assert len(line['host_seconds']) == 2


@pytest.mark.parametrize('mode', ['L', 'P'])
def test_shrink_data(tmp_path, mode):
    # Four quarters, each with its label and its colour.
    labels = np.kron([[0, 1], [2, 11]], np.ones((6, 8))).astype(np.uint8)
    image = np.repeat(labels[..., None] * 20, 3, axis=2)
    mask = Image.fromarray(labels)
    if mode == 'P':
        mask = mask.copy()
        mask.putpalette(np.arange(768) % 256)
    (tmp_path / 'data/annotations/test').mkdir(parents=True)
    mask.save(tmp_path / 'data/annotations/test/a.png')
    mmcv.imwrite(image, str(tmp_path / 'data/images/test/a.png'))
    shrink(str(tmp_path / 'data'), str(tmp_path / 'out'), (4, 2))
    small = mmcv.imread(tmp_path / 'out/annotations/test/a.png', 'unchanged')
    assert small.tolist() == [[0, 0, 1, 1], [2, 2, 11, 11]]
    small = mmcv.imread(tmp_path / 'out/images/test/a.png')
    assert small[..., 0].tolist() == [[0, 0, 20, 20], [40, 40, 220, 220]]
