# Copyright (c) mmib contributors. All rights reserved.
"""README and docs: figures are those of research/, and commands exist."""
import glob
import os.path as osp
import re
import shlex

import numpy as np
import pytest

import mmib
from benchmarks.compare.results import read_results
from mmib_cli import COMMANDS

ROOT = osp.dirname(osp.dirname(osp.abspath(__file__)))
PAGES = ['README.md'] + sorted(
    osp.relpath(path, ROOT) for pattern in ('docs/*.md', 'examples/*/*.md')
    for path in glob.glob(osp.join(ROOT, pattern)))
RESEARCH = sorted(
    osp.relpath(path, ROOT)
    for path in glob.glob(osp.join(ROOT, 'research', '*', 'README.md')))
DIFFERENCE = re.compile(r'[-+]\d+\.\d+ \[[-+.\d]+, [-+.\d]+\]')
ARMS = {'`QuantileTiers`': 'tiers', '`Neyman`': 'neyman'}


def read(path):
    with open(osp.join(ROOT, path), encoding='utf-8') as file:
        return file.read()


def rows_of(text):
    """The cells of each line of the tables of a page."""
    return [[cell.strip() for cell in line.split('|')[1:-1]]
            for line in text.split('\n') if line.startswith('|')]


ROWS = [row for page in RESEARCH for row in rows_of(read(page))]


def section(page, heading):
    return read(page).split(f'\n{heading}\n')[1].split('\n## ')[0]


@pytest.mark.parametrize('page, heading, count', [
    ('docs/results.md', '## What the choice of images was worth', 12),
    ('docs/results.md', '## CamVid', 11),
    ('docs/results.md', '## CIFAR-10', 13),
    ('docs/method.md', '## What pruning is worth', 4),
])
def test_figures_of_tables(page, heading, count):
    """Each is that of its arm in a table of research."""
    found = 0
    for row in rows_of(section(page, heading)):
        row = [ARMS.get(cell, cell) for cell in row]
        name = next((cell for cell in row if not re.match(r'\d', cell)), '')
        figures = [cell for cell in row if re.match(r'[-+\d]+\.\d', cell)]
        arms = [cell.split(':')[-1].split(',')[0].strip() for cell in row]
        others = [other for other in ROWS if {*arms} & {*other}]
        assert {*figures} <= {cell for other in others for cell in other}, name
        found += bool(figures)
    assert found == count


def test_differences_in_the_text():
    known = {
        difference
        for page in RESEARCH
        for difference in DIFFERENCE.findall(read(page))
    }
    figures = DIFFERENCE.findall(' '.join(read('docs/results.md').split()))
    assert len(figures) >= 40
    assert {*figures} <= known


def test_what_readme_tells_to_expect():
    """The range of what the default policy loses to the full training."""
    losses = [
        float(DIFFERENCE.search(cell)[0].split()[0])
        for heading, column in (('## CamVid', 5), ('## CIFAR-10', 5))
        for row in rows_of(section('docs/results.md', heading))
        if row[0] == 'neyman' for cell in row[column:column + 1]
    ]
    assert len(losses) == 4
    low, high = -max(losses), -min(losses)
    assert f'{low:.1f} to {high:.1f} points below' in ' '.join(
        read('README.md').split())


@pytest.mark.parametrize('pruned, names, metric, scale', [
    ('neyman', ['camvid/camvid', 'camvid/camvid-worth'], 'mIoU', 1),
    ('neyman', ['camvid/camvid-pretrained'], 'mIoU', 1),
    ('neyman', ['cifar10/passes-24'], 'accuracy', 1),
    ('neyman', ['cifar10/passes-72'], 'accuracy', 1),
    ('neyman', ['networks/swin-w48'], 'accuracy', 1),
    ('neyman', ['networks/mae-w64'], 'loss', 1),
    ('pruned', ['diffusion/arms'], 'held_out_loss', 1000),
    ('neyman', ['instruction_tuning/lora'], 'exact', 1),
    ('neyman', ['instruction_tuning/scratch'], 'exact', 1),
])
def test_the_table_of_systems(pruned, names, metric, scale):
    files = [
        read_results(osp.join(ROOT, 'research', f'{name}.jsonl'))
        for name in names
    ]

    def mean(arm, value):
        # Of the first file that has the arm.
        of_arm = ([cell for cell in cells if cell['arm'] == arm]
                  for cells in files)
        return np.mean(list(map(value, next(filter(None, of_arm)))))

    def figure(cell):
        return scale * (cell if metric in cell else cell['evals'][-1])[metric]

    ratio = mean(pruned, lambda cell: cell['variance_ratio'][0])
    means = [f'{mean(arm, figure):.1f}' for arm in (pruned, 'short', 'full')]
    row = f'| {ratio:.2f} | 40 % | {" / ".join(means)} '
    assert row in read('docs/results.md')


def test_the_table_of_label_errors():
    names = {
        'at random': 'at random',
        'last score': 'last score',
        'moving average, the default': 'ema=0.8',
        '`--rank-by pixels`': 'mean of the highest 5% of the pixel losses',
        'cleanlab': 'cleanlab, softmin',
    }
    found = rows_of(read('research/label_errors/README.md'))
    _, _, *rows = rows_of(section('docs/report.md', '## Find label errors'))
    assert [row[0] for row in rows] == list(names)
    for name, *shares in rows:
        # In the tables of large and of small errors.
        tables = [row for row in found if row[1:2] == [names[name]]]
        assert [f'{100 * float(row[3].split()[0]):.0f} %'
                for row in tables] == shares


def test_the_api_has_all_public_names():
    documented = re.findall(r'^\.\. (?:autoclass|autofunction|data):: (\w+)$',
                            read('docs/api.rst'), re.M)
    # The epoch sampler is another name of InfoBatchSampler.
    assert {*documented, '__version__',
            'InfoBatchEpochSampler'} == set(mmib.__all__)


def commands_of(page):
    """The words of each command of a page, without those of ``cd``."""
    blocks = re.findall(r'```shell\n(.*?)```', read(page), re.S)
    inline = re.findall(r'`((?:mmib|python) [^`\n]+)`', read(page))
    lines = '\n'.join([*blocks, *inline]).replace('\\\n', ' ').split('\n')
    return [shlex.split(line, comments=True) for line in lines if line]


@pytest.mark.parametrize('page', [*PAGES, *RESEARCH])
def test_commands_exist(page):
    """Commands of mmib, and modules and files of this project."""
    folder = osp.dirname(page) if page.startswith('examples') else ''
    for words in commands_of(page):
        if 'mmib' in words[:3] and words[0] != 'mim':
            command = words[words.index('mmib') + 1:][:1]
            assert command in ([], ['COMMAND'], *([name] for name in COMMANDS))
        for word in words:
            if re.match(r'(benchmarks|research|examples)\.', word):
                path = word.replace('.', '/')
                assert osp.exists(osp.join(ROOT, f'{path}.py')), words
            elif re.match(
                    r'(tests|tools|benchmarks|research|configs|examples)'
                    r'/.*\.(py|sh)$', word):
                assert osp.exists(osp.join(ROOT, word)), words
        if words[0] == 'python' and words[1].endswith('.py'):
            assert osp.exists(osp.join(ROOT, folder, words[1])) or osp.exists(
                osp.join(ROOT, words[1])), words
