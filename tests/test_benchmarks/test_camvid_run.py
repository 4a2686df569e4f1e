# Copyright (c) mmib contributors. All rights reserved.
"""The comparison of arms, on a few drawn images."""
import json
import os
import signal

import pytest
from camvid import arm_configs, cell, run
from camvid.results import read_results
from mmengine.config import Config

from ..system.small_training import write_images
from .utils import CAMVID

TIERS = dict(ratio=0.5, delta=0.75, policy=dict(type='QuantileTiers'))
ARMS = dict(
    full=dict(seeds=2),
    short=dict(seeds=1, shorten=dict(ratio=0.5)),
    tiers=dict(seeds=2, convert=TIERS))
BASE = """
_base_ = '{base}'
model = dict(
    backbone=dict(base_channels=8, stem_channels=8),
    decode_head=dict(in_channels=[8, 16, 32, 64], channels=8),
    auxiliary_head=dict(in_channels=32, channels=8))
train_dataloader = dict(batch_size=4, dataset=dict(data_root='{data}'))
val_dataloader = dict(dataset=dict(data_root='{data}'))
param_scheduler = []
train_cfg = dict(max_iters=40, val_interval=20)
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Data, a config, and the arms."""
    folder = tmp_path_factory.mktemp('arms')
    write_images(folder / 'data', 16, 'test', 'png')
    (folder / 'base.py').write_text(
        BASE.format(base=CAMVID, data=folder / 'data'))
    (folder / 'arms.py').write_text(f'arms = {ARMS!r}\n')
    return folder


def run_script(folder, monkeypatch, *options):
    """Run the script in the folder, and return its exit status."""
    monkeypatch.chdir(folder)
    command = 'run.py base.py --arms arms.py --out results.jsonl --threads 1'
    monkeypatch.setattr('sys.argv', [*command.split(), *options])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as end:
            run.main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    return end.value.code


@pytest.fixture(scope='module')
def results(folder):
    """The cells of one seed of two arms, by arm."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert run_script(folder, monkeypatch, '--seeds', '1', '--only',
                          'full', 'tiers') == 0
    cells = read_results(folder / 'results.jsonl')
    return {cell['arm']: cell for cell in cells}


def test_schedules(results):
    assert list(results) == ['full', 'tiers']
    for name, iters in (('full', 40), ('tiers', 20)):
        row = results[name]
        assert row['iters'] == iters and row['seed'] == 0
        assert [e['iter'] for e in row['evals']] == [iters // 2, iters]
        assert all(0 <= e['mIoU'] <= 100 and e['loss'] > 0
                   for e in row['evals'])
        assert row['step_seconds'] <= row['train_seconds']


def test_accounts(results):
    full, tiers = results['full'], results['tiers']
    assert full['virtual_epochs'] == 40 * 4 / 16 and full['saved_iters'] == 0
    assert full['plans'] == full['histograms'] == []
    # Iterations have 4 of 16 images, and annealing begins at the 15th, which
    # cuts the last plan before it short.
    kept = [plan['kept_share'] for plan in tiers['plans']]
    assert kept[0] == 1 and 0.5 <= kept[1] < 0.75
    starts = [plan['iter'] for plan in tiers['plans']]
    assert starts[1] == 4 and starts[2] == 4 + kept[1] * 4
    assert all(plan['kept_share'] == 1 and plan['threshold'] == 0
               for plan in tiers['plans'] if plan['iter'] >= 15)
    covered = tiers['virtual_epochs']
    assert covered * 4 - 20 == pytest.approx(tiers['saved_iters'])
    assert tiers['saved_iters'] > 2


def test_histograms_before_and_after_rescaling(results):
    histograms = results['tiers']['histograms']
    assert histograms[0]['iter'] == 4 < histograms[-1]['iter'] < 15
    for row in histograms:
        assert sum(row['all']) == 16 and len(row['edges']) == 31
        assert all(0 <= kept <= count
                   for kept, count in zip(row['kept'], row['all']))
        # The mean weight of an image is 1, so the weights add up to all.
        assert sum(row['weighted']) == pytest.approx(16)
        assert sum(row['kept']) < 16


def test_a_cell_again_has_the_same_figures(folder, results, monkeypatch,
                                           capsys):
    text = (folder / 'results.jsonl').read_text()
    assert run_script(folder, monkeypatch, '--again', '1', '--only',
                      'tiers') == 0
    assert 'tiers 0: all figures are equal; 1 of 1' in capsys.readouterr().out
    assert (folder / 'results.jsonl').read_text() == text


def test_figures_that_differ_fail(folder, results, monkeypatch, capsys):
    again = json.loads(json.dumps(results['tiers']))
    again['evals'][0]['loss'] += 1e-3
    again['versions']['mmib'] = 'old'
    again['train_seconds'] += 1
    monkeypatch.setattr(run, 'train', lambda *args: again)
    assert run_script(folder, monkeypatch, '--again', '1', '--only',
                      'tiers') == 1
    said = capsys.readouterr().out
    assert "tiers 0: ['evals'] differ, the mIoU was " in said
    assert "(['versions'] are others, " in said


def test_a_stopped_run_goes_on_with_the_missing_cells(folder, results,
                                                      monkeypatch, tmp_path):
    lines = (folder / 'results.jsonl').read_text()
    out = tmp_path / 'results.jsonl'
    out.write_text(lines)
    trained = []

    def train(cfg, name, seed, work_dir, threads):
        trained.append((name, seed))
        return dict(
            results['full'],
            arm=name,
            seed=seed,
            config=arm_configs.fingerprint(cfg))

    monkeypatch.setattr(run, 'train', train)
    missing = [('short', 0), ('full', 1), ('tiers', 1)]
    assert run_script(folder, monkeypatch, '--out', str(out)) == 0
    assert trained == missing
    assert out.read_text().startswith(lines)
    assert [(cell['arm'], cell['seed'])
            for cell in read_results(out)[2:]] == missing
    assert run_script(folder, monkeypatch, '--out', str(out)) == 0
    assert trained == missing


def test_a_failed_cell_is_named_and_no_line(folder, monkeypatch, capsys,
                                            tmp_path):
    """The cells after it are trained all the same."""
    script, out = tmp_path / 'cell.py', tmp_path / 'results.jsonl'
    script.write_text('raise SystemExit(3)')
    monkeypatch.setattr(run, 'CELL', str(script))
    assert run_script(folder, monkeypatch, '--out', str(out)) == 1
    said = capsys.readouterr().out
    log = os.path.join('work_dirs', 'results', 'tiers-1', 'log.txt')
    assert f'tiers 1: FAILED: exit status 3, see {log}' in said
    assert said.count('FAILED') == 5 and out.read_text() == ''


def test_the_cell_ends_with_a_run_that_is_stopped(folder, monkeypatch,
                                                  tmp_path):
    script, pid = tmp_path / 'cell.py', tmp_path / 'pid'
    script.write_text(
        'import os, pathlib, signal, time\n'
        f'pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n'
        'os.kill(os.getppid(), signal.SIGTERM)\n'
        'time.sleep(600)')
    monkeypatch.setattr(run, 'CELL', str(script))
    assert run_script(folder, monkeypatch, '--out',
                      str(tmp_path / 'results.jsonl')) == 'stopped'
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize('options, said', [
    (['--only', 'tires'], "no arm ['tires']"),
    (['--again', '1', '--out', 'new.jsonl'], 'new.jsonl'),
    (['--again', '1', '--only', 'short'], 'has no cell of'),
    (['--cfg-options', 'val_cfg=None'], 'has no validation'),
    (['--cfg-options', 'optim_wrapper.optimizer.lr=1.'], 'give another --out'),
    (['--again', '1', '--cfg-options', 'optim_wrapper.optimizer.lr=1.'
      ], 'give another --out'),
    (['--threads', '2'], 'with the `threads` 1, which here is 2'),
    (['--arms', 'base.py'], 'has no `arms`'),
    (['--arms', 'wrong.py'], 'arm wrong of wrong.py: TypeError('),
    (['--arms', 'seedless.py'], "required positional argument: 'seeds'"),
    (['--arms', 'other.py'], "unexpected keyword argument 'prune'"),
])
def test_what_is_refused(folder, results, monkeypatch, capsys, options, said):
    for name, arm in (('wrong', dict(seeds=1, shorten=dict(share=0.5))),
                      ('seedless', dict(shorten=dict(ratio=0.5))),
                      ('other', dict(seeds=1, prune={}))):
        (folder / f'{name}.py').write_text(f'arms = {dict(wrong=arm)!r}\n')
    assert run_script(folder, monkeypatch, *options) == 2
    assert said in capsys.readouterr().err


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / 'results.jsonl'
    path.write_text('{"arm": "full"}\n{"arm": \n{"arm": "short"}\n')
    with pytest.raises(ValueError, match=f'Line 2 of {path} is no JSON'):
        read_results(path)


def test_paths_are_no_part_of_a_fingerprint():
    cfg = Config(dict(train=dict(data_root='a', lr=1)))
    same = Config(dict(train=dict(data_root='b', lr=1)))
    other = Config(dict(train=dict(data_root='a', lr=2)))
    assert arm_configs.fingerprint(cfg) == arm_configs.fingerprint(same)
    assert arm_configs.fingerprint(cfg) != arm_configs.fingerprint(other)


def test_an_evaluation_without_miou_is_refused():
    with pytest.raises(ValueError, match='`val_evaluator.iou_metrics`'):
        cell.Recorder().after_val_epoch(None, dict(mDice=50.))
