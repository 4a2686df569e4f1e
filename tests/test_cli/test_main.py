# Copyright (c) mmib contributors. All rights reserved.
import argparse
import ast
import importlib
import logging
import os.path as osp
import re
import runpy
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import mmengine
import pytest
from mmengine.registry import HOOKS

import mmib
import mmib_cli
from mmib.labels.rankings import RANKINGS
from mmib_cli import COMMANDS, main, no_debugging, parsers, refusal

HELP_OF_HELP = 'show this help message and exit'
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


def test_help_of_commands_imports_no_stack():
    """It would take seconds."""
    result = run('import sys, mmib_cli\n'
                 'for command in mmib_cli.COMMANDS:\n'
                 '    try:\n'
                 "        mmib_cli.main([command, '--help'])\n"
                 '    except SystemExit as stop:\n'
                 '        assert stop.code == 0\n'
                 "print({'torch', 'mmengine', 'mmcv', 'numpy'} "
                 '& {*sys.modules})')
    assert result.returncode == 0, result.stderr
    *_, imported = result.stdout.splitlines()
    assert imported == 'set()'
    for command in COMMANDS:
        assert f'usage: mmib {command} ' in result.stdout
    assert '.py [-h]' not in result.stdout


def test_each_option_has_its_default_and_a_sentence():
    for command in COMMANDS:
        for action in getattr(parsers, command)()._actions:
            text = action.help.strip()
            if text not in (argparse.SUPPRESS, HELP_OF_HELP):
                assert text[0].isupper() and text[-1] == '.', (command, action)
                has_default = 'Default: ' in text
                assert has_default is bool(action.option_strings), action


def test_the_help_names_all_rankings():
    text = parsers.rank().format_help()
    assert not [name for name in RANKINGS if f'`{name}`' not in text]


@pytest.mark.parametrize('args, code, text', [
    (['--help'], 0, 'MMDetection'),
    ([], 0, 'usage: mmib COMMAND ...'),
    (['--version'], 0, f'mmib {mmib.__version__}\n'),
    (['train', '--help'], 0, '--infobatch '),
    (['train', '--help'], 0, '--resume '),
    (['trian'], 2, 'trian is not a command: did you mean train?'),
    (['qqq'], 2, 'qqq is not a command: give one of train, test, '),
    ('rank a.py a.pth --rank-by pixel'.split(), 2, 'pixel is not a ranking: '),
    ('rank a.py a.pth --images -1'.split(), 2, 'give 0 or more, but got -1'),
    (['forecast', 'a.py', '--gpus', '0'], 2, 'give 1 or more, but got 0'),
    (['forecast', 'a.py', '--cfg-options', 'a'], 2, 'write KEY=VALUE'),
    (['test', 'a.py'], 2, 'usage: mmib test CONFIG CHECKPOINT'),
    (['train', 'a.py', 'b.py'], 2, 'unrecognized arguments: b.py'),
    ('train a.py --infobtach'.split(), 2,
     '--infobtach is not an option: did you mean --infobatch?'),
    ('train a.py --ratoi=0.8'.split(), 2,
     '--ratoi is not an option: did you mean --ratio?'),
    (['train', 'a.py', '-x'], 2, 'usage: mmib train CONFIG'),
    *((command + ['--bogus'], 2, '--bogus')
      for command in (['train', 'a.py'], ['test', 'a.py', 'a.pth'],
                      ['convert', 'a.py', 'b.py'], ['shorten', 'a.py', 'b.py'],
                      ['forecast', 'a.py'], ['report', 'a'],
                      ['rank', 'a.py', 'a.pth'], ['review', 'a.csv'],
                      ['env'])),
])
def test_help_and_what_is_mistyped(args, code, text, capsys):
    if args:
        with pytest.raises(SystemExit) as stop:
            main(args)
        assert stop.value.code == code
    else:
        main(args)
    said = capsys.readouterr()
    assert text in said.out + said.err


def test_without_mmengine_a_command_says_what_to_install():
    result = run("import sys; sys.modules['mmengine'] = None\n"
                 'import mmib_cli\n'
                 "mmib_cli.main(['convert', 'setup.py', 'b'])")
    assert result.returncode == 1
    error, = result.stderr.splitlines()
    assert error.startswith('Error: The command needs MMEngine')
    assert '`pip install onedl-mmengine onedl-mmcv onedl-mmseg' in error


COMPLETE = """
{script}
COMP_WORDS=(mmib {words}) COMP_CWORD={last}
_shtab_mmib mmib {word} {before}
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize('words, found', [
    (['tr'], ['train']),
    (['train', '--inf'], ['--infobatch']),
    (['rank', '--data', 'va'], ['val']),
    (['review', 'set'], ['setup.cfg', 'setup.py']),
])
def test_completion(capsys, words, found):
    """As bash completes it."""
    with pytest.raises(SystemExit) as stop:
        main(['--print-completion', 'bash'])
    assert not stop.value.code
    text = COMPLETE.format(
        script=capsys.readouterr().out,
        words=' '.join(words),
        last=len(words),
        word=words[-1],
        before=words[-2] if len(words) > 1 else 'mmib')
    result = subprocess.run(['bash', '-c', text],
                            capture_output=True,
                            text=True,
                            cwd=ROOT)
    assert sorted(result.stdout.split()) == found, result.stderr


def test_without_scipy_a_command_says_what_to_install(tmp_path):
    (tmp_path / 'review.csv').write_text('image,verdict\n1.jpg,wrong\n')
    result = run("import sys; sys.modules['scipy'] = None\n"
                 'import mmib_cli\n'
                 f"mmib_cli.main(['review', '{tmp_path}/review.csv'])")
    assert result.returncode == 1
    assert '`pip install scipy`' in result.stderr.splitlines()[-1]


def test_no_text_names_an_extra_of_a_package_that_is_on_no_index():
    """What is installed from a checkout is `.[report]`."""
    pattern = re.compile(r'mmib\[')
    files = [
        path for folder in ('mmib', 'mmib_cli', 'tools', 'examples', 'docs')
        for path in Path(ROOT, folder).rglob('*')
        if path.suffix in ('.py', '.md', '.sh', '.txt')
    ]
    assert len(files) > 100
    assert not [path for path in files if pattern.search(path.read_text())]


def test_messages_name_no_file_of_a_checkout():
    """A wheel has no docs. Docstrings may name a page."""
    named = []
    for path in (*Path(ROOT, 'mmib').rglob('*.py'),
                 *Path(ROOT, 'mmib_cli').rglob('*.py')):
        tree = ast.parse(path.read_text('utf-8'))
        of_statements = {
            id(node.value)
            for node in ast.walk(tree) if isinstance(node, ast.Expr)
        }
        named += [
            (path.name, node.lineno) for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and id(node) not in of_statements
            and re.search('docs/', str(node.value))
        ]
    assert not named


@pytest.mark.skipif(
    find_spec('mmcv') is None or find_spec('mmcv._ext') is not None,
    reason='mmcv has operations here')
def test_operations_that_are_missing_are_named(tmp_path):
    """Parts of a library import them late, as those of MMDetection do."""
    path = tmp_path / 'config.py'
    path.write_text("custom_imports = dict(imports=['mmcv.ops'])\n")
    result = run(f"import mmib_cli; mmib_cli.main(['train', {str(path)!r}])")
    assert result.returncode == 1
    *_, error = result.stderr.splitlines()
    assert error.startswith('Error: ') and 'operations of mmcv' in error
    assert 'Traceback' not in result.stderr


def test_messages_for_debugging_are_not_printed(capsys):
    with no_debugging():
        mmengine.logging.print_log('of no use', level=logging.DEBUG)
        mmengine.logging.print_log('of use')
    mmengine.logging.print_log('as ever', level=logging.DEBUG)
    assert capsys.readouterr().out == 'of use\nas ever\n'


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
        main(['report', '.'])
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
        main(['report', '.'])
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
            mmib.InfoBatchHook(delta=2)
        except ValueError as error:
            raise KeyError('hook') from error

    assert text_of(partial(mmib.InfoBatchHook,
                           delta=2)).startswith('`delta` of InfoBatch')
    assert text_of(wrap).startswith('`delta` of InfoBatch')
    hook = dict(type='InfoBatchHook', ema=2)
    assert text_of(HOOKS.build, hook).startswith('`ema` of InfoBatch')
    assert text_of(HOOKS.build, dict(type='NoHook')) is None
    assert 'a number' in text_of(partial(mmib.InfoBatchHook, delta='a'))
    assert text_of(lambda: 1 / 0) is None


@pytest.mark.parametrize('command', [
    'train gone.py', 'convert gone.py out.py', 'rank setup.py gone.pth',
    'test setup.py gone.pth', 'train setup.py --without gone.csv',
    'review gone.csv', 'report gone', 'report tests --compare gone',
    'train setup.py --infobtach'
])
def test_what_is_missing_is_refused_before_the_stack_is_imported(command):
    """The import takes seconds."""
    result = run('import sys, mmib_cli\n'
                 'try:\n'
                 f'    mmib_cli.main({command.split()!r})\n'
                 'finally:\n'
                 "    assert not {'torch', 'mmengine'} & {*sys.modules}\n")
    assert result.returncode in (1, 2)
    *_, error = result.stderr.splitlines()
    assert ('gone' in error or '--infobatch' in error) and 'rror: ' in error
