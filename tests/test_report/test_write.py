# Copyright (c) mmib contributors. All rights reserved.
"""Reports of whole folders, opened in a browser."""
import functools
import html
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from mmengine.runner import Runner

import mmib.labels
import mmib.report
import mmib_cli
from tests.helpers.processes import run_ranks
from tests.helpers.segmentors import BASELINE, distribute, write_images
from tests.helpers.work_dirs import (BEGINS, StoppedAt, files_config,
                                     train_line, val_line, write_checkpoint,
                                     write_finished, write_start)

from ..test_labels.devtools import Browser
from .browser import CHROMIUM, WIDTHS


def write_report(*arguments):
    mmib_cli.main(['report', *map(str, arguments)])


NAMES = ('resumed', 'killed', 'baseline', 'ranks', 'finished', 'damaged',
         'stopped')
SCRIPT = '<script>alert(1)<img src=x onerror=alert(2)> & "b"'


def train_on_rank(root, work_dir, rank, results):
    runner = Runner.from_cfg(files_config(root, work_dir))
    distribute(runner)
    runner.train()
    results[rank] = runner.iter


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    """Work folders by name."""
    base = tmp_path_factory.mktemp('trainings')
    root = base / 'data'
    write_images(str(root), 12)
    folders = {name: base / name for name in NAMES}

    runner = Runner.from_cfg(files_config(root, folders['resumed']))
    runner.register_hook(StoppedAt(30))
    with pytest.raises(KeyboardInterrupt):
        runner.train()
    # Both starts may be of the same second.
    start, = folders['resumed'].glob('*_*/')
    start.rename(start.with_name('20200101_000000'))
    shutil.copytree(folders['resumed'], folders['killed'])
    Runner.from_cfg(files_config(root, folders['resumed'],
                                 resume=True)).train()
    Runner.from_cfg(files_config(root, folders['baseline'],
                                 **BASELINE)).train()
    run_ranks(
        functools.partial(train_on_rank, str(root), str(folders['ranks'])), 2)

    write_checkpoint(write_finished(folders['finished']))
    # The newest checkpoint is damaged.
    write_checkpoint(write_start(folders['damaged']), 20)
    write_checkpoint(folders['damaged'], 40).write_bytes(b'damaged')
    write_start(folders['stopped'], [], [{'begins': BEGINS}])
    return folders


@pytest.fixture(scope='module')
def pages(folders, tmp_path_factory):
    """The report of each folder."""
    out = tmp_path_factory.mktemp('reports')
    for name, folder in folders.items():
        compare = ['--compare', folders['baseline']]
        write_report(folder, '--out', out / f'{name}.html',
                     *compare * (name == 'resumed'))
    return {name: out / f'{name}.html' for name in folders}


@pytest.fixture(scope='module')
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip('no chromium: apt-get install chromium')
    browser = Browser(tmp_path_factory.mktemp('browser'))
    yield browser
    browser.close()


LOOK = """(() => {
    const images = [...document.images], page = document.documentElement;
    return [images.length, document.scripts.length,
            images.filter(image => !image.naturalWidth).length,
            page.scrollWidth > page.clientWidth];
})()"""


@pytest.mark.parametrize('width', WIDTHS)
@pytest.mark.parametrize('name', NAMES)
def test_in_a_browser(pages, browser, name, width):
    """Its errors are those of the console, and requests."""
    browser.open(pages[name], width)
    images, scripts, broken, is_too_wide = browser.run(LOOK)
    assert not browser.errors and not broken and not is_too_wide
    assert not scripts
    assert images > 0 or name == 'stopped'


def text_of(page):
    """The text of a page without pictures."""
    return re.sub(
        r'<style>.*?</style>|data:[^"]*',
        '',
        page.read_text('utf-8'),
        flags=re.S)


def command_of(text):
    """The words of the command on a page."""
    return shlex.split(html.unescape(re.search('<pre>(.*)</pre>', text)[1]))


@pytest.mark.parametrize('name', NAMES)
def test_nothing_is_outside_of_the_page(pages, name):
    text = text_of(pages[name])
    assert 'http' not in text.replace('http-equiv', '') and 'url(' not in text
    assert {*re.findall(r'(?:src|srcset|href)="([^"]*)', text)} <= {''}


@pytest.mark.parametrize('name', ['resumed', 'killed', 'ranks'])
def test_of_a_training(folders, pages, name):
    text = text_of(pages[name])
    # Each curve once, where there is no other run to compare with.
    assert 'mIoU by iterations' in text
    assert ('mIoU by full equivalent' in text) == (name == 'resumed')
    # The IoU of each class is in the log, which has the name of a start.
    assert ('triangle' in text) == (name != 'killed')
    assert ('still running, or it was stopped' in text) == (name == 'killed')
    # The command that shows the images has files of the run.
    *command, config, checkpoint, _, _ = command_of(text)
    assert command == ['mmib', 'rank']
    assert Path(config) in folders[name].glob('*.py')
    last = 20 if name == 'killed' else 40
    assert checkpoint == str(folders[name] / f'iter_{last}.pth')
    assert ('in 2 starts' in text) == (name == 'resumed')
    assert ('Compared with <b>baseline</b>' in text) == (name == 'resumed')


def test_file_names_are_text(folders, tmp_path):
    work_dir = shutil.copytree(folders['finished'], tmp_path / SCRIPT)
    write_report(work_dir)
    text = text_of(work_dir / 'report.html')
    assert '<script' not in text and '<img src=x' not in text
    assert '<h1>&lt;script&gt;alert(1)&lt;img' in text
    assert command_of(text)[3] == str(work_dir / 'iter_40.pth')


def test_of_the_baseline(pages):
    text = text_of(pages['baseline'])
    assert 'A run without InfoBatch' in text
    assert 'metrics and losses alone' in text and 'mIoU by iterations' in text
    assert 'What was pruned' not in text and 'mmib rank' not in text


# Length, config and name of runs without InfoBatch. The baseline is longer.
CONTROLS = [
    (40, '', ': a control with the steps of its config'),
    (40, "custom_hooks = [dict(type='StepScaleHook')]\n",
     ': a control with the steps of a pruned run'),
    (50, '', ''),
]


def test_controls_are_named(tmp_path):
    """By which steps they have."""
    run, others = write_finished(tmp_path / 'run'), []
    for number, (length, steps, _) in enumerate(CONTROLS):
        others.append(
            write_start(
                tmp_path / f'other{number}',
                [train_line(1, 1.), val_line(length, 41.)],
                config="default_scope = 'mmseg'\n" + steps))
    write_report(run, '--compare', *others)
    page = text_of(run / 'report.html')
    for number, (_, _, text) in enumerate(CONTROLS):
        words = page.split(f'other{number}</b>')[1].split('<')[0]
        assert words.strip() == f', without InfoBatch{text}'


def test_of_a_log_with_all_in_it(pages):
    text = text_of(pages['finished'])
    for said in ('baseline needs for as many passes: 20% fewer here',
                 'worth up to 10 % of the steps (V 0.90, 0.85 to 0.95; at',
                 '30 of 150 visits', 'Scores at iteration 4<',
                 'Scores at iteration 7<', 'Scores at iteration 10<',
                 'Kept share by score', 'Mean score and threshold'):
        assert said in text


def test_what_is_missing_is_told(pages):
    text = text_of(pages['damaged'])
    assert 'iter_40.pth is damaged' in text
    assert 'run begins: what was pruned is left out' in text
    assert 'iter_20.pth --rank-by score' in text
    text = text_of(pages['stopped'])
    assert 'of 40: still running, or it was stopped' in text
    assert 'There is no checkpoint yet' in text and 'mmib rank' not in text


def test_a_config_that_cannot_be_read(folders, tmp_path):
    work_dir = shutil.copytree(folders['killed'], tmp_path / 'run')
    for config in work_dir.glob('*.py'):
        config.unlink()
    config, = work_dir.glob('*_*/vis_data/config.py')
    config.write_text('raise OSError')
    write_report(work_dir)
    text = text_of(work_dir / 'report.html')
    assert 'config.py can&#39;t be read (OSError)' in text
    assert f'mmib rank CONFIG {work_dir}/iter_20.pth' in text


def test_where_nothing_can_be_written(folders, tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(SystemExit, match='Error: .* can\'t be written'):
        write_report(folders['stopped'], '--out',
                     tmp_path / 'file' / 'report.html')


@pytest.mark.parametrize('library', ['matplotlib', 'jinja2', 'pandas'])
def test_names_the_extra(monkeypatch, library):
    for package in (mmib.report, mmib.labels):
        for name in [
                n for n in sys.modules if n.startswith(f'{package.__name__}.')
        ]:
            monkeypatch.delitem(sys.modules, name)
            monkeypatch.delattr(package, name.split('.')[-1])
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SystemExit) as end:
        write_report('.')
    assert end.value.code == ('Error: This command needs `jinja2`, '
                              '`matplotlib` and `pandas`: run `pip install '
                              f'{library}`.')
