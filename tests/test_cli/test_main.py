# Copyright (c) mmib contributors. All rights reserved.
import importlib
import os.path as osp
import runpy
import shlex
import subprocess
import sys

import pytest
from mmengine.registry import HOOKS

import mmib_cli
from mmib.runner.checks import check_delta
from mmib_cli import COMMANDS, main, refusal

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))


def run(code):
    return subprocess.run([sys.executable, '-c', code],
                          cwd=ROOT,
                          capture_output=True,
                          text=True)


def test_help_names_the_commands_without_torch():
    result = run('import sys, mmib_cli\n'
                 'try:\n'
                 "    mmib_cli.main(['--help'])\n"
                 'finally:\n'
                 "    sys.exit('torch' in sys.modules)\n")
    assert result.returncode == 0, result.stderr
    for name, text in COMMANDS.items():
        assert f'  {name} ' in result.stdout and text in result.stdout


@pytest.mark.parametrize('args', [[], ['trian']])
def test_no_such_command(args, capsys):
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 2
    assert 'COMMAND' in capsys.readouterr().err


@pytest.mark.parametrize('command', COMMANDS)
def test_help_of_each_command(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, '--help'])
    assert stop.value.code == 0
    assert 'usage:' in capsys.readouterr().out


def test_without_mmengine_a_command_says_what_to_install():
    result = run("import sys; sys.modules['mmengine'] = None\n"
                 'import mmib_cli\n'
                 "mmib_cli.main(['convert', 'a', 'b'])")
    assert result.returncode == 1
    error, = result.stderr.splitlines()
    assert error.startswith('Error: mmib needs MMEngine')
    assert "pip install 'mmib[onedl]'" in error


@pytest.mark.parametrize('script, command', [('train', 'train'),
                                             ('test', 'test'),
                                             ('convert_config', 'convert'),
                                             ('report', 'report')])
def test_scripts_are_the_commands(script, command, monkeypatch):
    called = []
    monkeypatch.setattr(mmib_cli, 'main', called.append)
    monkeypatch.setattr(sys, 'argv', [script, 'a', '--b'])
    runpy.run_path(
        osp.join(ROOT, 'tools', f'{script}.py'), run_name='__main__')
    assert called == [[command, 'a', '--b']]


@pytest.mark.parametrize('command, line', [
    ('train a b.py --x "c d"', "Stopped. To go on from the last checkpoint: "
     "mmib train a b.py --x 'c d' --resume"),
    ('train a --resume', 'Stopped. To go on from the last checkpoint: '
     'mmib train a --resume'),
    ('report a', 'Stopped.'),
])
def test_a_stop_says_how_to_go_on(command, line, monkeypatch, capsys):

    def stop(args):
        raise KeyboardInterrupt

    words = shlex.split(command)
    monkeypatch.setattr(
        importlib.import_module(f'mmib_cli.{words[0]}'), 'main', stop)
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 130
    assert capsys.readouterr().err.strip() == line


def test_what_is_a_refusal():
    """A refusal of mmib, also where it led to another error; no error of
    something else, and no error that mmib didn't mean."""

    def text_of(function, *args, **kwargs):
        with pytest.raises(Exception) as error:
            function(*args, **kwargs)
        return refusal(error.value)

    def build(**cfg):
        HOOKS.build(cfg)

    def wrap():
        try:
            check_delta(2, 'it')
        except ValueError as error:
            raise KeyError('hook') from error

    assert text_of(check_delta, 2, 'it').startswith('`delta` is the')
    assert text_of(wrap).startswith('`delta` is the')
    assert text_of(
        build, type='InfoBatchHook', ema=2).startswith('`ema` is the share')
    assert text_of(
        build, type='InfoBatchHook', policy=dict(
            type='Budgte')).startswith('Budgte is none of the policies')
    assert text_of(build, type='NoHook') is None
    assert text_of(check_delta, 'a', 'it') is None
    assert text_of(lambda: 1 / 0) is None
