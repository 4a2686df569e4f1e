# Copyright (c) mmib contributors. All rights reserved.
"""These scripts run. Their figures are no business of tests."""
import json
import sys

import pytest
import torch

from benchmarks import edge, gpu_step, loader, logged_loss, plan
from benchmarks.quality.run import read_results

from .utils import rows_of


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


def test_edge(monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['edge.py', '--sizes', '3000'])
    edge.main()
    (images, ranks, *seconds), = rows_of(capsys.readouterr().out)
    assert (images, ranks) == ('3000', '1')
    assert all(float(cell) >= 0 for cell in seconds)


def test_loader(monkeypatch, capsys):
    for name, value in dict(BATCH_SIZE=2, BLOCK=2, TURNS=2).items():
        monkeypatch.setattr(loader, name, value)
    options = '--sizes 60 --workers 0 1 --repeats 2'
    monkeypatch.setattr('sys.argv', ['loader.py', *options.split()])
    loader.main()
    rows = rows_of(capsys.readouterr().out)
    assert [row[:2] for row in rows] == [['60', '0'], ['60', '1']]
    assert all(float(row[4]) > 0 for row in rows)


def test_logged_loss(monkeypatch, capsys):
    kinds = ['CE', 'CE, policy without rescaling']
    options = ['--warmup', '3', '--epochs', '4', '--full', '2', '--kinds']
    monkeypatch.setattr(logged_loss, 'SCENES', 48)
    monkeypatch.setattr('sys.argv', ['logged_loss.py', *options, *kinds])
    logged_loss.main()
    rows = rows_of(capsys.readouterr().out)
    assert [row[0] for row in rows] == kinds
    for _, logged, true, ratio, _ in rows:
        assert float(ratio) == pytest.approx(
            float(logged) / float(true), abs=1e-3)
    # The truth is one of the network, whatever draws the plans.
    assert rows[0][2] == rows[1][2]


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
