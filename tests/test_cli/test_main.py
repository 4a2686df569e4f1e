# Copyright (c) mmib contributors. All rights reserved.
import importlib
import os.path as osp
import runpy
import subprocess
import sys

import pytest
from mmengine.registry import HOOKS

import mmib_cli
from mmib.openmmlab.runner.checks import check_delta
from mmib_cli import COMMANDS, main, refusal

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))


def run(code):
    command = [sys.executable, '-c', code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_help_names_the_commands_without_torch():
    result = run('import sys, mmib_cli\n'
                 'try:\n'
                 "    mmib_cli.main(['--help'])\n"
                 'finally:\n'
                 "    sys.exit('torch' in sys.modules)\n")
    assert result.returncode == 0, result.stderr
    for name, text in COMMANDS.items():
        assert f'  {name} ' in result.stdout and text in result.stdout


@pytest.mark.parametrize(
    'args, code, text',
    [
        ([], 2, 'COMMAND'),
        (['trian'], 2, 'COMMAND'),
        *(([command, '--help'], 0, 'usage:') for command in COMMANDS),
        # Those of mmib, and of the script of the library.
        (['train', '--help'], 0, '--infobatch     convert CONFIG'),
        (['train', '--help'], 0, '--resume'),
    ])
def test_help_and_commands_that_are_none(args, code, text, capsys):
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == code
    assert text in str(capsys.readouterr())


def test_without_mmengine_a_command_says_what_to_install():
    result = run("import sys; sys.modules['mmengine'] = None\n"
                 'import mmib_cli\n'
                 "mmib_cli.main(['convert', 'a', 'b'])")
    assert result.returncode == 1
    error, = result.stderr.splitlines()
    assert error.startswith('Error: The command needs MMEngine')
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


@pytest.mark.parametrize('known, line', [
    ((), 'Stopped.'),
    (('Go on.', ), 'Stopped. Go on.'),
])
def test_a_stop_is_no_error(known, line, monkeypatch, capsys):
    """What to do then is in :mod:`mmib_cli.resume`."""

    def stop(args):
        raise KeyboardInterrupt(*known)

    monkeypatch.setattr(
        importlib.import_module('mmib_cli.report'), 'main', stop)
    with pytest.raises(SystemExit) as end:
        main(['report', 'a'])
    assert end.value.code == 130
    assert capsys.readouterr().err.strip() == line


@pytest.mark.parametrize('error', [
    FileNotFoundError(2, 'No such file or directory', 'tile.tif'),
    KeyError('tile is not in the list'),
    KeyError('the tile'),
])
def test_errors_of_others_keep_their_traceback(error, monkeypatch):

    def fail(args):
        raise error

    monkeypatch.setattr(
        importlib.import_module('mmib_cli.report'), 'main', fail)
    with pytest.raises(type(error)) as raised:
        main(['report', 'a'])
    assert raised.value is error


def test_what_is_a_refusal():
    """A refusal of mmib, also where it led to another error; no error of
    something else, and no error that mmib didn't mean."""

    def text_of(function, *args):
        with pytest.raises(Exception) as error:
            function(*args)
        return refusal(error.value)

    def wrap():
        try:
            check_delta(2, 'it')
        except ValueError as error:
            raise KeyError('hook') from error

    assert text_of(check_delta, 2, 'it').startswith('`delta` is the')
    assert text_of(wrap).startswith('`delta` is the')
    hook = dict(type='InfoBatchHook', ema=2)
    assert text_of(HOOKS.build, hook).startswith('`ema` is the share')
    assert text_of(HOOKS.build, dict(type='NoHook')) is None
    assert text_of(check_delta, 'a', 'it') is None
    assert text_of(lambda: 1 / 0) is None
