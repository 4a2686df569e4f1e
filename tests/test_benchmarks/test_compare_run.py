# Copyright (c) mmib contributors. All rights reserved.
"""Cells of a comparison: each one is trained once, whatever happens. Here with
CamVid's network on a few drawn images."""
import os
import subprocess
import sys

import pytest

from benchmarks.camvid import run as camvid
from benchmarks.compare import run
from benchmarks.compare.results import read_results

from .utils import ROOT, write_small_camvid

TIERS = dict(ratio=0.5, delta=0.75, policy=dict(type='QuantileTiers'))
ARMS = dict(
    full=dict(seeds=2),
    short=dict(seeds=1, shorten=dict(ratio=0.5)),
    tiers=dict(seeds=2, convert=TIERS))
COMMAND = ['base.py', '--arms', 'arms.py', '--out', 'results.jsonl']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Data, a config, and the arms."""
    folder = tmp_path_factory.mktemp('arms')
    write_small_camvid(folder, 16)
    (folder / 'arms.py').write_text(f'arms = {ARMS!r}\n')
    return folder


@pytest.fixture
def command(folder, monkeypatch):
    """Run the command in the folder, and return its exit status."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(run.torch, 'set_num_threads', lambda number: None)

    def start(*options):
        monkeypatch.setattr('sys.argv', ['run.py', *COMMAND, *options])
        with pytest.raises(SystemExit) as end:
            camvid.main()
        return end.value.code

    return start


@pytest.fixture(scope='module')
def results(folder):
    """The cells of one seed of two arms, trained side by side by a process
    of its own."""
    options = '--seeds 1 --only full tiers --jobs 2'.split()
    subprocess.run(
        [sys.executable, '-m', 'benchmarks.camvid.run', *COMMAND, *options],
        cwd=folder,
        env=dict(os.environ, PYTHONPATH=ROOT),
        check=True)
    cells = read_results(folder / 'results.jsonl')
    return {cell['arm']: cell for cell in cells}


def test_schedules(results):
    assert results.keys() == {'full', 'tiers'}
    for name, iters in (('full', 40), ('tiers', 20)):
        row = results[name]
        assert row['iters'] == iters and row['seed'] == 0
        assert [e['iter'] for e in row['evals']] == [iters // 2, iters]
        assert all(0 <= e['mIoU'] <= 100 and e['train_loss'] > 0
                   for e in row['evals'])
        assert row['step_ms'] <= 1000 * row['train_seconds']


def test_accounts(results):
    full, tiers = results['full'], results['tiers']
    assert full['virtual_epochs'] == 40 * 4 / 16 and 'plans' not in full
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


class FakeCrew(run.Crew):
    """Trains nothing, but says what it was told to train."""

    told, figures = [], {}

    def train(self, cells):
        for cell in cells:
            self.told.append((cell.arm, cell.seed))
            yield cell, dict(self.figures)


@pytest.fixture
def crew(results, monkeypatch):
    figures = dict(results['tiers'])
    for key in ('arm', 'seed', 'config'):
        figures.pop(key)
    monkeypatch.setattr(FakeCrew, 'told', [])
    monkeypatch.setattr(FakeCrew, 'figures', figures)
    monkeypatch.setattr(run, 'Crew', FakeCrew)
    return FakeCrew


def test_a_stopped_run_goes_on_with_the_missing_cells(folder, command, crew,
                                                      tmp_path):
    lines = (folder / 'results.jsonl').read_text()
    out = tmp_path / 'results.jsonl'
    out.write_text(lines)
    missing = [('short', 0), ('full', 1), ('tiers', 1)]
    for _ in range(2):
        assert command('--out', str(out)) == 0
        assert crew.told == missing
    assert out.read_text().startswith(lines)
    assert [(cell['arm'], cell['seed'])
            for cell in read_results(out)[2:]] == missing


def test_cells_end_with_a_run_that_is_killed(folder, tmp_path):
    """What they had trained until then is no line."""
    (tmp_path / 'slow.py').write_text('import time\nLIBRARIES = ()\n'
                                      'def train_cell(cfg, seed):\n'
                                      '    print("begun", flush=True)\n'
                                      '    time.sleep(600)\n')
    (tmp_path / 'start.py').write_text(
        'import sys\nfrom benchmarks.camvid import run\n'
        'make_cells = run.make_cells\n'
        'run.make_cells = lambda *args: [\n'
        '    x._replace(module="slow") for x in make_cells(*args)]\n'
        'if __name__ == "__main__":\n    run.main()\n')
    path = os.pathsep.join([ROOT, str(tmp_path)])
    arms, base = str(folder / 'arms.py'), str(folder / 'base.py')
    process = subprocess.Popen(
        [sys.executable, 'start.py', base, '--arms', arms, '--out', 'x.jsonl'],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=path),
        stdout=subprocess.PIPE)
    assert any(b'begun' in line for line in process.stdout)
    process.kill()
    # The output ends with the last process that has it.
    process.communicate(timeout=300)
    assert not (tmp_path / 'x.jsonl').exists()


@pytest.mark.parametrize('options, said', [
    (['--only', 'tires'], "no arm ['tires']"),
    (['--cfg-options', 'val_cfg=None'], 'has no validation'),
    (['--cfg-options', 'optim_wrapper.optimizer.lr=1.'], 'give another --out'),
    (['--arms', 'base.py'], 'has no `arms`'),
    (['--arms', 'wrong.py'], 'arm wrong of wrong.py: TypeError('),
    (['--arms', 'seedless.py'], "required positional argument: 'seeds'"),
    (['--arms', 'other.py'], "unexpected keyword argument 'prune'"),
])
def test_what_is_refused(folder, crew, command, capsys, options, said):
    for name, arm in (('wrong', dict(seeds=1, shorten=dict(share=0.5))),
                      ('seedless', dict(shorten=dict(ratio=0.5))),
                      ('other', dict(seeds=1, prune={}))):
        (folder / f'{name}.py').write_text(f'arms = {dict(wrong=arm)!r}\n')
    assert command(*options) == 2
    assert said in capsys.readouterr().err


def test_another_environment_is_refused(command, crew, monkeypatch, capsys):
    monkeypatch.setattr(run, 'environment', lambda _: dict(device='GPU'))
    assert command() == 2
    assert 'with the `device` cpu, which here is GPU' in capsys.readouterr(
    ).err


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / 'results.jsonl'
    path.write_text('{"arm": "full"}\n{"arm": \n{"arm": "short"}\n')
    with pytest.raises(ValueError, match=f'Line 2 of {path} is no JSON'):
        read_results(path)
