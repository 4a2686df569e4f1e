# Copyright (c) mmib contributors. All rights reserved.
"""The scripts run. Their figures are no business of tests."""
import pytest
import torch

from benchmarks import (edge, gpu_step, host_time, loader, logged_loss, plan,
                        resume, step)
from tests.helpers.segmentors import write_images

from .utils import CAMVID, rows_of


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a script and returns the rows of its table."""

    def run(script, options=''):
        monkeypatch.setattr('sys.argv', ['script.py', *options.split()])
        script.main()
        return rows_of(capsys.readouterr().out)

    return run


def test_plan(run, monkeypatch):
    monkeypatch.setattr(plan, 'SIZES', (1000, ))
    monkeypatch.setattr(plan, 'SECONDS', 0)
    rows = run(plan)
    # Its ratio is to itself.
    assert rows[0][1] == 'plain numpy' and float(rows[0][3]) == 1


def test_edge(run):
    (images, ranks, *seconds), = run(edge, '--sizes 3000')
    assert (images, ranks) == ('3000', '1') and seconds


def test_host_time(run):
    assert [row[0] for row in run(host_time, '--images 300')] == ['yes', 'no']


def test_loader(run, monkeypatch):
    for name, value in dict(BATCH_SIZE=2, BLOCK=2, TURNS=2).items():
        monkeypatch.setattr(loader, name, value)
    (images, workers, *_), = run(loader, '--sizes 60 --workers 1 --repeats 1')
    assert (images, workers) == ('60', '1')


def test_logged_loss(run, monkeypatch):
    monkeypatch.setattr(logged_loss, 'SCENES', 24)
    (kind, logged, true, ratio,
     _), = run(logged_loss, '--warmup 2 --epochs 3 --full 1 --kinds CE')
    assert kind == 'CE'
    assert float(ratio) == pytest.approx(float(logged) / float(true), abs=1e-3)


def test_step(run, tmp_path):
    write_images(tmp_path, 8, 'test', 'png')
    rows = run(
        step, '--policies QuantileTiers --iters 1 --warmup 3 --cfg-options '
        f'train_dataloader.dataset.data_root={tmp_path} -- {CAMVID}')
    assert [row[0] for row in rows] == ['full', 'QuantileTiers']
    assert [row[2] for row in rows] == ['0.0%', '40.0%']


@pytest.mark.skipif(
    torch.cuda.is_available(), reason='on a GPU it runs for minutes')
def test_gpu_step_without_a_gpu(run, tmp_path, monkeypatch):
    name = 'segformer_b0'
    monkeypatch.setitem(
        gpu_step.NETWORKS, name,
        gpu_step.NETWORKS[name]._replace(size=32, batch_size=2))
    out = tmp_path / 'steps.jsonl'
    run(gpu_step, f'--iters 1 --warmup 0 --out {out} --networks {name}')
    assert len(out.read_text().splitlines()) == 1


def test_resume(run, monkeypatch):
    """In one process."""
    monkeypatch.setattr(resume, 'train_apart', resume.train)
    rows = run(resume, '--iteration 50 --images 60 --workers 1 --repeats 1')
    assert [row[0] for row in rows] == list(resume.STARTS)
