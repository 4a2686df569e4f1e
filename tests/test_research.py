# Copyright (c) mmib contributors. All rights reserved.
"""Each script of research/ runs, in its smallest way. What the results say is
checked by test_docs.py."""
import glob
import importlib
import os.path as osp

import numpy as np
import pytest

from benchmarks.compare.results import read_results
from mmib.pruning import Progress
from research.hard_selection.tempered import Tempered, keep_probabilities
from research.optimizers import weights_and_steps

from .test_benchmarks.utils import ROOT, write_small_camvid

SCRIPTS = sorted(
    osp.relpath(path, ROOT)[:-3].replace(osp.sep, '.')
    for path in glob.glob(osp.join(ROOT, 'research', '*', '*.py'))
    if 'def main(' in open(path, encoding='utf-8').read())


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a script, and return what it prints."""

    def start(script, *options):
        module = importlib.import_module(f'research.{script}')
        monkeypatch.setattr('sys.argv', [script, *map(str, options)])
        module.main()
        return capsys.readouterr().out

    return start


@pytest.fixture
def camvid(tmp_path, monkeypatch):
    """Commands run in a folder with a small training, ``base.py``."""
    monkeypatch.chdir(tmp_path)
    write_small_camvid(tmp_path, 40)


@pytest.mark.parametrize('script', SCRIPTS)
def test_help(script, monkeypatch, capsys):
    """It imports, and README.md says what it is for."""
    monkeypatch.setattr('sys.argv', [script, '--help'])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(script).main()
    assert end.value.code == 0 and 'usage: ' in capsys.readouterr().out
    with open(osp.join(ROOT, 'research', 'README.md')) as file:
        assert f'python -m {script}' in file.read()


def test_audit(camvid, command):
    said = command('worth.audit', 'base.py', '--at', '0.6', '--images', '4',
                   '--cfg-options', 'train_cfg.max_iters=120')
    assert 'correlation' in said.splitlines()[-2]


def test_scores(camvid, command):
    said = command('worth.scores', 'base.py', '--parts', '1')
    assert said.splitlines()[-1].startswith('balanced loss, ema 0.8')


def test_label_errors(camvid, command):
    """Another run finds the line."""
    for _ in range(2):
        said = command('label_errors.label_errors', 'base.py', 'data', '--out',
                       'x.jsonl', '--seeds', 1, '--share', 0.2, '--kinds',
                       'exchanged', '--cfg-options',
                       'train_cfg.val_interval=40')
        assert '| network | mean pixel loss |' in said
    line, = read_results('x.jsonl')
    assert len(line['errors']) == 8


def test_weights_and_steps(tmp_path, monkeypatch):
    """Weights make the steps of AdamW longer, and then shorter."""
    for name, value in dict(
            OUT=str(tmp_path), SEEDS=1, ITERS=200, NUM_SAMPLES=320).items():
        monkeypatch.setattr(weights_and_steps, name, value)
    weights_and_steps.train_missing()
    cells = read_results(weights_and_steps.path_of('classifier'))
    steps = weights_and_steps.relative_steps(cells)['random'].iloc[0]
    assert steps.loc[20:50].mean() > 1.1 and steps.loc[180:].mean() < 0.8


def test_hard_images_are_kept_more_often():
    """With weights that end without bias."""
    scores = np.random.default_rng(0).gamma(2, size=5000).astype(np.float32)
    shares = keep_probabilities(scores, 0.5, 1., 0.1)
    assert shares.mean() == pytest.approx(0.5)
    within = (shares > 0.1) & (shares < 1)
    ratio = shares[within] / scores[within]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    policy = Tempered(keep=0.5)
    for spent, power in ((100, 0), (600, 0.5), (1100, 1)):
        policy.begin_plan(Progress(spent, 0, annealing=100, length=1200))
        plan = policy(scores, np.random.default_rng(0))
        np.testing.assert_allclose(plan.weights, shares[plan.indices]**-power,
                                   1e-5)
        resumed = Tempered(keep=0.5)
        resumed.load_state_dict(policy.state_dict())
        policy = resumed
    assert plan.is_unbiased(len(scores))


def test_learning_rates(command, monkeypatch):
    monkeypatch.chdir(osp.join(ROOT, 'research', 'camvid'))
    said = command('camvid.learning_rates', '0.05=learning-rates/0.05.jsonl',
                   '0.2=learning-rates/0.2.jsonl')
    assert said.startswith('| arm | seeds | 0.05 | 0.2 |')
