# Copyright (c) mmib contributors. All rights reserved.
"""The comparison of arms, on a few drawn images."""
import argparse
import fcntl
import json
import os
import os.path as osp
import subprocess
import sys
import time
from contextlib import closing

import pytest
from make_demo_data import make_demo_data
from mmengine.config import Config

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
sys.path.append(osp.join(ROOT, 'tools', 'benchmark'))

import run_arms  # noqa: E402
from arms import cell, configs  # noqa: E402
from arms.results import ResultsFile, locked_folder, read_results  # noqa: E402

TIERS = dict(ratio=0.5, delta=0.75, policy=dict(type='QuantileTiers'))
ARMS = dict(
    full=dict(seeds=2),
    short=dict(seeds=1, shorten=dict(ratio=0.5)),
    tiers=dict(seeds=2, convert=TIERS))
BASE = """
_base_ = ['{root}/configs/_base_/models/upernet_r18.py',
          '{root}/configs/_base_/datasets/demo_64x64.py']
default_scope = 'mmseg'
data_root = '{data}'
model = dict(
    data_preprocessor=dict(size=(64, 64)),
    backbone=dict(base_channels=8, stem_channels=8),
    decode_head=dict(
        in_channels=[8, 16, 32, 64], channels=8, num_classes=5),
    auxiliary_head=dict(in_channels=32, channels=8, num_classes=5))
train_dataloader = dict(
    batch_size=4, num_workers=0, persistent_workers=False,
    dataset=dict(data_root=data_root))
val_dataloader = dict(
    num_workers=0, persistent_workers=False,
    dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.01))
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=40, val_interval=20)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
log_processor = dict(by_epoch=False)
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Data, a config, and the arms."""
    folder = tmp_path_factory.mktemp('arms')
    make_demo_data(str(folder / 'data'), num_training=16, num_validation=4)
    (folder / 'base.py').write_text(
        BASE.format(root=ROOT, data=folder / 'data'))
    (folder / 'arms.py').write_text(f'arms = {ARMS!r}\n')
    return folder


def run_script(folder, monkeypatch, *options):
    """Run the script on the folder, and return its exit status."""
    monkeypatch.setattr(sys, 'argv', [
        'run_arms.py',
        str(folder / 'base.py'), '--arms',
        str(folder / 'arms.py'), '--out',
        str(folder / 'results.jsonl'), '--work-dir',
        str(folder / 'work'), '--threads', '1', '--jobs', '2', *options
    ])
    with pytest.raises(SystemExit) as end:
        run_arms.main()
    return end.value.code


def cells(folder):
    return [(result['arm'], result['seed'])
            for result in read_results(folder / 'results.jsonl')]


@pytest.fixture(scope='module')
def results(folder):
    """A run with one seed, and the same command again after a kill in the
    middle of a line."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert run_script(folder, monkeypatch, '--seeds', '1') == 0
        path = folder / 'results.jsonl'
        assert sorted(cells(folder)) == [('full', 0), ('short', 0),
                                         ('tiers', 0)]
        whole = [
            line for line in path.read_text().splitlines(keepends=True)
            if json.loads(line)['arm'] != 'short'
        ]
        path.write_text(''.join(whole) + '{"arm": "sho')
        assert sorted(cells(folder)) == [('full', 0), ('tiers', 0)]
        assert run_script(folder, monkeypatch, '--seeds', '1') == 0
        assert path.read_text().startswith(''.join(whole))
    return {result['arm']: result for result in read_results(path)}


def test_a_stopped_run_goes_on_with_the_missing_cells(folder, results):
    assert cells(folder)[2:] == [('short', 0)]
    assert list(results) == [name for name, _ in cells(folder)]


def test_schedules(results):
    assert {
        name: row['iters']
        for name, row in results.items()
    } == dict(
        full=40, short=20, tiers=20)
    for row in results.values():
        steps = [row['iters'] // 2, row['iters']]
        assert [evaluation['iter'] for evaluation in row['evals']] == steps
        assert all(0 <= evaluation['mIoU'] <= 100 and evaluation['loss'] > 0
                   for evaluation in row['evals'])
        assert row['step_seconds'] <= row['train_seconds']


def test_accounts(results):
    full, short, tiers = (results[name] for name in ARMS)
    assert full['virtual_epochs'] == 40 * 4 / 16
    assert short['virtual_epochs'] == 20 * 4 / 16
    assert full['plans'] == full['histograms'] == short['plans'] == []
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
    first, *_, last = results['tiers']['histograms']
    assert first['iter'] == 4 < last['iter'] < 15
    for row in (first, last):
        assert sum(row['all']) == 16 and len(row['edges']) == 31
        assert all(0 <= kept <= count
                   for kept, count in zip(row['kept'], row['all']))
        # The mean weight of an image is 1, so the weights add up to all.
        assert sum(row['weighted']) == pytest.approx(16)
        assert sum(row['kept']) < 16


def test_a_cell_again_has_the_same_figures(folder, results, monkeypatch,
                                           capsys):
    assert run_script(folder, monkeypatch, '--again', '1', '--only',
                      'tiers') == 0
    assert 'tiers 0: all figures are equal' in capsys.readouterr().out
    path = folder / 'results.jsonl'
    text = path.read_text()
    path.write_text(
        text.replace('"loss": ', '"loss": 1').replace('"mmib": "',
                                                      '"mmib": "old '))
    try:
        assert run_script(folder, monkeypatch, '--again', '1', '--only',
                          'tiers') == 1
        said = capsys.readouterr().out
        assert "tiers 0: ['evals'] differ, the mIoU was " in said
        assert "(['versions'] are others, " in said
    finally:
        path.write_text(text)


def test_a_failed_cell_is_named_and_no_line(folder, results, monkeypatch,
                                            capsys):
    before = cells(folder)
    assert run_script(folder, monkeypatch, '--only', 'short', '--out',
                      str(folder / 'others.jsonl'), '--cfg-options',
                      'optim_wrapper.optimizer.type=None') == 1
    assert 'short 0: FAILED: exit status 1, see' in capsys.readouterr().out
    assert cells(folder) == before
    assert (folder / 'others.jsonl').read_text() == ''


@pytest.mark.parametrize('options, said', [
    (['--only', 'tires'], "no arm ['tires']"),
    (['--again', '1', '--out', 'new.jsonl'], 'has no cell of'),
    (['--cfg-options', 'val_cfg=None'], 'has no validation'),
    (['--cfg-options', 'optim_wrapper.optimizer.lr=1.'], 'give another --out'),
    (['--again', '1', '--cfg-options', 'optim_wrapper.optimizer.lr=1.'
      ], 'give another --out'),
    (['--threads', '2'], 'of `threads` 1, which here is 2'),
    (['--seeds', '0'], "invalid positive value: '0'"),
    (['--arms', 'base.py'], 'has no `arms`'),
    (['--arms', 'wrong.py'], 'arm wrong of wrong.py: TypeError('),
    (['--arms', 'seedless.py'], "arm wrong of seedless.py: KeyError('seeds')"),
])
def test_what_is_refused(folder, results, monkeypatch, capsys, options, said):
    monkeypatch.chdir(folder)
    for name, arm in (('wrong', dict(seeds=1, shorten=dict(share=0.5))),
                      ('seedless', dict(shorten=dict(ratio=0.5)))):
        (folder / f'{name}.py').write_text(f'arms = {dict(wrong=arm)!r}\n')
    assert run_script(folder, monkeypatch, *options) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    'out, locked',
    [
        ('results.jsonl', 'results.jsonl'),
        # The folders of its cells would be the same.
        ('other.jsonl', 'work'),
    ])
def test_one_run_at_a_time(folder, results, monkeypatch, capsys, out, locked):
    file = os.open(folder / locked, os.O_RDONLY)
    # As a cell does that was left when its run was killed.
    fcntl.flock(file, fcntl.LOCK_EX)
    assert run_script(folder, monkeypatch, '--out', str(folder / out)) == 2
    os.close(file)
    assert f'{locked} is in use by another run' in capsys.readouterr().err


@pytest.mark.parametrize('end, kept', [('{"arm": 2}', [1, 2]),
                                       ('{"arm": 2', [1]), ('', [1])])
def test_a_last_line_without_its_end(tmp_path, end, kept):
    path = tmp_path / 'results.jsonl'
    path.write_text('{"arm": 1}\n' + end)
    assert [row['arm'] for row in read_results(path)] == kept
    with closing(ResultsFile(str(path))) as file:
        assert [row['arm'] for row in file.cells] == kept
        file.append(dict(arm=3))
    assert [row['arm'] for row in read_results(path)] == [*kept, 3]
    assert path.read_text().count('\n') == len(kept) + 1


def test_a_run_that_is_stopped_starts_no_more_cells(folder, monkeypatch,
                                                    tmp_path):
    out = tmp_path / 'results.jsonl'
    monkeypatch.chdir(tmp_path)
    process = subprocess.Popen([
        sys.executable,
        osp.join(ROOT, 'tools', 'benchmark', 'run_arms.py'),
        str(folder / 'base.py'), '--arms',
        str(folder / 'arms.py'), '--out',
        str(out), '--threads', '1'
    ])
    work = tmp_path / 'work_dirs' / 'results'
    deadline = time.monotonic() + 60
    while not (work / 'full-0' / 'log.txt').exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.terminate()
    assert process.wait(30) == 1
    assert read_results(out) == []
    assert os.listdir(work) == ['full-0']
    # Its cell has ended too, as the file and the folder are free.
    ResultsFile(str(out)).close()
    with locked_folder(str(work)):
        pass


def test_order_of_the_cells():
    arms = {
        name: configs.Arm(Config(dict(name=name)), arm['seeds'])
        for name, arm in ARMS.items()
    }
    done = [
        dict(
            arm='full',
            seed=0,
            config=configs.fingerprint(arms['full'].cfg),
            threads=2)
    ]
    here = dict(threads=2)
    assert run_arms.missing_cells(arms, done, None, here) == [('short', 0),
                                                              ('tiers', 0),
                                                              ('full', 1),
                                                              ('tiers', 1)]
    assert run_arms.missing_cells(arms, done, 1, here) == [('short', 0),
                                                           ('tiers', 0)]
    with pytest.raises(ValueError, match='of `threads` 2, which here is 1'):
        run_arms.missing_cells(arms, done, None, dict(threads=1))


def test_arms_of_the_repository():
    parser = argparse.ArgumentParser()
    configs.add_arguments(parser)
    arms = configs.load_arms(
        parser.parse_args([
            osp.join(ROOT, 'configs', 'upernet',
                     'upernet_r18-w32_1xb8-2k_camvid-72x96.py')
        ]))
    assert len(arms) >= 11 and next(iter(arms)) == 'full'
    for name, arm in arms.items():
        main = name in ('full', 'short', 'tiers', 'budget', 'random')
        assert arm.seeds >= (8 if main else 3)
        hooks = [hook['type'] for hook in arm.cfg.custom_hooks]
        assert ('InfoBatchHook' in hooks) == (not name.startswith(
            ('full', 'short')))


def test_paths_are_no_part_of_a_fingerprint():
    cfg = Config(dict(train=dict(data_root='a', lr=1)))
    same = Config(dict(train=dict(data_root='b', lr=1)))
    other = Config(dict(train=dict(data_root='a', lr=2)))
    assert configs.fingerprint(cfg) == configs.fingerprint(same)
    assert configs.fingerprint(cfg) != configs.fingerprint(other)


def test_an_evaluation_without_miou_is_refused():
    with pytest.raises(ValueError, match='`val_evaluator.iou_metrics`'):
        cell.Recorder().after_val_epoch(None, dict(mDice=50.))


def test_other_kinds_of_arms_are_refused():
    with pytest.raises(ValueError, match='`shorten` or `convert`'):
        configs.build_config(Config(), dict(prune=dict()))
